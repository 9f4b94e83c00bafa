"""What replicas share over Redis: leases of limits, health reports, turns at probing."""
