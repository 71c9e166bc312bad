"""What a model and a device are: their specifications, the built-in ones, and a user's own."""
