"""Calls to declared pipelines at the edge.

Runs of declared pipelines: begun, advanced whenever one of their steps has ended, and answered.

Declared pipelines: what a plan says, and what is to be done next in a run of it."""
