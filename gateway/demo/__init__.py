"""`gateway demo`: the same storm of calls twice, straight at a provider and through the gateway, measured and shown.

Scenario (`storm.py`, `stage.py`, `clients.py`) and presentation (`display.py`, `table.py`, `chart.py`) meet only in `run.py`,
the record of what happened. Invariant: every number shown was measured in this run.
"""
