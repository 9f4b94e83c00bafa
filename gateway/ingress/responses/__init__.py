"""Responses that the gateway keeps, or runs in the background, as callers meet them."""
