"""Scripts that start a program of Hugging Face's Trainer, or LLaMA-Factory, with options on the command line."""
