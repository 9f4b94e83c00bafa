"""`/v1/responses`, where the gateway stores what it answers."""
