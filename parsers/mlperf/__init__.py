"""Configurations of MLPerf Training submissions: ``config_*.sh`` of the language models."""
