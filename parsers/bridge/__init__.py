"""Megatron-Bridge: resolved configurations, and scripts that start a published recipe."""
