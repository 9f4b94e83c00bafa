"""The names that users rely on, read from the code: one list of lines per surface.

python -m tests.surface.surfaces      # renews the files: do that where a name is meant to change, and tell it in the CHANGELOG
"""

from __future__ import annotations

import io
import re
import tempfile
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import orjson
import uvloop

from gateway.admin.http import LIVE_PATHS, READY_PATHS
from gateway.cli.main import main
from gateway.core.types import Usage, UsageParts
from gateway.settings import Settings
from tests.core.test_telemetry import line_of, record, spared
from tests.docs.support import constants, modules
from tests.docs.test_config_reference import IN_WORDS, TABLES, names_of
from tests.docs.test_references import codes, header_names, metrics
from tests.e2e.harness import ADMIN_KEY, KEYS, config_of, connect, get, post, start_gateway

FOLDER = Path(__file__).parent
ADMIN = f"authorization: Bearer {ADMIN_KEY}"
ASKED: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    *(("GET", path, None) for path in (*LIVE_PATHS, *READY_PATHS)),
    *(
        ("GET", f"/admin/{view}", None)
        for view in ("config", "limits", "queue", "targets", "cache", "stats", "costs", "jobs")
    ),
    ("POST", "/admin/jobs/pause", {"ids": ["batch_1"]}),
    ("POST", "/admin/jobs/resume", {"ids": ["batch_1"]}),
    ("POST", "/admin/jobs/retry", {"ids": ["batch_1"]}),
    ("POST", "/admin/targets", {"name": "main/gpt-4o", "action": "reset"}),
    ("POST", "/admin/accounts", {"name": "main", "action": "reset"}),
    ("POST", "/admin/cache/purge", {"all": True}),
    ("POST", "/admin/cache/why", {"body": {"model": "gpt-4o", "messages": []}, "tenant": "web"}),
    ("GET", "/admin/webhooks", None),
    ("POST", "/admin/webhooks/crm/disable", {}),
    ("POST", "/admin/webhooks/crm/enable", {}),
    ("POST", "/admin/webhooks/crm/test", {}),
    ("POST", "/admin/webhooks/crm/redeliver", {"since_s": 60}),
    ("GET", "/admin/workflows", None),
    ("GET", "/admin/workflows/other/runs", None),
    ("GET", "/admin/runs", None),
    ("GET", "/admin/dlq", None),
    ("POST", "/admin/dlq/replay", {"dry_run": True}),
    ("POST", "/admin/dlq/replay", {"id": "dl_gw"}),
    ("POST", "/admin/dlq/purge", {"all": True}),
    ("POST", "/admin/objects/claim", {"tenant": "web", "ids": ["file-1"]}),
)
"""What is asked of a running gateway for the fields of its answers."""
EVERYTHING = Usage(9, 9, cache_written=2, cache_written_1h=1, parts=UsageParts(*range(1, 14)), tier="flex")
NOT_ASKED = {"/admin/state/backup", "/admin/jobs/backup"}
"""What answers with a file."""


def surfaces() -> dict[str, list[str]]:
    """The lines of every surface but the admin API, sorted, by the name of its file."""
    found = {
        "config": _fields("config"),
        "policies": _fields("policies"),
        "headers": set(header_names()),
        "metrics": {f"{name}{{{','.join(sorted(labels))}}}" for name, labels in metrics().items()},
        "log": {*line_of(record()), *line_of(spared()), *line_of(record(usage=EVERYTHING))},
        "errors": set(codes()),
        "cli": _commands(),
        "environment": _variables(),
    }
    return {name: sorted(lines) for name, lines in found.items()}


async def admin_surface(folder: Path) -> list[str]:
    """The routes of a running gateway with the top-level fields of their answers; of lists by name, those of a row."""
    sections = {
        "admin": {"key": ADMIN_KEY},
        "jobs": {"store": f"sqlite:///{folder}/jobs.db"},
        "webhooks": {"crm": {"url": "http://127.0.0.1:9/", "secrets": ["a secret of the receivers' own"]}},
    }
    running = await start_gateway(folder, lambda url: config_of(url, keys=KEYS, **sections))
    lines = []
    try:
        async with connect(running.url) as peer:
            for method, path, body in ASKED:
                request = get(path, ADMIN) if body is None else post(path, body, ADMIN)
                answer = await peer.exchange(request)
                assert answer.status == 200, f"{method} {path}: {answer.body!r}"
                lines += [f"{method} {path}: {field}" for field in _fields_of(orjson.loads(answer.body))]
    finally:
        await running.stop()
    known = {path for _, path, _ in ASKED} | NOT_ASKED
    assert _paths() <= known, f"a route that is not asked: {_paths() - known}"
    return sorted({*lines, *NOT_ASKED})


def _fields_of(answer: dict[str, Any]) -> set[str]:
    rows = [
        (kind, row)
        for kind in ("targets", "accounts", "webhooks")
        if isinstance(answer.get(kind), dict)
        for row in answer[kind].values()
        if isinstance(row, dict)
    ]
    return {*answer, *(f"{kind}.*.{field}" for kind, row in rows for field in row)}


def _paths() -> set[str]:
    """The paths of the admin API that are written in the code."""
    found = {
        str(text)
        for path, told in modules()
        if "cli" not in path.stem and "cli" not in path.parts
        for text in constants(told, str)
        if re.fullmatch(r"/admin/[a-z/]+[a-z]", str(text))
    }
    assert len(found) > 10, "paths of the admin API are looked for in the wrong places"
    return found


def _fields(page: str) -> set[str]:
    """The fields of the files that a page of the reference tells of, each below its heading there."""
    places = {**TABLES, **IN_WORDS}
    return {
        f"{heading.strip('# ')}: {name}"
        for kind, (told_on, heading) in places.items()
        if told_on == page
        for name in names_of(kind)
    }


def _variables() -> set[str]:
    """The environment variables that the gateway reads of itself."""
    named = {
        name
        for _, told in modules()
        for text in constants(told, str)
        for name in re.findall(r"GATEWAY_[A-Z_]*[A-Z]", str(text))
    }
    return named | {f"GATEWAY_{name.upper()}" for name in Settings.model_fields}


def _commands() -> set[str]:
    """Every command and each of its flags, from its help."""
    found, rest = set[str](), [""]
    while rest:
        at = rest.pop()
        text = _help_of(at.split())
        options = re.findall(r"^  (-.*?)(?:  |$)", text.partition("\noptions:\n")[2], re.MULTILINE)
        below = re.search(r"^(?:commands|actions):\n  [A-Z]+\n((?:    .*\n?)+)", text, re.MULTILINE)
        if below is not None:
            rest.extend(f"{at} {name}" for name in re.findall(r"^    ([a-z]+)", below[1], re.MULTILINE))
            continue
        found.add(f"gateway{at}")
        found.update(f"gateway{at} {flag}" for flag in re.findall(r"--[a-z-]+", " ".join(options)))
    return found


def _help_of(words: list[str]) -> str:
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        main([*words, "--help"])
    return out.getvalue()


def _write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {**surfaces(), "admin": uvloop.run(admin_surface(Path(folder)))}
    for name, lines in found.items():
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    _write()
