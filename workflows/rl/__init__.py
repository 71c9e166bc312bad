"""Reinforcement learning: memory and time of an iteration by phase, and the cards of training and of roll-outs."""
