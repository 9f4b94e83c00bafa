"""The check of answers around the attempts of a call."""
