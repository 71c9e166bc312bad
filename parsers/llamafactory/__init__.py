"""LLaMA-Factory, whose YAML trains a named model by Hugging Face's Trainer."""
