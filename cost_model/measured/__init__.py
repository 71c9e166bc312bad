"""Measured costs: tables of hardware, layer times and layer memory, laws fitted to them, and costs by strategy."""
