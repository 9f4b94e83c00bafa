"""The process that starts workers, watches them and replaces those that hang."""
