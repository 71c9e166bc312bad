"""The exact search of one outer choice: a strategy for every layer and the division at once, with a proven gap."""
