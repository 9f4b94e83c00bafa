"""The benchmark: `make bench`. See README.md in this folder."""
