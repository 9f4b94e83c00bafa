"""`gateway check` and `gateway explain`: what a config means, without a running gateway."""
