"""The ports of durable work, a module each: implemented in `store/`, wired together in `wiring.py`."""
