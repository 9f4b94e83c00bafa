"""Compiles targets from their entries, and the clocks of `timeouts.yaml`."""
