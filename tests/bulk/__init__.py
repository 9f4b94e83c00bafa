"""Bulk programs that other people wrote, straight at a provider in trouble and through the gateway: `python -m tests.bulk`."""
