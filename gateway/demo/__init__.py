"""`gateway demo`: the same load straight to a provider and through the gateway, measured and shown.

Invariant: every number shown was measured in this run.
"""
