"""The policy files: each module has the name of the YAML file that it reads."""
