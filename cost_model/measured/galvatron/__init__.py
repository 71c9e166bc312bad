"""Galvatron's own cost models, of Hetu and of Paddle: to compare with, and to judge what they find."""
