"""How large a replica's lease of a shared limit is, by the demand of all."""
