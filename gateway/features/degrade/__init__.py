"""Calls to a model that has become slow ask for less."""
