"""The modules of the gateway as syntax trees, and what each of them imports. Nothing is imported to find out."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("gateway/**/*.py")}
"""The file of each module, by its dotted name; a package is `gateway.core.__init__`."""


@cache
def tree_of(module: str) -> ast.Module:
    """Parse a module."""
    return ast.parse(MODULES[module].read_text())


def nodes_of(module: str) -> list[ast.AST]:
    """Return the nodes of a module, without those that only a type checker sees."""
    return _split(module)[0]


def imports_of(module: str) -> list[str]:
    """Return the modules that a module imports when it runs."""
    return [name for node in nodes_of(module) for name in imported(node)]


def all_imports_of(module: str) -> list[str]:
    """Return the modules that a module imports, for type checking only included."""
    for_typing = [node for top in _split(module)[1] for node in ast.walk(top)]
    return [*imports_of(module), *(name for node in for_typing for name in imported(node))]


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports: `from gateway.core import call` imports `gateway.core.call`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES or f"{name}.__init__" in MODULES else str(node.module) for name in names]
    return []


@cache
def _split(module: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return the nodes of a module that run, and the `if TYPE_CHECKING` statements."""
    nodes: list[ast.AST] = []
    for_typing: list[ast.AST] = []
    left: list[ast.AST] = [tree_of(module)]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if _is_for_typing(child):
                for_typing.append(child)
            else:
                nodes.append(child)
                left.append(child)
    return nodes, for_typing


def _is_for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
