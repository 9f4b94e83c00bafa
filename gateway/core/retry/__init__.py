"""Retries: what follows a failure, what that may cost, and in which order targets are tried."""
