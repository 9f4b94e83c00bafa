"""The house rules that a reader relies on: who imports whom, which package stays where, no hidden state.

Read from the syntax tree of every module; nothing is imported. Imports for type checking only are free.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable

from tests.rails.house import call_fields
from tests.rails.trees import MODULES, all_imports_of, imports_of, nodes_of, tree_of

MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {"cli"},
    "admin": {"core", "dialects", "routes"},
    "app": {
        "admin",
        "core",
        "credentials",
        "dialects",
        "drivers",
        "emulator",
        "features",
        "fleet",
        "housekeeping",
        "installed",
        "process",
        "product_list",
        "products",
        "routes",
        "sections",
        "settings",
        "stores",
    },
    "around": {"core", "features", "installed", "product_list", "products", "stores"},
    "cli": {
        "admin",
        "around",
        "core",
        "demo",
        "dialects",
        "drivers",
        "emulator",
        "features",
        "installed",
        "products",
        "sections",
        "settings",
        "workers",
    },
    "core": set(),
    "credentials": {"core", "drivers"},
    "demo": {"app", "core", "emulator", "settings"},
    "dialects": {"core"},
    "drivers": {"core", "fleet", "process"},
    "emulator": set(),
    "features": {"admin", "cli", "core", "dialects", "drivers", "fleet", "installed", "products", "routes"},
    "fleet": {"core", "drivers"},
    "housekeeping": {
        "admin",
        "core",
        "dialects",
        "drivers",
        "features",
        "installed",
        "process",
        "products",
        "sections",
    },
    "installed": set(),
    "process": set(),
    "product_list": {"core", "dialects", "features", "installed", "products", "stores"},
    "products": {"admin", "cli", "core", "dialects", "drivers", "features", "installed", "routes", "workers"},
    "routes": {"core", "dialects", "installed", "products"},
    "sections": {"core", "installed", "product_list"},
    "settings": set(),
    "stores": {"core", "drivers", "features", "installed"},
    "workers": {"app", "core", "drivers", "process", "settings"},
    "__init__": set(),
}
"""By the first part of a module's name below `gateway`; a module may always import its own part. Of the core see `rails/`."""
ONLY_IN = {
    "starlette": r"admin|app|routes|products\.(durable|routes|((batches|responses)\.)?work|jobs\.admin)|core\.(http|intake)"
    r"|emulator|.*\.(\w+_)?http",
    "uvicorn": r"core\.http|emulator|app",
    "httpx": r"core\.http\.client|credentials|demo|products\.(batches\.native\.providers|realtime\.upstream)"
    r"|drivers\.outward",
    "cryptography": r"credentials\.google",
    "httptools": r"core\.http",
    "pydantic": r"(.*\.)?(\w+_)?config|settings|cli\.main",
    "pydantic_core": r"core\.config",
    "pydantic_settings": r"settings",
    "yaml": r"core\.config",
    "genai_prices": r"dialects\.known",
    "prometheus_client": r"core\.(telemetry|metrics)|admin\.http|workers|.*\.metrics",
    "pybreaker": r"core\.health\.breaker",
    "redis": r"drivers",
    "tiktoken": r"dialects\.known",
    "numpy": r"features\.semantic\.(index|local_model)",
    "tokenizers": r"features\.semantic\.local_model",
    "sqlite3": r"drivers|.*\.sqlite\w*",
    "standardwebhooks": r"products\.jobs\.webhooks\.service",
    "websockets": r"core\.websocket\w*",
    "jmespath": r"products\.pipelines\.templates",
    "jsonschema_rs": r"drivers\.json_schema",
}
"""By package: the only modules and folders that may know it."""
PURE = (
    "gateway.core.admission.fair_queue",
    "gateway.core.balancing",
    "gateway.core.error_tables",
    "gateway.core.health.breaker",
    "gateway.core.health.detector",
    "gateway.core.health.phases",
    "gateway.core.health.target_health",
    "gateway.core.health.times",
    "gateway.core.patience",
    "gateway.core.limits.bucket",
    "gateway.core.limits.headers",
    "gateway.core.limits.idle_gates",
    "gateway.core.limits.learning",
    "gateway.core.limits.limit_table",
    "gateway.core.limits.reservation",
    "gateway.core.limits.target_limits",
    "gateway.core.openai.bodies",
    "gateway.core.openai.headers",
    "gateway.core.openai.json_edit",
    "gateway.core.openai.media",
    "gateway.core.openai.sse",
    "gateway.core.openai.transcript",
    "gateway.core.openai.usage",
    "gateway.core.retry",
    "gateway.core.retry_budgets",
    "gateway.core.snapshot",
    "gateway.core.types",
    "gateway.credentials.auth",
    "gateway.dialects.conversion",
    "gateway.dialects.conversion_chat",
    "gateway.drivers.json_schema",
    "gateway.features.ownership.objects",
    "gateway.features.reuse.keys",
    "gateway.features.runs.step",
    "gateway.fleet.breakers",
    "gateway.fleet.lease",
    "gateway.fleet.leased_part",
    "gateway.products.batches.input",
    "gateway.products.batches.native.formats",
    "gateway.products.batches.output",
    "gateway.products.jobs.dead_letters.redrive",
    "gateway.products.jobs.model",
    "gateway.products.jobs.request",
    "gateway.products.pipelines.advance",
    "gateway.products.pipelines.compile",
    "gateway.products.pipelines.templates",
    "gateway.products.responses.rules",
    "gateway.products.responses.keeping",
    "gateway.products.responses.socket_turns",
)
"""Modules that decide, beside each module named `rules`: they do no I/O."""
IMPURE = {"asyncio", "time", "random", "secrets", "uuid", "datetime", "logging", "socket", "threading", "os"}
"""A decision gets time and draws as arguments, and does no I/O."""
MUTATORS = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def part_of(module: str) -> str:
    """`gateway.core.openai.sse` is a part of `core`."""
    return [*module.split("."), "__init__"][1]


def is_pure(module: str) -> bool:
    """Whether it decides, and so gets time and draws as arguments."""
    return module in PURE or module.endswith(".rules")


def offenders(offences_of: Callable[[str], object], modules: Iterable[str] = MODULES) -> dict[str, object]:
    """The modules that break a rule, each with what it does."""
    return {module: offences for module in modules if (offences := offences_of(module))}


def is_constant(name: str) -> bool:
    return name.isupper() or (name.startswith("__") and name.endswith("__"))


def test_imports_go_one_way() -> None:
    """By the table. The core imports nothing else of the gateway, types included: products are given to it."""

    def strays(module: str) -> set[str]:
        part = part_of(module)
        names = all_imports_of(module) if part == "core" else imports_of(module)
        inside = [name for name in names if name.split(".")[0] == "gateway" and name != "gateway"]
        return set(map(part_of, inside)) - {part} - MAY_IMPORT[part]

    assert offenders(strays) == {}


def test_the_core_asks_endpoints_for_what_they_are_and_not_for_their_names() -> None:
    """Where a name is compared with words, each new endpoint would be another branch; a name as a key of a table is none."""

    def has_name(node: ast.expr) -> bool:
        is_name = isinstance(node, ast.Attribute) and node.attr == "name"
        return is_name and ast.unparse(node).split(".")[-2:-1] == ["endpoint"]

    def is_words(node: ast.expr) -> bool:
        return not isinstance(node, ast.Attribute)

    def comparisons(module: str) -> list[int]:
        found = [node for node in nodes_of(module) if isinstance(node, ast.Compare)]
        return [
            one.lineno
            for one in found
            if any(map(has_name, (sides := [one.left, *one.comparators]))) and any(map(is_words, sides))
        ]

    core = [module for module in MODULES if part_of(module) == "core"]
    assert offenders(comparisons, core) == {}


def test_a_call_is_small_and_each_of_its_fields_is_written_in_one_place() -> None:
    """What most calls never need is in an object that they do without, and what a product knows of a call in its slots."""
    fields = call_fields()

    assert len(fields) <= 25
    assert {name: writers for name, writers in fields.items() if len(writers) > 1} == {}


def test_nobody_writes_a_request() -> None:
    """A feature that changes what goes to providers makes another one: who holds the first has what the client sent."""
    [made] = [
        node for node in nodes_of("gateway.core.call") if isinstance(node, ast.ClassDef) and node.name == "Request"
    ]
    names = {ast.unparse(node.target) for node in made.body if isinstance(node, ast.AnnAssign)}

    def writes(module: str) -> list[str]:
        stores = [
            node for node in nodes_of(module) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        ]
        return [
            ast.unparse(node)
            for node in stores
            if node.attr in names and ast.unparse(node.value).split(".")[-1] == "request"
        ]

    assert "body" in names
    assert offenders(writes) == {}


def test_each_package_stays_in_its_place() -> None:
    """What is foreign is known in one part of the house only."""

    def strays(module: str) -> set[str]:
        below = module.removeprefix("gateway.")
        packages = {name.split(".")[0] for name in imports_of(module)}
        return {name for name in packages & ONLY_IN.keys() if not re.match(rf"({ONLY_IN[name]})(\.|$)", below)}

    assert offenders(strays) == {}


def test_decisions_get_time_and_chance_as_arguments() -> None:
    """A module that decides knows no clock, no event loop, no randomness and no I/O."""

    def strays(module: str) -> set[str]:
        return {name.split(".")[0] for name in imports_of(module)} & IMPURE

    assert set(PURE) <= MODULES.keys()
    assert offenders(strays, filter(is_pure, MODULES)) == {}


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
