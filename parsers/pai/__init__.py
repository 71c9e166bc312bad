"""Scripts of Pai-Megatron-Patch."""
