"""The local page: what if the job ran otherwise, answered at once, and solved on request."""
