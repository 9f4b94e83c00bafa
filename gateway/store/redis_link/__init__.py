"""The link to Redis: connections, deadlines, health, and which server has which key."""
