"""`gateway demo`: the same storm of calls twice, straight at a provider and through the gateway, measured and shown.

Scenario (`storm.py`, `outage.py`, `stage.py`, `clients.py`) and presentation (`show.py`, `chart.py`) share only the
measurements of `record.py`. Invariant: every number shown was measured in this run."""
