"""Start checks of MindSpeed and MindSpeed-LLM: their features' checks of arguments, one rule each."""
