"""Webhooks: the ends of jobs delivered to the URLs that want them."""
