"""Galvatron's files, of Hetu and of Paddle: measured profiles and strategies, read and written."""
