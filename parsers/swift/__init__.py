"""ms-swift, whose command `megatron` trains by Megatron's options on a model that it names."""
