"""Local page: what-if questions about a job, answered at once, and solved on request."""
