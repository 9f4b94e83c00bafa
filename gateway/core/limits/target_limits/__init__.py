"""The limits, pauses and breaker of one target, and what stays of targets that nobody uses."""
