"""Launch scripts of Megatron-LM and MindSpeed-LLM."""
