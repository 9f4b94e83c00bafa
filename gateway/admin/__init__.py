"""The admin API, health checks and metrics: what operators and their machines read and switch."""
