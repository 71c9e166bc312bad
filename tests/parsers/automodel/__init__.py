"""NeMo Automodel's recipes."""
