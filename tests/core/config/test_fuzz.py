"""Broken in any way, a config gives problems: never another exception, never a line that does not print."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.config.policies import policy_files
from gateway.core.errors import ConfigError
from gateway.sections import SECTIONS
from tests.core.config.test_secrets import FULL
from tests.support.configs import EXAMPLE, ROOT, load, with_policies

COPIES = 4 * settings().max_examples
SEEDS = (EXAMPLE.read_bytes(), FULL.encode())
SCRAPS = [
    b"\t",
    b"\n",
    b": ",
    b"- ",
    b"[",
    b"]",
    b"{",
    b"}",
    b"*",
    b"&a ",
    b"*a",
    b"!!int ",
    b"${",
    b"$",
    b"'",
    b'"',
    b"\xff",
    b"\0",
]
SCRAPS += [b"~", b"1e999", b"\xe2\x80\xa8", b"---\n", b"<<: ", b"#", b"|", b">", b"%", b"@", b"- - - ", b"? ", b"env.X"]

JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    float("inf"),
    float("nan"),
    "",
    "x",
    "${",
    "${X}",
    "*",
    "\0",
    "é\u2028",
]
JUNK += [[], [None], {}, {"x": None}, [[1]], "a" * 5000, "emulator://", "https://", "http://[", "sha256:", "1s", "1MB"]
JUNK += ["redis://", "redis://[", "rediss://a:b@c,d/e/f?g#h", "redis+cluster://[::1]:1,x", ["rpm"]]


def problems_in(raw: bytes) -> list[str]:
    """The problems of a config with these bytes; any other exception fails the test."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_bytes(raw)
        return problems_of_file(path)


def problems_of_file(path: Path) -> list[str]:
    """The problems of the config at `path`."""
    try:
        load(path, {"X": "1\ud800", "OPENAI_API_KEY": ""})
    except ConfigError as error:
        return error.problems or ["a ConfigError without a problem\n"]
    return []


def loads_or_says_why(raw: bytes) -> None:
    """The property itself."""
    assert [line for line in problems_in(raw) if not line.isprintable()] == []


def mutate(raw: bytes, rng: random.Random) -> bytes:
    """A few cuts, copies and scraps at random places."""
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.randrange(len(raw) + 1) for _ in range(2))
        end = min(end, start + 40)
        match rng.randrange(4):
            case 0:
                raw = raw[:start] + raw[end:]
            case 1:
                raw = raw[:end] + raw[start:end] + raw[end:]
            case 2:
                raw = raw[:start] + rng.choice(SCRAPS) + raw[start:]
            case _:
                raw = raw[:start] + rng.randbytes(rng.randint(1, 3)) + raw[start + 1 :]
    return raw


def test_mutated_text_never_raises_anything_else() -> None:
    """Damaged copies of real configs."""
    rng = random.Random(2)

    for _ in range(COPIES):
        loads_or_says_why(mutate(rng.choice(SEEDS), rng))


def replace_somewhere(value: Any, rng: random.Random) -> Any:
    """The same data with one thing in it replaced by junk, at any depth."""
    if rng.random() < 0.2 or not isinstance(value, (dict, list)) or not value:
        return rng.choice(JUNK)
    if isinstance(value, list):
        spot = rng.randrange(len(value))
        return [replace_somewhere(item, rng) if index == spot else item for index, item in enumerate(value)]
    chosen = rng.choice(list(value))
    return {name: replace_somewhere(item, rng) if name == chosen else item for name, item in value.items()}


def test_junk_in_any_field_never_raises_anything_else() -> None:
    """Configs that are good YAML with the wrong thing somewhere."""
    rng = random.Random(3)
    good = [yaml.safe_load(seed) for seed in SEEDS]

    for _ in range(COPIES):
        data = rng.choice(good)
        for _ in range(rng.randint(1, 3)):
            data = replace_somewhere(data, rng)
        loads_or_says_why(yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass"))


def test_junk_in_a_policy_file_never_raises_anything_else(tmp_path: Path) -> None:
    """In the shipped files, which say everything there is to say."""
    rng = random.Random(4)
    good = {name: yaml.safe_load((ROOT / "policies" / name).read_text()) for name in policy_files(SECTIONS)}
    config = tmp_path / "c.yaml"
    config.write_text(with_policies(tmp_path))

    for _ in range(COPIES // 2):
        name = rng.choice(policy_files(SECTIONS))
        data = replace_somewhere(good[name], rng)
        text = yaml.safe_dump(data, allow_unicode=True).encode("utf-8", "surrogatepass")
        (tmp_path / "rules" / name).write_bytes(text)
        assert [line for line in problems_of_file(config) if not line.isprintable()] == []


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_never_raise_anything_else(raw: bytes) -> None:
    """Not even what is nowhere near a config."""
    loads_or_says_why(raw)
