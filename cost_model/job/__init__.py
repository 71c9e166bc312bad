"""The job as the model sees it: strategy, parameters, layers of other kinds."""
