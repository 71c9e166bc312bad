"""Time of collectives by volume, group and link."""
