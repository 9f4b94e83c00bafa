"""Declared pipelines: what a plan says, and what is to be done next in a run of it."""
