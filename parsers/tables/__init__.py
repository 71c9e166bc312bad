"""Tables and logs that the tools exchange: candidates, memory profiles, ratios, worker logs."""
