"""The compiled policy, and the route plan of a key's calls to a model."""
