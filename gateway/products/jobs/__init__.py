"""Durable jobs: accepted, stored, claimed and run, whichever process dies."""
