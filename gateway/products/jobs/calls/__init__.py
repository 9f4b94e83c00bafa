"""The calls that jobs make, and the ports through which they make them."""
