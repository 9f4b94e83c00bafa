"""The scenarios of a storm of calls and of an outage, and the clients that make them."""
