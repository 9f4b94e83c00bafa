"""Providers' own Batch APIs, each as its vendor has made it."""
