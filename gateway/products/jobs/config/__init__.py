"""The section `jobs` of the config, and `jobs.yaml`."""
