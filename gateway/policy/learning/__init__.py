"""What providers do not write down for us: told by headers and errors, or found out from refusals and latency."""
