"""Runs of declared pipelines: begun, advanced whenever one of their steps has ended, and answered."""
