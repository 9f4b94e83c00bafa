"""The connection to Redis: commands, deadlines and scripts."""
