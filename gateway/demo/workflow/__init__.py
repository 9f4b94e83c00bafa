"""The scenario of a workflow whose program and gateway are killed on the way."""
