"""The commands for declared pipelines."""
