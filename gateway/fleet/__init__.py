"""The fleet: what replicas lease, tell each other and take turns at."""
