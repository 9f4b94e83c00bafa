"""Embeddings from disk: the mean of the tokens' rows, and clear words about files that are not a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from gateway.core.call import Call
from gateway.features.semantic.local_model import AT_ONCE_CHARS, LocalEmbedder

WORDS = {"[UNK]": 0, "north": 1, "east": 2, "up": 3, "south": 4}
ROWS = [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.5], [0.0, -2.0, 0.0]]
NOBODY = cast(Call, None)
"""A local model asks nobody on whose behalf it is asked."""


def safetensors(**tensors: tuple[str, Any]) -> bytes:
    """A file of these tensors, each given by its type and numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (kind, values) in tensors.items():
        raw = values.tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    told = orjson.dumps(header)
    told += b" " * (-len(told) % 8)
    return len(told).to_bytes(8, "little") + told + data


def matrix(kind: str = "F32") -> tuple[str, Any]:
    """The model's rows in one of the formats."""
    rows = np.asarray(ROWS, np.float32)
    if kind == "BF16":
        return kind, (rows.view(np.uint32) >> 16).astype(np.uint16)
    return kind, rows.astype({"F32": np.float32, "F16": np.float16, "I32": np.int32}[kind])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of four words."""
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.safetensors").write_bytes(safetensors(**{"embedding.weight": matrix()}))
    return tmp_path


def unit(*values: float) -> Any:
    """The vector of length 1 with this direction."""
    return pytest.approx(np.asarray(values) / np.linalg.norm(values), abs=1e-6)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
async def test_a_text_has_the_mean_of_its_tokens(folder: Path, kind: str) -> None:
    """Brought to length 1; whatever the matrix is kept as, and whatever the file says of padding and truncation."""
    (folder / "model.safetensors").write_bytes(safetensors(embeddings=matrix(kind)))
    model = LocalEmbedder(folder)

    assert model.dimensions == 3
    assert await model.embed("north east up", NOBODY) == unit(4.0, 2.0, 0.5)
    assert await model.embed("east", NOBODY) == unit(1.0, 0.0, 0.0)


async def test_a_long_text_is_embedded_off_the_loop(folder: Path) -> None:
    """With the same result."""
    model = LocalEmbedder(folder)

    assert await model.embed("north east " * AT_ONCE_CHARS, NOBODY) == unit(4.0, 2.0, 0.0)


@pytest.mark.parametrize("text", ["", "  ", "unheard", "north south"])
async def test_a_text_without_meaning_has_no_vector(folder: Path, text: str) -> None:
    """No tokens, tokens without a direction, or directions that cancel each other."""
    assert await LocalEmbedder(folder).embed(text, NOBODY) is None


@given(text=st.text(max_size=50))
def test_any_text_can_be_asked_for(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Lone surrogates, zeros and all: JSON can carry them."""
    folder = tmp_path_factory.getbasetemp() / "any"
    if not folder.exists():
        folder.mkdir()
        Tokenizer(WordLevel(WORDS, unk_token="[UNK]")).save(str(folder / "tokenizer.json"))
        (folder / "model.safetensors").write_bytes(safetensors(embeddings=matrix()))

    vector = LocalEmbedder(folder).embed_now(text + " \ud800 north")

    assert vector is None or len(vector) == 3


Damage = Callable[[Path], object]
BROKEN: dict[str, tuple[Damage, str]] = {
    "no model": (lambda f: (f / "model.safetensors").unlink(), "cannot read .*model.safetensors: No such file"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "there is no file .*tokenizer.json"),
    "odd tokenizer": (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json is not a tokenizer: "),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "it has 0: none|not a safetensors file"),
    "no header": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "the header is cut short"),
    "not JSON": (
        lambda f: (f / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"{{{{"),
        "is not a safetensors file",
    ),
    "not tensors": (
        lambda f: (f / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b'{"a": 1}'),
        "is not a safetensors file",
    ),
    "cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1]),
        "damaged or cut short: the tensor embedding.weight",
    ),
    "two tensors": (
        lambda f: (f / "model.safetensors").write_bytes(safetensors(embeddings=matrix(), weights=matrix())),
        "must hold one tensor, .* it has 2: embeddings, weights",
    ),
    "a list": (
        lambda f: (f / "model.safetensors").write_bytes(safetensors(embeddings=("F32", np.zeros(4, np.float32)))),
        r"must be a matrix of F32, F16, BF16, not F32 \[4\]",
    ),
    "whole numbers": (
        lambda f: (f / "model.safetensors").write_bytes(safetensors(embeddings=matrix("I32"))),
        "must be a matrix of F32, F16, BF16, not I32",
    ),
    "of another model": (
        lambda f: (f / "model.safetensors").write_bytes(safetensors(embeddings=("F32", np.ones((3, 2), np.float32)))),
        "has 5 tokens, but model.safetensors only 3 rows",
    ),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_files_that_are_no_model_are_refused(folder: Path, damage: str) -> None:
    """When they are opened, with words that name the file."""
    break_it, words = BROKEN[damage]
    break_it(folder)

    with pytest.raises(ValueError, match=words):
        LocalEmbedder(folder)


@pytest.mark.parametrize("package", ["numpy", "tokenizers"])
def test_without_its_packages_the_error_names_the_extra(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it knows what to install."""
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(ImportError, match=rf"the Python package {package}, .*llm-gateway-sidecar\[local-embeddings\]"):
        LocalEmbedder(folder)
