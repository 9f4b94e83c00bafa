"""The reference pages have every code, header, metric, log field, command and path of the code, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from gateway.admin.http import LIVE_PATHS, READY_PATHS
from gateway.cli.main import main
from gateway.core.limits.limit_table import PART_OF
from gateway.core.openai import headers
from gateway.core.retry import DENIALS
from gateway.core.types import ErrorClass, SkipReason, Usage
from gateway.emulator.config import FAULTS, EmulatorConfig
from tests.core.test_telemetry import line_of, record, spared
from tests.docs.support import DOCS, PAGES, constants, modules, prose, reference, rows, section, words
from tests.support.metrics import whole_telemetry

NO_HEADERS = frozenset(
    b"max-age max-stale min-fresh no-cache no-store only-if-cached cross-site keep-alive form-data "
    b"x-ratelimit-over-limit x-amzn-errortype ratelimitbysize-query-cost x-ratelimit-tokens-query-cost "
    b"anthropic-ratelimit-unified-reset anthropic-ratelimit-unified-status x-gateway-".split()
)
"""Constants that look like names of headers: directives, values, what is only read in a provider's answers, and what ours begin
with."""
CROSSED = {"core", "features", "products", "admin", "http", "count_tokens"}
ASKING = {"client", "providers", "webhooks", "upstream"}
"""Where headers are read and set of calls that come in, and where only of those that go out."""
HEADER = re.compile(rb"[a-z][a-z0-9]*(-[a-z0-9]+)+-?")

WORKERS_ONLY = ("gateway_workers", "gateway_workers_answered", "gateway_worker_restarts_total")
VIEWS = ("config", "limits", "queue", "targets")


# --- errors ---


@cache
def codes() -> frozenset[str]:
    """Every code that the gateway gives to an error: `code = "…"` of a class, `code="…"` of a call."""
    found = set[str]()
    for _, told in modules():
        for node in told:
            if isinstance(node, ast.keyword):
                given: ast.expr | None = node.value if node.arg == "code" else None
            elif isinstance(node, ast.Assign) and [getattr(each, "id", None) for each in node.targets] == ["code"]:
                given = node.value
            else:
                continue
            if isinstance(given, ast.Constant) and isinstance(given.value, str):
                found.add(given.value)
    return frozenset(found)


def test_every_error_code_is_told_and_no_other() -> None:
    """A code that a client can see has its row."""
    page = reference("errors")
    tables = [section(page, "## The gateway cannot serve the call"), section(page, "## The request is wrong")]

    told = {code for table in tables for row in rows(table) for code in words(row[1])}

    assert len(codes()) > 50
    assert codes() - words("".join(tables)) == set()
    assert told - codes() == set()


def test_every_error_code_is_explained_with_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    told = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", reference("errors"), re.MULTILINE)

    assert len(told) > 80
    for status, code in told:
        assert main(["explain", code]) == 0, code
        assert capsys.readouterr().out.startswith(f"{code}: status {status}"), code


def test_the_runbook_has_a_way_out_of_every_refusal() -> None:
    """Whatever the gateway cannot serve is a symptom there; but for what the client has asked for."""
    refusals = {
        code
        for row in rows(section(reference("errors"), "## The gateway cannot serve the call"))
        for code in words(row[1])
    }

    assert refusals - words(prose(PAGES["docs/runbook.md"])) == {"admission_denied", "not_cached"}


def test_every_error_class_is_told_and_no_other() -> None:
    """The vocabulary of what goes wrong at providers."""
    told = {name for row in rows(section(reference("errors"), "## Error classes")) for name in words(row[0])}

    assert told == set(ErrorClass)


# --- headers ---


@cache
def header_names() -> frozenset[str]:
    """Every constant of the core and its neighbours that is the name of a header, or begins those of several."""
    found = set[bytes]()
    for path, told in modules():
        parts = set(path.with_suffix("").parts)
        if path.parts[-2] != "gateway" and (not parts & CROSSED or parts & ASKING):
            continue
        is_list = path.samefile(headers.__file__)
        for text in constants(told, bytes):
            assert isinstance(text, bytes)
            found.update(part for part in text.split() if is_list or HEADER.fullmatch(part))
    return frozenset(name.decode() for name in found - NO_HEADERS)


def test_every_header_is_told() -> None:
    """Those that are read, set, or let through in either direction."""
    assert "x-gateway-attempts" in header_names()
    assert header_names() - set(re.findall(r"[a-z0-9-]+", reference("headers"))) == set()


def test_no_header_of_ours_is_told_that_there_is_not() -> None:
    """On any page."""
    told = {name for page in PAGES.values() for name in re.findall(r"x-gateway-[a-z-]*[a-z]", page)}

    assert told - header_names() == set()


def test_reasons_and_results_are_told() -> None:
    """The values that two of the headers have."""
    page = reference("headers")

    assert words(page) >= DENIALS
    assert {"hit", "miss", "semantic", "coalesced", "stale", "bypass"} <= words(page)


# --- metrics and the log ---


def metrics() -> dict[str, set[str]]:
    """The labels of each metric, by its name as a scraper sees it."""
    return {
        f"{family.name}_total" if family.type == "counter" else family.name: set(getattr(family, "_labelnames", ()))
        for family in whole_telemetry().collect()
    }


def told_metrics() -> dict[str, set[str]]:
    """The same as the page tells it."""
    told = rows(reference("metrics"))
    named = [row for row in told if row[0].startswith("`gateway_")]
    return {name: set(filter(None, row[1].split(", "))) for row in named for name in words(row[0])}


def test_every_metric_is_told_with_its_labels_and_no_other() -> None:
    """The names of the telemetry, and those that only several workers have."""
    told = told_metrics()

    assert len(metrics()) > 40
    assert {name: labels for name, labels in told.items() if name not in WORKERS_ONLY} == metrics()
    assert set(told) >= set(WORKERS_ONLY)


def test_no_metric_is_told_that_there_is_not() -> None:
    """On any page; of alert rules: tests/deploy/test_alerts.py."""
    known = {*metrics(), *WORKERS_ONLY}
    told = {name for page in PAGES.values() for name in re.findall(r"\bgateway_[a-z_]*[a-z]\b", page)} - codes()

    assert {name for name in told if not any(one.startswith(name) for one in known)} == set()


def test_every_field_of_the_call_log_is_told() -> None:
    """Of calls that were served, and of those that were spared a provider."""
    left = record(usage=Usage(100, 20, cached=40, cache_written=30, estimated=True), outcome="client_gone")
    fields = {*line_of(record()), *line_of(spared()), *line_of(left)}
    assert len(fields) > 30

    told = {name for row in rows(section(reference("metrics"), "## The call log")) for name in words(row[0])}

    assert fields - told == set()


# --- the command line and the admin API ---


def help_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says of itself."""
    with pytest.raises(SystemExit):
        main([*arguments, "--help"])
    return capsys.readouterr().out


def commands(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    """The flags of every command, by all of its words."""
    found, rest = dict[str, set[str]](), list[list[str]]([[]])
    while rest:
        at = rest.pop()
        text = help_of(at, capsys)
        below = re.search(r"^(?:commands|actions):\n  [A-Z]+\n((?:    .*\n?)+)", text, re.MULTILINE)
        if below is not None:
            rest.extend([*at, name] for name in re.findall(r"^    ([a-z]+)", below[1], re.MULTILINE))
        else:
            options = re.search(r"^options:\n((?:  .*\n?)+)", text, re.MULTILINE)
            lines = re.findall(r"^  (-.*?)(?:  |$)", options[1] if options else "", re.MULTILINE)
            found["gateway " + " ".join(at)] = set(re.findall(r"--[a-z-]+", " ".join(lines))) - {"--help"}
    return found


def test_every_command_and_flag_is_told_and_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command has its heading, with its flags below; what all share that ask a running gateway is told once."""
    monkeypatch.setenv("COLUMNS", "200")
    page = reference("cli")
    shared = {"--url", "--admin-key", "--api-key", "--json", "--config"}
    real = commands(capsys)

    told = {heading.removeprefix("## ") for heading in re.findall(r"^## gateway .*$", page, re.MULTILINE)}

    assert len(real) > 12
    assert told == set(real)
    for command, flags in real.items():
        said = set(re.findall(r"--[a-z-]+", section(page, f"## {command}")))
        assert flags - said <= shared, command
        assert {flag for row in rows(section(page, f"## {command}")) for flag in words(row[0]) if flag[:2] == "--"} <= (
            flags
        ), command


def test_commands_on_all_pages_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """`gateway targets` in a sentence, or at the beginning of a line that is to be copied."""
    text = help_of([], capsys)
    told = {name for page in PAGES.values() for name in re.findall(r"(?:`|^)gateway ([a-z]+)", page, re.MULTILINE)}

    assert {"serve", "check", "explain", "targets"} <= told
    assert {name for name in told if not re.search(rf"^ +{name}(?: |$)", text, re.MULTILINE)} == set()


def test_every_path_of_health_and_admin_is_told() -> None:
    """As the routes have them."""
    page = reference("admin")
    paths = {
        text
        for path, told in modules()
        if {"admin", "http", "products", "features"} & set(path.parts)
        for text in constants(told, str)
        if re.fullmatch(r"/admin/[a-z/]+[a-z]", str(text))
    }

    assert len(paths) > 4
    for known in (*map(str, paths), *LIVE_PATHS, *READY_PATHS, *(f"/admin/{view}" for view in VIEWS), "/metrics"):
        assert known in page


# --- the emulator ---


def test_every_fault_and_setting_of_the_emulator_is_told() -> None:
    """Its page has what its flags and its control API take."""
    page = (DOCS / "emulator.md").read_text()

    faults = {name for row in rows(section(page, "## Faults")) for name in words(row[0])}
    fields = {name for row in rows(section(page, "## What can be set")) for name in words(row[0])}

    assert faults == set(FAULTS)
    assert fields == {"ttft" if name == "ttft_s" else name for name in EmulatorConfig.__dataclass_fields__}


def test_every_reason_of_a_skip_is_told() -> None:
    """Its own words, the names of limits, and that of a rate that was found."""
    told = {name for row in rows(section(reference("errors"), "## Skipped targets")) for name in words(row[0])}
    assert told == {*SkipReason, *PART_OF, "concurrency", "rate"}
