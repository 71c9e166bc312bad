"""NVIDIA NeMo Automodel, whose YAML recipes train a model of Hugging Face on torch's FSDP, pipelines and tensors."""
