"""Webhooks: the ends of jobs are told to those who asked to hear of them."""
