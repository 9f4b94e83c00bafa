"""The process that the gateway runs in: its memory, its interpreter."""
