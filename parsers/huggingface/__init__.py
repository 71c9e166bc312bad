"""Hugging Face `config.json`: what model it describes."""
