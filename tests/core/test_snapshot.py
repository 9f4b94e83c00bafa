"""The compiled policy: which entry serves a model, whose a secret is."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from fnmatch import translate
from hashlib import sha256

import pytest

from gateway.core.snapshot import Key, Model, Policies, PolicySnapshot, Setting, no_rates, with_settings
from gateway.core.types import Server
from tests.rows import rows


def entry(name: str) -> Model:
    return Model(name, (), ())


def key(name: str, secret: bytes) -> Key:
    return Key(name, name, sha256(secret).digest())


def snapshot(
    models: tuple[str, ...] = (), patterns: tuple[str, ...] = (), keys: tuple[Key, ...] = ()
) -> PolicySnapshot:
    """A snapshot with these entries; patterns longest first, as the config compiles them."""
    longest_first = sorted(patterns, key=len, reverse=True)
    return PolicySnapshot(
        version=1,
        digest="d",
        loaded_at=0.0,
        files=(),
        server=Server(),
        providers={},
        models={name: entry(name) for name in models},
        patterns=tuple((re.compile(translate(pattern)), entry(pattern)) for pattern in longest_first),
        keys={key.digest: key for key in keys},
        anonymous=Key("anonymous", "anonymous", b""),
        lane_deadline_s={"interactive": 30.0, "batch": 600.0, "background": 21600.0},
    )


@rows(
    ("asked", "served_by"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-mini", "gpt-4o-*"),
        ("gpt-4.1", "gpt-*"),
        ("claude", "*"),
        ("", "*"),
        ("gpt-4o-\n", "gpt-4o-*"),
        ("GPT-4o", "*"),
    ],
)
def test_the_exact_name_wins_then_the_longest_pattern(asked: str, served_by: str) -> None:
    """As the config's page says; names are told apart by case."""
    policy = snapshot(("gpt-4o",), ("*", "gpt-*", "gpt-4o-*"))

    found = policy.find_model(asked)

    assert found is not None
    assert found.name == served_by


def test_a_name_that_nothing_matches_is_not_served() -> None:
    """A pattern has to match the whole name."""
    policy = snapshot(("gpt-4o",), ("gpt-4o-?",))

    assert [policy.find_model(name) for name in ("gpt-4", "gpt-4o-", "gpt-4o-ab", "x-gpt-4o-a")] == [None] * 4


def test_a_pattern_written_as_a_name_is_no_name() -> None:
    """The pattern itself may be asked for like any other name it matches."""
    found = snapshot((), ("gpt-*",)).find_model("gpt-*")

    assert found is not None
    assert found.name == "gpt-*"


def test_a_key_is_found_by_its_secret_only() -> None:
    """Not by its digest, a part of it, or nothing."""
    web, night = key("web", b"sk-web"), key("night", b"sk-night")
    policy = snapshot(keys=(web, night))

    assert policy.find_key(b"sk-web") is web
    assert policy.find_key(b"sk-night") is night
    for secret in (b"", b"sk-we", b"sk-web ", b"SK-WEB", web.digest, web.digest.hex().encode(), b"\xff" * 1000):
        assert policy.find_key(secret) is None


def test_a_call_keeps_the_snapshot_it_came_in_with() -> None:
    """A snapshot cannot change; a swap puts another one in its place."""
    first = snapshot()
    policies = Policies(first)
    held = policies.current

    policies.current = replace(first, version=2)

    assert held.version == 1
    with pytest.raises(FrozenInstanceError):
        held.version = 3  # type: ignore[misc]  # that it cannot be done is the point


def test_no_secret_is_shown_when_a_snapshot_is_printed() -> None:
    """Neither a key's digest nor the table of them."""
    policy = snapshot(keys=(key("web", b"sk-web"),))

    assert repr(sha256(b"sk-web").digest()) not in repr(policy) + repr(policy.keys.values())


def test_without_rates_nothing_is_priced() -> None:
    """Not priced is not free."""
    assert no_rates("gpt-4o") is None


def test_a_setting_is_read_from_a_model_a_key_and_the_snapshot() -> None:
    """Each holder has its own value; what is not set there is the default, and the holder before is as it was."""
    limit: Setting[int] = Setting("limit", 1)
    other: Setting[int] = Setting("limit", 1)
    bare = snapshot()

    for holder in (entry("gpt-4o"), key("app", b"secret"), bare):
        changed = with_settings(holder, {limit: 2})

        assert (limit.of(holder), limit.of(changed), other.of(changed)) == (1, 2, 1)
        assert limit not in holder.settings
        assert changed != holder


def test_holders_with_equal_settings_are_equal() -> None:
    """Whether they were set to the usual value or never, in one step or several, in whichever order."""
    limit: Setting[int] = Setting("limit", 1)
    mode: Setting[str] = Setting("mode", "off")
    bare = entry("gpt-4o")

    assert with_settings(bare, {limit: 1, mode: "off"}) == bare
    assert with_settings(with_settings(bare, {limit: 2}), {limit: 1}) == bare
    assert with_settings(with_settings(bare, {mode: "on"}), {limit: 2}) == with_settings(bare, {limit: 2, mode: "on"})
    assert hash(with_settings(key("app", b"secret"), {limit: 2})) == hash(key("app", b"secret"))
