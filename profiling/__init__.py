"""From profiles to ratios: kernels matched to the schedule that is known, and measured between matching points."""
