"""The store in this process's memory.

The link to Redis: connections, deadlines, health, and which server has which key.

The store in one SQLite file."""
