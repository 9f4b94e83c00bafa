"""Stores of jobs."""
