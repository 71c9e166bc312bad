"""FlagScale: experiments whose train files become Megatron's flags."""
