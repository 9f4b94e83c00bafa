"""Objects that providers keep, each visible to the tenant that created it only."""
