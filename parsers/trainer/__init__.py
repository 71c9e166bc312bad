"""Jobs of Hugging Face's Trainer, which LLaMA-Factory, axolotl and plain scripts state: sharding, optimizer, states."""
