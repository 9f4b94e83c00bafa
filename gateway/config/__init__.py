"""Compiles YAML into one frozen `PolicySnapshot`: the only place that knows pydantic, yaml, the price list and tiktoken.

`load.load_snapshot` reads and compiles, `reload.Reloader` does it again when a file changes, `describe.describe` shows
the result without its secrets. Invariant: a config either compiles whole or raises `ConfigError` with every problem.
"""
