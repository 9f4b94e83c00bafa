"""Several processes on one port: `gateway serve --workers N`."""
