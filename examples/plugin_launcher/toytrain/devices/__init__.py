"""Devices on which toytrain runs: one YAML file each."""
