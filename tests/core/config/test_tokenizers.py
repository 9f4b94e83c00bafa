"""Exact token counts: loaded at compile time or not at all, found by the model's name, quick for any text.

Against a stand-in for tiktoken, whose tokens are words; the package itself is an extra.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from gateway.admin.describe import describe
from gateway.core.config import admission
from gateway.core.snapshot import MAX_NAME_CHARS
from gateway.dialects.known import WHOLE_CHARS, load_tokenizers
from tests.support.configs import load_text, with_policies

KNOWN = {"gpt-4o": "o200k_base", "gpt-4": "cl100k_base"}


class Words:
    """An encoding with a token for every word; counts the texts it was asked for."""

    def __init__(self) -> None:
        self.longest = 0

    def encode_ordinary(self, text: str) -> list[str]:
        self.longest = max(self.longest, len(text))
        return text.split(" ")


Install = Callable[..., list[str]]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts the stand-in in place; returns the list of encodings that are loaded from then on."""

    def put(load: Callable[[str], object] | None = None) -> list[str]:
        loaded: list[str] = []

        def get_encoding(name: str) -> object:
            encoding = Words() if load is None else load(name)
            loaded.append(name)
            return encoding

        fake = SimpleNamespace(encoding_name_for_model=KNOWN.__getitem__, get_encoding=get_encoding)
        monkeypatch.setitem(sys.modules, "tiktoken", fake)
        monkeypatch.setattr(admission, "find_spec", lambda name: name)
        return loaded

    return put


def test_models_are_counted_by_the_encoding_of_their_name(install: Install) -> None:
    """Each encoding is loaded once, before anybody asks."""
    loaded = install()

    find, notices = load_tokenizers(["gpt-4o", "gpt-4", "gpt-4o"])

    assert loaded == ["cl100k_base", "o200k_base"]
    assert notices == ()
    count = find("gpt-4o")
    assert count is not None
    assert count("four words and more") == 4
    assert find("gpt-4") is not count
    assert loaded == ["cl100k_base", "o200k_base"]


def test_target_for_any_name_loads_the_encoding_of_current_models(install: Install) -> None:
    """A name that needs another one is not worth a stop for everybody: the heuristic counts it."""
    loaded = install()

    find, notices = load_tokenizers([None])

    assert (loaded, notices) == (["o200k_base"], ())
    assert find("gpt-4o") is not None
    assert find("gpt-4") is None
    assert find("who-knows") is None
    assert find("x" * (MAX_NAME_CHARS + 1)) is None


def test_model_that_nobody_knows_is_announced(install: Install) -> None:
    """And counted by the heuristic."""
    install()

    find, notices = load_tokenizers(["claude-x", "gpt-4o", "my-deployment"])

    assert find("claude-x") is None
    assert notices == ("no tokenizer is known for claude-x, my-deployment: the heuristic counts there",)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (ConnectionError("http://user:pw@proxy"), "ConnectionError"),
        (ValueError("hash mismatch"), "ValueError"),
    ],
)
def test_encoding_that_cannot_be_loaded_is_announced(install: Install, error: Exception, reason: str) -> None:
    """The others are used all the same; an error's own text may hold a secret."""

    def load(name: str) -> Words:
        if name == "cl100k_base":
            raise error
        return Words()

    install(load)

    find, notices = load_tokenizers(["gpt-4", "gpt-4o"])

    assert notices == (f"the tokenizer cl100k_base could not be loaded ({reason}): the heuristic counts instead",)
    assert find("gpt-4") is None
    assert find("gpt-4o") is not None


def test_network_that_does_not_answer_holds_up_nobody(install: Install) -> None:
    """The thread that waits for it is left behind, and what it brings later is not used."""
    answered, done = Event(), Event()

    def load(_name: str) -> Words:
        answered.wait()
        done.set()
        return Words()

    install(load)

    find, notices = load_tokenizers(["gpt-4o"], wait_s=0.0)
    answered.set()
    done.wait()

    assert notices == (
        "the tokenizer o200k_base could not be loaded (not there after 0 s): the heuristic counts instead",
    )
    assert find("gpt-4o") is None


def test_damaged_package_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, but not to be imported: half an installation, or one for another machine."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)

    find, notices = load_tokenizers(["gpt-4o"])

    assert find("gpt-4o") is None
    assert notices == ("the package tiktoken cannot be imported: the heuristic counts instead",)


def test_long_text_is_counted_by_samples(install: Install) -> None:
    """Whatever its length, only so many characters are looked at, and a uniform text keeps its count."""
    words = Words()
    install(lambda _name: words)
    count = load_tokenizers(["gpt-4o"]).find("gpt-4o")
    assert count is not None

    tokens = count("word " * 1_000_000)

    assert words.longest <= WHOLE_CHARS // 8
    assert abs(tokens - 1_000_000) < 5_000
    assert count("word " * (WHOLE_CHARS // 5)) == WHOLE_CHARS // 5 + 1
    assert count("") == 1


def test_exact_set_gives_its_targets_a_tokenizer(tmp_path: Path, install: Install) -> None:
    """Only the targets of models that pick it, and only their encodings are loaded."""
    loaded = install()
    text = with_policies(tmp_path, admission="exact: {tokenizer: exact}")
    text += "  old: {targets: [openai/gpt-4], admission: exact}\n"

    snapshot = load_text(tmp_path, text)

    assert loaded == ["cl100k_base"]
    find = snapshot.models["old"].targets[0].counting.exact_tokens
    assert find is not None
    assert find("gpt-4") is not None
    assert snapshot.models["gpt-4o"].targets[0].counting.exact_tokens is None
    shown = describe(snapshot)["models"]
    assert [shown[name]["targets"][0]["counting"]["tokenizer"] for name in ("gpt-4o", "old")] == ["heuristic", "exact"]


def test_exact_set_that_nobody_picks_loads_nothing(tmp_path: Path, install: Install) -> None:
    """Not even when the package is there."""
    loaded = install()

    load_text(tmp_path, with_policies(tmp_path, admission="exact: {tokenizer: exact}"))

    assert loaded == []


def test_failure_to_load_is_a_notice_of_the_config(tmp_path: Path, install: Install) -> None:
    """The config is good all the same."""

    def refuse(_name: str) -> Words:
        raise ConnectionError

    install(refuse)

    snapshot = load_text(tmp_path, with_policies(tmp_path, admission="default: {tokenizer: exact}"))

    assert snapshot.notices == (
        "the tokenizer o200k_base could not be loaded (ConnectionError): the heuristic counts instead",
    )
