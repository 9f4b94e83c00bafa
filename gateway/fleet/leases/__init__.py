"""The leases of this replica, renewed in time, and whose turn it is to probe a target."""
