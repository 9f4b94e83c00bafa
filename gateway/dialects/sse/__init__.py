"""Events of streams, relayed errors, and the shapes of errors in each API."""
