"""Objects that providers keep, and the tenants that own them."""
