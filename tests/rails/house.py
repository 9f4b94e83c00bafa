"""Figures of the code's structure, from its syntax trees: who writes a call's fields, lone importers."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import Any

from tests.rails.trees import MODULES, all_imports_of, nodes_of, tree_of

OTHER_CALLS = ("gateway.emulator", "gateway.dialects")
"""Places where `call` means something else."""


def measure() -> dict[str, Any]:
    """Return the figures; each is better the smaller it is."""
    return {
        "call fields": call_fields(),
        "modules with one importer": sum(len(users) == 1 for users in importers().values()),
    }


def call_fields() -> dict[str, list[str]]:
    """Return the fields of `Call`, each with the modules that assign it once the call was made."""
    [made] = [
        node for node in tree_of("gateway.core.call").body if isinstance(node, ast.ClassDef) and node.name == "Call"
    ]
    names = [
        node.target.id for node in made.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    writers: dict[str, set[str]] = {name: set() for name in names}
    for module in MODULES:
        if not module.startswith(OTHER_CALLS):
            for node in nodes_of(module):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in writers:
                    writers[node.attr] |= {module} if _is_call(node.value) else set()
    return {name: sorted(modules) for name, modules in sorted(writers.items())}


def importers() -> dict[str, set[str]]:
    """Return the modules that import each module; packages' `__init__` files are left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in MODULES:
        for name in {name for name in all_imports_of(module) if name in MODULES}:
            found[name].add(module)
    return found


def _is_call(node: ast.expr) -> bool:
    """Whether an expression is named as calls are: `call`, `shared.call`, `original`."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in ("call", "original", "leader", "copy")
