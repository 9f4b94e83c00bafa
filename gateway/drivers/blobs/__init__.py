"""Blobs in a folder or in memory: the bytes of uploaded files and of answers."""
