"""The commands `gateway runs`: runs and workflows listed and shown."""
