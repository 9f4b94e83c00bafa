"""The house rules that a reader relies on: who imports whom, which package stays where, no hidden state.

Read from the syntax tree of every module; nothing is imported. Imports for type checking only are free.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("gateway/**/*.py")}

WORDS = {"words", "exchange", "errors", "provider_errors", "clock", "splice"}
CORE = WORDS | {"policy", "call", "ports", "job_ports"}
EDGES = {"ingress", "jobs", "config", "upstream", "store", "telemetry", "calllog", "settings", "emulator"}
EVERYTHING = CORE | {"flow", "semantic", "process"} | EDGES
ADAPTERS = {"upstream", "store", "telemetry", "calllog"}
MAY_IMPORT = {
    **dict.fromkeys(WORDS, WORDS),
    "policy": WORDS,
    "call": WORDS | {"policy"},
    "ports": WORDS | {"policy", "call"},
    "job_ports": WORDS | {"policy"},
    "flow": CORE | {"semantic", "dialects"},
    "semantic": CORE,
    "process": set(),
    "ingress": CORE | {"flow", "jobs", "dialects", "websocket"},
    "jobs": CORE | {"flow", "dialects"},
    "dialects": WORDS | {"policy"},
    "websocket": WORDS,
    "config": CORE | {"dialects"},
    "upstream": CORE | {"dialects", "websocket"},
    "store": CORE | {"process"},
    "telemetry": CORE | {"calllog"},
    "calllog": CORE,
    "settings": set(),
    "emulator": {"clock"},
    "housekeeping": EVERYTHING,
    "wiring": EVERYTHING,
    "app": EVERYTHING | {"wiring", "housekeeping"},
    "workers": {"app", "errors", "ingress", "policy", "process", "settings"},
    "demo": {"app", "emulator", "settings", "store", "upstream"},
    "cli": EVERYTHING | {"demo", "workers"},
    "__main__": {"cli"},
    "__init__": set(),
}
"""By the first part of a module's name below `gateway`; a module may always import its own part."""

ONLY_IN = {
    "starlette": {"ingress", "emulator", "app", "wiring"},
    "uvicorn": {"ingress", "emulator", "app"},
    "httpx": {"upstream", "demo"},
    "cryptography": {"upstream.credentials.google_jwt"},
    "httptools": {"upstream", "ingress"},
    "pydantic": {"config", "settings", "cli"},
    "pydantic_core": {"config", "settings"},
    "pydantic_settings": {"settings"},
    "yaml": {"config", "settings"},
    "genai_prices": {"config", "settings"},
    "prometheus_client": {"telemetry", "ingress.admin.operations", "workers"},
    "pybreaker": {"policy.health.circuit"},
    "redis": {"store"},
    "tiktoken": {"config"},
    "numpy": {"semantic.index", "semantic.local_model"},
    "tokenizers": {"semantic.local_model"},
    "sqlite3": {"store"},
    "standardwebhooks": {"jobs.webhooks.signing"},
    "websockets": {"websocket"},
    "jmespath": {"policy.pipelines.values.conditions"},
    "jsonschema_rs": {"policy.output.schema"},
}
NOT_IN_POLICY = {"asyncio", "time", "random", "secrets", "uuid", "datetime", "logging", "socket", "threading", "os"}
"""A decision gets time and draws as arguments, and does no I/O."""
POLICYS_DATA = {
    "gateway.policy.cloud_auth",
    "gateway.policy.process",
    "gateway.policy.runs.run",
    "gateway.policy.runs.workflow",
    "gateway.policy.runs.errors",
    "gateway.policy.runs.codec",
    "gateway.policy.runs.step",
    "gateway.policy.runs.step_errors",
    "gateway.policy.provider",
    "gateway.policy.snapshot",
    "gateway.policy.fleet.lease",
    "gateway.policy.fleet.shared_state",
    "gateway.policy.jobs.dead_letters",
    "gateway.policy.jobs.job",
    "gateway.policy.jobs.lines",
    "gateway.policy.jobs.stored_file",
    "gateway.policy.jobs.errors",
    "gateway.policy.responses.stored_response",
    "gateway.policy.native.message_batch",
    "gateway.policy.native.remote",
}
MOST_MODULES, MOST_LINES, MOST_CLASS_LINES = 16, 350, 250
MUTATORS = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def part_of(module: str) -> str:
    """`gateway.policy.openai.sse` is a part of `policy`."""
    return [*module.split("."), "__init__"][1]


def is_for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(node: ast.AST) -> list[str]:
    """The modules that an import statement names; `from gateway.policy import sse` names `gateway.policy.openai.sse`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
        return [name if name in MODULES or f"{name}.__init__" in MODULES else str(node.module) for name in names]
    return []


@cache
def imports_of(module: str) -> list[str]:
    return [name for node in nodes_of(module) for name in imported(node)]


def nodes_of(module: str) -> list[ast.AST]:
    """Every node of it but those that only a type checker sees."""
    return parted(module)[0]


@cache
def parted(module: str) -> tuple[list[ast.AST], list[ast.AST]]:
    """Every node of it but those that only a type checker sees, and the tops of these."""
    nodes: list[ast.AST] = []
    for_typing: list[ast.AST] = []
    left: list[ast.AST] = [tree_of(module)]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if is_for_typing(child):
                for_typing.append(child)
            else:
                nodes.append(child)
                left.append(child)
    return nodes, for_typing


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def offenders(offences_of: Callable[[str], object], modules: Iterable[str] = MODULES) -> dict[str, object]:
    """The modules that break a rule, each with what it does."""
    return {module: offences for module in modules if (offences := offences_of(module))}


def is_constant(name: str) -> bool:
    return name.isupper() or (name.startswith("__") and name.endswith("__"))


def test_imports_go_one_way() -> None:
    """Words, then decisions, then flow, then the edges, then the one place that knows everyone."""

    def strays(module: str) -> set[str]:
        part = part_of(module)
        inside = [part_of(name) for name in imports_of(module) if name.split(".")[0] == "gateway" and name != "gateway"]
        return set(inside) - {part} - MAY_IMPORT[part]

    assert offenders(strays) == {}


def test_adapters_know_the_policys_data_but_not_its_decisions() -> None:
    """They carry out; what to do is decided elsewhere."""

    def decisions(module: str) -> set[str]:
        return {name for name in imports_of(module) if part_of(name) == "policy"} - POLICYS_DATA

    assert offenders(decisions, [name for name in MODULES if part_of(name) in ADAPTERS]) == {}


def test_each_package_stays_in_its_place() -> None:
    """What is foreign is known in one part of the house only."""

    def strays(module: str) -> set[str]:
        below = module.removeprefix("gateway.")
        packages = {name.split(".")[0] for name in imports_of(module)}
        abroad = {name for name in packages & ONLY_IN.keys() if not {part_of(module), below} & ONLY_IN[name]}
        return abroad | (packages & NOT_IN_POLICY if part_of(module) == "policy" else set())

    assert offenders(strays) == {}


def test_an_import_inside_a_function_says_why() -> None:
    """In a comment on its line or the one above; it hides what a module needs, and mostly a cycle."""

    def unexplained(module: str) -> list[str]:
        lines = MODULES[module].read_text().splitlines()
        functions = [node for node in nodes_of(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        within = {line for function in functions for line in range(function.lineno, (function.end_lineno or 0) + 1)}
        imports = [node for node in nodes_of(module) if isinstance(node, ast.Import | ast.ImportFrom)]
        inner = [node for node in imports if node.lineno in within]
        return [lines[n.lineno - 1] for n in inner if "# " not in "".join(lines[n.lineno - 2 : n.lineno])]

    assert offenders(unexplained) == {}


def test_no_module_holds_state() -> None:
    """A module's names are constants, loggers and type aliases, and no code changes a constant."""

    def state(module: str) -> list[str]:
        body = tree_of(module).body
        made = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign) and may_hold_state(node.value)]
        names = [target.id for node in made for target in targets_of(node) if isinstance(target, ast.Name)]
        changed = [node for node in nodes_of(module) if isinstance(node, ast.Global) or changes_constant(node)]
        return [*(name for name in names if not is_constant(name)), *map(ast.unparse, changed)]

    assert offenders(state) == {}


def test_a_class_name_has_one_meaning() -> None:
    """No two classes of the house have the same name."""
    names = Counter(node.name for module in MODULES for node in nodes_of(module) if isinstance(node, ast.ClassDef))

    assert [name for name, count in names.items() if count > 1] == []


def test_imports_go_in_no_circle() -> None:
    """Whoever reads down along the imports comes to an end, imports for type checking included."""
    left = {module: set(all_imports_of(module)) - {module} for module in MODULES}
    while leaves := {module for module, names in left.items() if not names & left.keys()}:
        left = {module: names for module, names in left.items() if module not in leaves}

    assert left == {}


def all_imports_of(module: str) -> list[str]:
    for_typing = [node for top in parted(module)[1] for node in ast.walk(top)]
    return [*imports_of(module), *(name for node in for_typing for name in imported(node))]


def test_modules_and_classes_end_before_a_reader_tires() -> None:
    """A module has 350 lines at most, a class 250."""
    lines = {name.removeprefix("gateway."): path.read_text().count("\n") for name, path in MODULES.items()}
    classes = [node for module in MODULES for node in nodes_of(module) if isinstance(node, ast.ClassDef)]
    spans = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in classes}

    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert {name: span for name, span in spans.items() if span > MOST_CLASS_LINES} == {}


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    """No folder has more than sixteen modules."""
    sizes = Counter(str(path.parent.relative_to(ROOT)) for path in MODULES.values())

    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def targets_of(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def may_hold_state(value: ast.expr | None) -> bool:
    """Whether a value is a container or made by a call; a logger, a type variable or a class looked up is neither."""
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) not in ("logging.getLogger", "TypeVar", "getattr")
    return isinstance(value, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


def changes_constant(node: ast.AST) -> bool:
    """Whether the statement or call puts something into, or takes it out of, a module's constant."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        holder: ast.expr = node.func.value
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        holder = node.value
    else:
        return False
    return isinstance(holder, ast.Name) and is_constant(holder.id)
