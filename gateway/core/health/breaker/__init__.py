"""The circuit breaker: closed, open, half-open, with pybreaker holding the state."""
