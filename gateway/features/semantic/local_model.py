"""Embeddings from disk, without network: a folder with `model.safetensors` and `tokenizer.json`.

The model is a static one (WordLlama, model2vec and the like): one matrix with a row for each token; a text's vector is the mean
of the rows of its tokens, brought to length 1. The matrix is mapped into memory, so that only what is used is read. It
must not know calls or caches. Needs numpy and tokenizers (the extra `local-embeddings`). Invariant: whatever is wrong with
the files is told when they are opened; a text is embedded or has no tokens, and nothing else can happen.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections.abc import Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from numpy import float32
    from numpy.typing import NDArray

    from gateway.core.call import Call

MODEL, TOKENIZER = "model.safetensors", "tokenizer.json"
NOT_INSTALLED = (
    "a local embedding model needs the Python package {package}, which is not installed "
    "(the extra local-embeddings: pip install 'llm-gateway-sidecar[local-embeddings]')"
)
AT_ONCE_CHARS = 200
"""A longer text would hold up the event loop for more than 0.5 ms, so it goes to a thread."""

_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_MAX_HEADER_BYTES = 1 << 20


class LocalEmbedder:
    """An `Embedder` in this process."""

    def __init__(self, folder: str | Path) -> None:
        """Raises ImportError without its packages, ValueError when the files are not a model of this kind."""
        # Keep in step with features/semantic/index.py: whoever is first imports numpy.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        self._np = _package("numpy")
        self._matrix, self._is_bfloat = _open_matrix(self._np, Path(folder) / MODEL)
        self._tokenizer = _open_tokenizer(_package("tokenizers"), Path(folder) / TOKENIZER)
        tokens = max(self._tokenizer.get_vocab().values(), default=-1) + 1
        if tokens > len(self._matrix):
            raise ValueError(
                f"{folder}: {TOKENIZER} has {tokens} tokens, but {MODEL} only {len(self._matrix)} rows: "
                "they are not of the same model"
            )

    @property
    def dimensions(self) -> int:
        """The dimensions of every vector."""
        return int(self._matrix.shape[1])

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        """Returns the vector of a text; None when it has no tokens. A long text is embedded off the event loop."""
        if len(text) <= AT_ONCE_CHARS:
            return self.embed_now(text)
        return await asyncio.get_running_loop().run_in_executor(None, self.embed_now, text)

    def embed_now(self, text: str) -> array[float] | None:
        """Does the same as `embed`, in any thread."""
        np = self._np
        tokens = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids
        if not tokens:
            return None
        mean = self._rows(tokens).mean(axis=0)
        length = float(np.linalg.norm(mean))
        return array("f", (mean / length).tobytes()) if 0.0 < length < float("inf") else None

    def _rows(self, tokens: list[int]) -> NDArray[float32]:
        np = self._np
        rows: Any = self._matrix[tokens]
        if self._is_bfloat:  # the upper half of a float32
            return (rows.astype(np.uint32) << 16).view(np.float32)  # type: ignore[no-any-return]  # numpy comes as Any: it is loaded late
        return rows.astype(np.float32)  # type: ignore[no-any-return]  # numpy comes as Any: it is loaded late


def _package(name: str) -> Any:
    try:
        return import_module(name)  # an extra: nothing else needs it
    except ImportError as error:
        raise ImportError(NOT_INSTALLED.format(package=name)) from error


def _open_tokenizer(tokenizers: Any, path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing more particular
        raise ValueError(f"{path} is not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _open_matrix(np: Any, path: Path) -> tuple[Any, bool]:
    """Returns the file's only tensor, mapped, and whether it is of bfloat16. Raises ValueError.

    The format: 8 bytes with the length of the header, little-endian; the header, JSON; then the numbers, row by row.
    Source: https://github.com/huggingface/safetensors, README, "Format".
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    name, kind, shape, (start, end) = _only_tensor(path, header, length)
    dtype = np.dtype(_TYPES[kind])
    if end - start != prod(shape) * dtype.itemsize or 8 + length + end > size:
        raise ValueError(f"{path} is damaged or cut short: the tensor {name} does not fit into it")
    return np.memmap(path, dtype, "r", 8 + length + start, tuple(shape)), kind == "BF16"


def _only_tensor(path: Path, header: bytes, length: int) -> tuple[str, str, list[int], tuple[int, int]]:
    """Returns the tensor's name, type, shape, and the offsets of its begin and end behind the header. Raises ValueError."""
    try:
        if len(header) < length:
            raise ValueError("the header is cut short")
        tensors = {name: dict(fields) for name, fields in orjson.loads(header).items() if name != "__metadata__"}
        fields = [(n, str(t["dtype"]), [int(d) for d in t["shape"]], t["data_offsets"]) for n, t in tensors.items()]
        found = [(name, kind, shape, (int(start), int(end))) for name, kind, shape, (start, end) in fields]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    if len(found) != 1:
        shown = ", ".join(sorted(tensors)[:5]) or "none"
        raise ValueError(f"{path} must hold one tensor, a row for each token; it has {len(found)}: {shown}")
    name, kind, shape, offsets = found[0]
    if len(shape) != 2 or min(shape) < 1 or kind not in _TYPES or min(offsets) < 0:
        raise ValueError(f"{path}: the tensor {name} must be a matrix of {', '.join(_TYPES)}, not {kind} {shape}")
    return found[0]
