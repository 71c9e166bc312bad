"""What MindSpeed and MindSpeed-LLM refuse at start: their features' checks of arguments, one rule each."""
