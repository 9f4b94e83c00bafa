"""What would happen to a request, and what an error means, told without sending anything."""
