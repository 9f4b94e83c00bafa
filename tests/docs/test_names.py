"""Files that documents, docstrings and comments name are there: whoever follows a name finds it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".yaml", ".yml", ".lua", ".toml", ".service", ".example", ".cfg", ""}
LEFT_OUT = ("tests/bench/results", "tests/docs/test_names.py")
ABOVE = ("", "gateway", "gateway/core", "gateway/features", "gateway/products", "policies")
"""A path may begin in one of these, or in a folder that the file itself is in."""
FOREIGN = {"_api_client.py", "lib/_parse/_transform.py", "responses_server_event.py", "responses_client_event.py"}
"""Files of vendors' SDKs, named as sources."""
MODULE = re.compile(r"(?<![\w./:@-])([A-Za-z_][\w/]*\.(?:py|lua))\b")
FOLDER = re.compile(
    r"`((?:core|features|products|drivers|fleet|tests|gateway|flow|ingress|upstream|store|job_ports|policy)(?:/\w+)*/)`"
)
DOTTED = re.compile(r"`(gateway(?:\.\w+)+)`")


def test_files_that_are_named_are_there() -> None:
    """Modules and scripts by their path, folders of the gateway in backticks, and dotted names."""
    missing = [
        f"{path}:{number}: {name}"
        for path in map(Path, _files())
        for number, line in _prose(ROOT / path)
        for name in _names(line)
        if not _is_there(name, path)
    ]

    assert missing == []


def _files() -> list[str]:
    found = [
        str(path.relative_to(ROOT))
        for top in (
            "gateway",
            "docs",
            "deploy",
            "policies",
            "tests",
            "README.md",
            "config.example.yaml",
            "pyproject.toml",
        )
        for path in ([ROOT / top] if (ROOT / top).is_file() else (ROOT / top).rglob("*"))
        if path.suffix in SUFFIXES and path.is_file()
    ]
    return [name for name in found if not name.startswith(LEFT_OUT)]


def _names(line: str) -> list[str]:
    return [*MODULE.findall(line), *FOLDER.findall(line), *DOTTED.findall(line)]


def _is_there(name: str, path: Path) -> bool:
    if name in FOREIGN or name.startswith("gateway.db"):  # the state file in examples
        return True
    if name.endswith(".lua"):
        return any(script.match(name) for script in (ROOT / "gateway").rglob("*.lua"))
    if name.startswith("gateway."):
        return _is_module_or_member(name)
    return any((ROOT / above / name).exists() for above in (*map(Path, ABOVE), path.parent, *path.parent.parents))


def _is_module_or_member(name: str) -> bool:
    """Whether it is a package or a module, or a name in a module."""
    *above, last = name.split(".")
    whole, parent = ROOT.joinpath(*above, last), ROOT.joinpath(*above)
    if whole.is_dir() or whole.with_suffix(".py").exists():
        return True
    module = parent.with_suffix(".py")
    return module.exists() and re.search(rf"\b{re.escape(last)}\b", module.read_text()) is not None


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a document; of code its comments and docstrings, with their numbers."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from enumerate(node.value.value.splitlines(), node.lineno)
