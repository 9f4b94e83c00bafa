"""What providers do not write down for us: told by headers and errors, or found out from refusals and latency.

Limits: what may go to a target now, and what its answers teach about what it allows."""
