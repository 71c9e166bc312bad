"""Primus: experiments that name presets of modules and models, for Megatron and torchtitan."""
