"""python -m gateway.features.output.child CPU_S MEMORY_BYTES SCHEMA_BYTES

A schema and a text on stdin, the verdict on stdout."""

from __future__ import annotations

import resource
import sys

import orjson

from gateway.drivers.json_schema import compile_schema
from gateway.features.output.rules import NO_JSON


def main() -> None:
    """Prints whether the text is valid, and on a second line where it is not."""
    cpu_s, memory_bytes, schema_bytes = map(int, sys.argv[1:])
    given = sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    schema, text = compile_schema(given[:schema_bytes]), given[schema_bytes:]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        _write(False)
        _write(NO_JSON)
        return
    is_valid = schema.accepts(value)
    _write(is_valid)
    if not is_valid:
        _write(schema.first_error(value))


def _write(what: object) -> None:
    sys.stdout.buffer.write(orjson.dumps(what) + b"\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
