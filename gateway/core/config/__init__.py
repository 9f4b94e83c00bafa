"""Compiles the YAML files into one frozen `PolicySnapshot`, or raises `ConfigError` with every problem."""
