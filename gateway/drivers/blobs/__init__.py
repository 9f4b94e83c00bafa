"""Stores of blobs: the bytes of uploaded files and of answers."""
