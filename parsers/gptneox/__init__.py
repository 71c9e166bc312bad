"""gpt-neox: YAML files of its own keys, which DeepSpeed's pipeline runs."""
