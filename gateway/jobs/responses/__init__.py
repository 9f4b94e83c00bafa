"""Responses in the background, and kept: run into logs, read from them, and gone on from."""
