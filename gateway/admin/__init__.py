"""The admin API: health, metrics, what operators look at and switch."""
