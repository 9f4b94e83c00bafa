"""What the CLI, a URL query and the control endpoint may say, and what they are told when it is wrong."""

from __future__ import annotations

import orjson
import pytest

from gateway.emulator.config import (
    CONNECTION_FAULTS,
    FAULTS,
    EmulatedLimits,
    EmulatorConfig,
    Fault,
    FaultRule,
    parse_rule,
    parse_script_entry,
)
from tests.rows import rows


def test_flags_as_the_command_line_gives_them_are_read() -> None:
    """Strings, short names, dashes and absent values."""
    config = EmulatorConfig.from_mapping(
        {
            "ttft": "0.3",
            "tokens-per-second": "60",
            "rpm": "500",
            "tpm": 30000,
            "dialect": "openai",
            "seed": "1",
            "fault": ["e500=0.1", "cut=0.05;after_chunks=3;from_s=10;to_s=20"],
            "models": "a, b",
            "api_key": None,
        }
    )

    assert (config.ttft_s, config.tokens_per_second, config.rpm, config.tpm, config.seed) == (0.3, 60.0, 500, 30000, 1)
    assert config.models == ("a", "b")
    assert config.api_key is None
    assert config.faults == (
        FaultRule(Fault("e500"), probability=0.1),
        FaultRule(Fault("cut", after_chunks=3), probability=0.05, from_s=10.0, to_s=20.0),
    )


def test_every_problem_is_told_at_once_and_names_its_field() -> None:
    """One line per problem."""
    with pytest.raises(ValueError) as caught:
        EmulatorConfig.from_mapping(
            {"rpm": 0, "tpms": 5, "dialect": "openia", "fault": ["e500=2", "cuts"], "ttft": "soon", "seed": True}
        )

    lines = str(caught.value).splitlines()
    assert lines == [
        "rpm: expected a whole number from 1, got 0",
        "tpms: unknown field, did you mean tpm?",
        "dialect: expected one of openai, azure, anthropic, got 'openia'",
        "faults: [0] probability: expected a number from 0 to 1, got '2'",
        "faults: [1] fault: unknown fault 'cuts'; did you mean cut?",
        "ttft_s: expected a number from 0, got 'soon'",
        "seed: expected a whole number from 0, got True",
    ]


def test_a_config_laid_over_another_changes_only_what_it_names() -> None:
    """`none` removes an optional value, absence keeps it."""
    base = EmulatorConfig(rpm=10, tpm=20, ttft_s=1.0)

    changed = EmulatorConfig.from_mapping({"rpm": "none", "output_tokens": 5}, base)

    assert (changed.rpm, changed.tpm, changed.ttft_s, changed.output_tokens) == (None, 20, 1.0, 5)


def test_what_is_shown_can_be_read_back_and_holds_no_secret() -> None:
    """`to_mapping` and `from_mapping` are inverse, but for the key."""
    config = EmulatorConfig(
        rpm=5,
        models=("a",),
        api_key="sk-secret",
        faults=(
            FaultRule(Fault("cut", after_chunks=3), probability=0.5, to_s=9.0, model="a"),
            FaultRule(Fault("e401"), on_s=1.0, off_s=2.5, key="sk-one"),
        ),
        model_limits={"a": EmulatedLimits(rpm=1)},
    )

    shown = orjson.dumps(config.to_mapping())

    assert b"sk-secret" not in shown
    values = {name: value for name, value in orjson.loads(shown).items() if value is not None}
    assert EmulatorConfig.from_mapping(values, EmulatorConfig(api_key="sk-secret")) == config


def test_output_limits_belong_to_the_anthropic_dialect() -> None:
    """Elsewhere they would be silently without effect."""
    assert EmulatorConfig.from_mapping({"output_tpm": 5, "dialect": "anthropic"}).output_tpm == 5
    with pytest.raises(ValueError, match="output_tpm: only the anthropic dialect"):
        EmulatorConfig.from_mapping({"output_tpm": 5})


@rows("kind", FAULTS)
def test_every_fault_can_be_asked_for_by_name_alone(kind: str) -> None:
    """Parameters have defaults; only what concerns the whole server is no single call's."""
    assert parse_rule(kind).fault.kind == kind
    if kind in CONNECTION_FAULTS:
        with pytest.raises(ValueError, match="concerns the whole server"):
            parse_script_entry(kind)
    else:
        assert parse_rule(kind) == FaultRule(parse_script_entry(kind) or Fault("ok"))
        assert parse_script_entry({"fault": kind}) == parse_script_entry(kind)


@rows(
    ("value", "message"),
    [
        (5, "fault: expected a string or an object, got int"),
        ({}, "fault: unknown fault None"),
        ({"fault": ["cut"]}, "fault: unknown fault ['cut']"),
        ("e500;after_chunks=1", "after_chunks: e500 does not take it"),
        ("cut;seconds=1", "seconds: cut does not take it"),
        ("cut;after_chunks=1.5", "after_chunks: expected a whole number"),
        ("cut;after_chunk=1", "after_chunk: unknown field of a fault"),
        ("e500;from_s=5;to_s=5", "to_s: 5 is not after from_s 5"),
        ({"fault": "cut", "model": 3}, "model: expected a string, got int"),
        ({"fault": "e401", "key": 3}, "key: expected a string, got int"),
        ("e500;on_s=1", "off_s: on_s and off_s go together"),
        ("e500;off_s=1", "on_s: on_s and off_s go together"),
        ("e500;on_s=0;off_s=1", "on_s: expected a number from 0.001"),
        ("refuse=0.5", "probability: refuse concerns the whole server"),
        ("blackhole;model=a", "model: blackhole concerns the whole server"),
        ("refuse;key=a", "key: refuse concerns the whole server"),
    ],
)
def test_a_bad_fault_is_told_by_its_field(value: object, message: str) -> None:
    """The message starts with the field."""
    with pytest.raises(ValueError) as caught:
        parse_rule(value)

    assert str(caught.value).startswith(message)


def test_a_script_entry_is_unconditional() -> None:
    """A probability in a script would make its order meaningless."""
    assert parse_script_entry("ok") is None
    with pytest.raises(ValueError, match="probability: a script entry is unconditional"):
        parse_script_entry("e500=0.5")
