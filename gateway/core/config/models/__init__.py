"""The models of the config, the plans of their targets and fallbacks, and `models.yaml`."""
