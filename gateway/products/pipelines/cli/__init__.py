"""The commands `gateway pipelines`: plans checked and explained, one run from a file."""
