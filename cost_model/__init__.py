"""Analytical model: parameters, memory and time of a layer, a stage, a step."""
