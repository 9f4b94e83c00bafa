"""The health of one target: what was seen here, and what peers report."""
