"""One call, from its first byte to its last: read `pipeline.py` first."""
