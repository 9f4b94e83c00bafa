"""A step that was paid for is answered again from its stored answer."""
