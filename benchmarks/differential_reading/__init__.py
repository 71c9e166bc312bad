"""Training files read twice: by the product, and by readers that share nothing with it (`__main__` compares them)."""
