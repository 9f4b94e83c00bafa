"""The runs that calls are parts of: counted as calls settle, bounded, and a fuse for those that run away."""
