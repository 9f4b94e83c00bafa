"""The fleet: a replica's part of limits and sums that all replicas share."""
