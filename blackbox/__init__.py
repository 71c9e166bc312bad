"""A model of a training that nothing is known of but its small runs: laws of sizes, operators, times, memory."""
