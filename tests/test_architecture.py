"""The house rules that a reader relies on: who imports whom, which package stays where, no hidden state.

Read from the syntax tree of every module; nothing is imported. Imports for type checking only are free.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.glob("gateway/**/*.py")}

ADAPTERS = (
    "gateway.core.calllog",
    "gateway.core.http.client.connection",
    "gateway.core.http.client.exchange",
    "gateway.core.http.client.httpx_transport",
    "gateway.core.http.client.model_lists",
    "gateway.core.http.client.pool",
    "gateway.core.http.client.pools.pools",
    "gateway.core.http.client.pools.whole_answers",
    "gateway.core.http.client.transport",
    "gateway.core.http.client.wire.redaction",
    "gateway.core.http.client.wire.wire",
    "gateway.core.metrics",
    "gateway.core.telemetry",
    "gateway.credentials.aws",
    "gateway.credentials.clouds",
    "gateway.credentials.google",
    "gateway.credentials.sources.asking",
    "gateway.credentials.sources.sources",
    "gateway.dialects.upstream",
    "gateway.drivers.blobs.directory",
    "gateway.drivers.blobs.memory",
    "gateway.drivers.blobs_redis",
    "gateway.drivers.lru",
    "gateway.drivers.memory_store",
    "gateway.drivers.opening",
    "gateway.drivers.redis.connect",
    "gateway.drivers.redis.job",
    "gateway.drivers.redis.link",
    "gateway.drivers.redis.wire",
    "gateway.drivers.redis_cluster",
    "gateway.drivers.redis_health",
    "gateway.drivers.redis_store.store",
    "gateway.drivers.redis_store.tenants",
    "gateway.drivers.sqlite",
    "gateway.drivers.sqlite_store.eviction",
    "gateway.drivers.sqlite_store.opening",
    "gateway.drivers.sqlite_store.store",
    "gateway.features.ownership.memory",
    "gateway.features.ownership.redis",
    "gateway.features.ownership.sqlite",
    "gateway.features.reuse.memory",
    "gateway.features.reuse.redis.answers",
    "gateway.features.reuse.redis.lru",
    "gateway.features.reuse.redis_records.offline_records",
    "gateway.features.reuse.redis_records.records",
    "gateway.features.reuse.sqlite",
    "gateway.features.runs.metrics",
    "gateway.features.runs.redis",
    "gateway.features.runs.sqlite.sqlite",
    "gateway.features.runs.sqlite.sqlite_rows",
    "gateway.features.runs.store",
    "gateway.features.semantic.redis",
    "gateway.features.semantic.sqlite",
    "gateway.fleet.redis",
    "gateway.products.batches.memory",
    "gateway.products.batches.native.providers",
    "gateway.products.batches.redis",
    "gateway.products.batches.sqlite",
    "gateway.products.jobs.dead_letters.memory",
    "gateway.products.jobs.dead_letters.redis.dead_letters",
    "gateway.products.jobs.dead_letters.redis.letters",
    "gateway.products.jobs.dead_letters.sqlite.dead_letters",
    "gateway.products.jobs.dead_letters.sqlite.dead_rows",
    "gateway.products.jobs.memory",
    "gateway.products.jobs.metrics",
    "gateway.products.jobs.redis",
    "gateway.products.jobs.redis_claims",
    "gateway.products.jobs.redis_partitions",
    "gateway.products.jobs.redis_records.acceptance",
    "gateway.products.jobs.redis_records.records",
    "gateway.products.jobs.sqlite",
    "gateway.products.jobs.sqlite_rows",
    "gateway.products.jobs.sqlite_store.file",
    "gateway.products.jobs.sqlite_store.store",
    "gateway.products.jobs.transitions.pieces",
    "gateway.products.jobs.transitions.transitions",
    "gateway.products.realtime.upstream",
    "gateway.products.responses.log.log_watchers",
    "gateway.products.responses.memory",
    "gateway.products.responses.redis",
    "gateway.products.responses.sqlite",
)
"""What carries out: it knows data of the decisions, and makes none."""
MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {"cli"},
    "admin": {"core", "dialects", "features", "products", "routes"},
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
        "process",
        "products",
        "routes",
        "settings",
        "wiring",
    },
    "cli": {"admin", "core", "demo", "drivers", "emulator", "features", "products", "settings", "workers"},
    "core": {"credentials", "dialects", "fleet"},
    "credentials": {"core", "products"},
    "demo": {"app", "core", "emulator", "products", "settings"},
    "dialects": {"core", "products"},
    "drivers": {"core", "features", "fleet", "process", "products"},
    "emulator": set(),
    "features": {"admin", "cli", "core", "dialects", "drivers", "fleet", "products", "routes"},
    "fleet": {"core", "drivers", "features"},
    "housekeeping": {"admin", "core", "dialects", "features", "process", "products"},
    "process": set(),
    "products": {"admin", "cli", "core", "dialects", "drivers", "features", "fleet", "routes", "workers"},
    "routes": {"core", "dialects", "products"},
    "settings": set(),
    "wiring": {"admin", "core", "credentials", "dialects", "features", "products", "routes", "settings"},
    "workers": {"app", "core", "process", "settings"},
    "__init__": set(),
}
"""By the first part of a module's name below `gateway`; a module may always import its own part."""
KNOWN = {
    "gateway.core.answers": {
        "gateway.features.output.service.overlong",
        "gateway.features.ownership.rules.objects",
    },
    "gateway.core.attempts.outgoing": {
        "gateway.features.reuse.rules.keys",
    },
    "gateway.core.call": {
        "gateway.features.degrade.lower",
        "gateway.features.output.rules",
        "gateway.features.output.schema",
        "gateway.features.ownership.rules.objects",
        "gateway.features.runs.rules",
    },
    "gateway.core.calllog": {
        "gateway.features.runs.rules",
    },
    "gateway.core.config.describe": {
        "gateway.features.output.rules",
        "gateway.features.reuse.rules.rules",
        "gateway.products.pipelines.compile.compiling",
    },
    "gateway.core.config.fields.fields": {
        "gateway.features.reuse.rules.rules",
    },
    "gateway.core.config.load.folder": {
        "gateway.features.reuse.config",
        "gateway.features.runs.config",
        "gateway.features.runs.rules",
        "gateway.products.jobs.config.policies_jobs",
        "gateway.products.jobs.rules",
        "gateway.products.pipelines.config",
    },
    "gateway.core.config.load.load": {
        "gateway.features.output.config",
        "gateway.features.ownership.config",
        "gateway.features.reuse.config",
        "gateway.products.jobs.config.sections_jobs",
        "gateway.products.jobs.rules",
        "gateway.products.jobs.webhooks.config.webhooks",
        "gateway.products.pipelines.config",
    },
    "gateway.core.config.models.sections_models": {
        "gateway.features.degrade.lower",
        "gateway.features.degrade_config",
        "gateway.features.grouping.bodies",
        "gateway.features.output.config",
        "gateway.features.reuse.config",
        "gateway.products.batches.native.rules",
        "gateway.products.pipelines.compile.compiling",
    },
    "gateway.core.config.schema": {
        "gateway.features.grouping.bodies",
        "gateway.products.jobs.webhooks.config.hook_secrets",
    },
    "gateway.core.config.sections": {
        "gateway.features.runs.rules",
        "gateway.products.realtime.rules",
    },
    "gateway.core.edge.edge": {
        "gateway.features.reuse.layers.entries",
        "gateway.products.jobs.calls.ports",
        "gateway.products.jobs.http.respond_async",
        "gateway.products.responses.http.door",
    },
    "gateway.core.intake.intake": {
        "gateway.features.runs.http.run_object",
        "gateway.features.runs.step",
        "gateway.products.jobs.model",
        "gateway.products.jobs.service.job_request",
        "gateway.products.pipelines.http",
    },
    "gateway.core.intake.parse": {
        "gateway.features.runs.step",
    },
    "gateway.core.ledger": {
        "gateway.features.runs.table.table",
    },
    "gateway.core.pipeline": {
        "gateway.features.background_charges",
        "gateway.features.degrade.slow_models",
        "gateway.features.grouping.groups",
        "gateway.features.output.service.outputs",
        "gateway.features.output.service.overlong",
        "gateway.features.ownership.rules.rules",
        "gateway.features.ownership.service",
        "gateway.features.reuse.inspect",
        "gateway.features.reuse.layers.entries",
        "gateway.features.reuse.layers.layers",
        "gateway.features.reuse.service",
        "gateway.features.reuse.single_flight",
        "gateway.features.runs.rules",
        "gateway.features.runs.steps.step_calls",
        "gateway.features.runs.table.fuse",
        "gateway.features.runs.table.table",
        "gateway.features.sdk_retries",
        "gateway.products.realtime.service",
    },
    "gateway.core.ports": {
        "gateway.features.runs.rules",
        "gateway.features.runs.step",
    },
    "gateway.core.snapshot.route_plan": {
        "gateway.features.output.rules",
        "gateway.products.responses.rules.keeping",
        "gateway.products.responses.rules.response_object",
    },
    "gateway.core.snapshot.snapshot": {
        "gateway.features.degrade.lower",
        "gateway.features.grouping.bodies",
        "gateway.features.output.rules",
        "gateway.features.ownership.rules.rules",
        "gateway.features.reuse.rules.rules",
        "gateway.features.runs.rules",
        "gateway.products.jobs.rules",
        "gateway.products.jobs.webhooks.rules",
        "gateway.products.pipelines.compile.compiling",
    },
    "gateway.core.telemetry": {
        "gateway.features.runs.metrics",
        "gateway.products.jobs.metrics",
    },
}
"""What of the core still knows features and products; each of these pairs is to go, and none may come."""

ONLY_IN = {
    "starlette": r"admin|app|wiring|routes|products\.routes|products\.jobs\.admin|core\.(http|intake)|emulator|.*\.(\w+_)?http",
    "uvicorn": r"core\.http|emulator|app",
    "httpx": r"core\.http\.client|credentials|demo|dialects\.upstream|products\.(batches\.native\.providers|realtime\.upstream)"
    r"|products\.jobs\.webhooks\.outward",
    "cryptography": r"credentials\.google",
    "httptools": r"core\.http",
    "pydantic": r"(.*\.)?(\w+_)?config|settings|cli\.main",
    "pydantic_core": r"core\.config",
    "pydantic_settings": r"settings",
    "yaml": r"core\.config",
    "genai_prices": r"core\.config",
    "prometheus_client": r"core\.(telemetry|metrics)|admin\.operations|workers|.*\.metrics",
    "pybreaker": r"core\.health\.breaker",
    "redis": r"drivers",
    "tiktoken": r"core\.config",
    "numpy": r"features\.semantic\.(index|local_model)",
    "tokenizers": r"features\.semantic\.local_model",
    "sqlite3": r"drivers|.*\.sqlite\w*",
    "standardwebhooks": r"products\.jobs\.webhooks\.service",
    "websockets": r"core\.websocket\w*",
    "jmespath": r"products\.pipelines\.conditions",
    "jsonschema_rs": r"features\.output\.schema",
}
"""By package: the only modules and folders that may know it."""
PURE = (
    "gateway.core.admission.fair_queue",
    "gateway.core.error_tables",
    "gateway.core.health.breaker.breaker",
    "gateway.core.health.breaker.circuit",
    "gateway.core.health.breaker.state_machine",
    "gateway.core.health.detector",
    "gateway.core.health.target_health.peer_reports",
    "gateway.core.health.target_health.target_health",
    "gateway.core.health.times",
    "gateway.core.limits.bucket",
    "gateway.core.limits.estimate",
    "gateway.core.limits.headers",
    "gateway.core.limits.learning",
    "gateway.core.limits.rate_search",
    "gateway.core.limits.reservation",
    "gateway.core.limits.table.limit_table",
    "gateway.core.limits.table.rules",
    "gateway.core.limits.target_limits.gate",
    "gateway.core.limits.target_limits.idle_gates",
    "gateway.core.openai.bodies",
    "gateway.core.openai.headers",
    "gateway.core.openai.json_edit",
    "gateway.core.openai.sse",
    "gateway.core.openai.transcript",
    "gateway.core.openai.usage",
    "gateway.core.retry.balancing",
    "gateway.core.retry.retry",
    "gateway.core.retry_budgets",
    "gateway.core.snapshot.route_plan",
    "gateway.core.snapshot.snapshot",
    "gateway.credentials.auth",
    "gateway.dialects.conversion.chat",
    "gateway.dialects.conversion.convert",
    "gateway.dialects.conversion_answers",
    "gateway.features.degrade.lower",
    "gateway.features.grouping.bodies",
    "gateway.features.output.rules",
    "gateway.features.output.schema",
    "gateway.features.ownership.rules.objects",
    "gateway.features.ownership.rules.rules",
    "gateway.features.reuse.rules.keys",
    "gateway.features.reuse.rules.rules",
    "gateway.features.runs.rules",
    "gateway.fleet.lease.lease",
    "gateway.fleet.lease.leased_amount",
    "gateway.fleet.parts.leased_part",
    "gateway.fleet.parts.shared_sum",
    "gateway.products.batches.input",
    "gateway.products.batches.native.formats",
    "gateway.products.batches.native.lines.lines",
    "gateway.products.batches.native.rules",
    "gateway.products.jobs.model",
    "gateway.products.jobs.rules",
    "gateway.products.jobs.service.job_request",
    "gateway.products.jobs.webhooks.rules",
    "gateway.products.pipelines.advance",
    "gateway.products.pipelines.answer",
    "gateway.products.pipelines.compile.compiling",
    "gateway.products.pipelines.compile.explain",
    "gateway.products.pipelines.conditions",
    "gateway.products.pipelines.rules",
    "gateway.products.pipelines.templates.splitting",
    "gateway.products.pipelines.templates.templates",
    "gateway.products.realtime.rules",
    "gateway.products.responses.events",
    "gateway.products.responses.rules.keeping",
    "gateway.products.responses.socket_turns",
)
"""What decides: pure and synchronous."""
NOT_IN_POLICY = {"asyncio", "time", "random", "secrets", "uuid", "datetime", "logging", "socket", "threading", "os"}
"""A decision gets time and draws as arguments, and does no I/O."""
POLICYS_DATA = {
    "gateway.credentials.auth",
    "gateway.core.types",
    "gateway.features.runs.rules",
    "gateway.features.runs.step",
    "gateway.core.snapshot.snapshot",
    "gateway.fleet.lease.lease",
    "gateway.products.jobs.dead_letters.rules",
    "gateway.products.jobs.model",
    "gateway.products.responses.rules.response_object",
    "gateway.products.batches.native.formats",
}
MOST_MODULES, MOST_LINES, MOST_CLASS_LINES = 20, 750, 250
MUTATORS = {"add", "append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"}


def part_of(module: str) -> str:
    """`gateway.core.openai.sse` is a part of `policy`."""
    return [*module.split("."), "__init__"][1]


def is_in(module: str, places: Iterable[str]) -> bool:
    """Whether it is one of these modules, or in one of these folders."""
    return any(module == place or module.startswith(f"{place}.") for place in places)


def is_for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(node: ast.AST) -> list[str]:
    """The modules that an import statement names; `from gateway.policy import sse` names `gateway.core.openai.sse`."""
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
    """The core knows no feature and no product, but for what is known of old; who may know whom else is in the table."""

    def strays(module: str) -> set[str]:
        part = part_of(module)
        known = [name for place, names in KNOWN.items() if is_in(module, [place]) for name in names]
        inside = [name for name in imports_of(module) if name.split(".")[0] == "gateway" and name != "gateway"]
        return {part_of(name) for name in inside if not is_in(name, known)} - {part} - MAY_IMPORT[part]

    assert offenders(strays) == {}


def test_adapters_know_the_policys_data_but_not_its_decisions() -> None:
    """They carry out; what to do is decided elsewhere."""

    def decisions(module: str) -> set[str]:
        return {name for name in imports_of(module) if is_in(name, PURE)} - POLICYS_DATA

    assert offenders(decisions, [name for name in MODULES if is_in(name, ADAPTERS)]) == {}


def test_each_package_stays_in_its_place() -> None:
    """What is foreign is known in one part of the house only."""

    def strays(module: str) -> set[str]:
        below = module.removeprefix("gateway.")
        packages = {name.split(".")[0] for name in imports_of(module)}
        abroad = {name for name in packages & ONLY_IN.keys() if not re.match(rf"({ONLY_IN[name]})(\.|$)", below)}
        return abroad | (packages & NOT_IN_POLICY if is_in(module, PURE) else set())

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
    """A module has 750 lines at most, a class 250."""
    lines = {name.removeprefix("gateway."): path.read_text().count("\n") for name, path in MODULES.items()}
    classes = [node for module in MODULES for node in nodes_of(module) if isinstance(node, ast.ClassDef)]
    spans = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in classes}

    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
    assert {name: span for name, span in spans.items() if span > MOST_CLASS_LINES} == {}


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    """No folder has more than twenty modules."""
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
