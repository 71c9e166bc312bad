"""Launcher, device and schedule of toytrain, for Taylor."""
