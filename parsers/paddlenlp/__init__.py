"""PaddleNLP, as shell scripts start its trainer, with a strategy of Galvatron for every layer or one for all."""
