"""Hugging Face's Trainer: command lines, and what LLaMA-Factory and axolotl pass on to it."""
