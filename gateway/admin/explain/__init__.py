"""What would happen to a request, and what a provider's error means, without sending anything."""
