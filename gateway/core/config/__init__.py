"""Compiles YAML into one frozen `PolicySnapshot`: the only place that knows pydantic, yaml, the price list and tiktoken.

`load.load_snapshot` reads and compiles, `reload.Reloader` does it again when a file changes, `describe.describe` shows
the result without its secrets. Invariant: a config either compiles whole or raises `ConfigError` with every problem.

The policy files: each module has the name of the YAML file that it reads.

Providers of the config: where they are, what they are shown for a credential, whose they are.

The sections of the config file, one module each."""
