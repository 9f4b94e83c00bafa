"""The address, credential and headers of a target put on each request, and secrets masked in each answer."""
