"""`gateway dlq`: what has failed for good at a running gateway, to look at, to run again, and to throw away."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from gateway.cli.main import UNUSABLE, fail
from gateway.cli.operate import AdminClient, call_admin, lay_out, moment, safe, usd

GROUPS = ("group", "kind", "class", "model", "letters", "oldest", "message")
LETTERS = ("id", "state", "attempts", "dead at", "tenant", "last error")
FACTS = ("id", "kind", "state", "class", "job", "line", "tenant", "model", "attempts", "cost_usd", "replays", "group")
MODELS = ("model", "letters", "tokens in", "cost", "limit/s")
FILTER = ("id", "group", "kind", "error_class", "model", "tenant")


def list_letters(options: argparse.Namespace) -> int:
    """Shows the groups, or the letters of one."""
    if options.group is None:
        return call_admin(options, lambda client: client.get("dlq"), _groups)
    params = {"group": options.group, "limit": options.limit, **({"after": options.after} if options.after else {})}
    return call_admin(options, lambda client: client.get(f"dlq?{urlencode(params)}"), _letters)


def show(options: argparse.Namespace) -> int:
    """Shows a letter with every failed attempt, or how far a redrive is."""
    path = f"dlq/{quote(options.id, safe='')}" + ("?payload=1" if options.payload else "")
    return call_admin(options, lambda client: client.get(path), _letter)


def redrive(options: argparse.Namespace) -> int:
    """Has letters run again, or says what would run."""
    chosen = _chosen(options)
    if not chosen and not options.all and not options.dry_run:
        return fail("replay what? --group, --class, --id …, or --all; --dry-run says what would run", UNUSABLE)
    chosen |= {"rate": options.rate, "dry_run": options.dry_run}
    chosen |= {name: value for name, value in (("to_model", options.to_model), ("max", options.max)) if value}
    return call_admin(options, lambda client: client.post("dlq/replay", chosen), _redriven)


def purge(options: argparse.Namespace) -> int:
    """Throws letters away."""
    chosen = _chosen(options)
    if not chosen and not options.all:
        return fail("purge what? --group, --class, --id …, or --all", UNUSABLE)
    if not options.yes:
        return fail("what is purged cannot be run again: give --yes if that is meant", UNUSABLE)
    chosen |= {"all": True} if options.all else {}
    return call_admin(options, lambda client: client.post("dlq/purge", chosen), lambda told: f"{told['purged']} purged")


def stats(options: argparse.Namespace) -> int:
    """Shows how many there are, and since when, by kind and class."""
    return call_admin(options, _stats, _stats_table)


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in FILTER if getattr(options, name) is not None}
    if "error_class" in given:
        given["class"] = given.pop("error_class")
    return given | ({"older_than_s": options.older_than} if options.older_than is not None else {})


def _groups(answer: Mapping[str, Any]) -> str:
    rows = [
        (
            *(safe(row[name] or "-") for name in ("group", "kind", "class", "model", "letters")),
            _age(row["oldest_seconds"]),
            safe(row["message"]),
        )
        for row in answer["groups"]
    ]
    return lay_out([GROUPS, *rows]) if rows else "no dead letters"


def _letters(answer: Mapping[str, Any]) -> str:
    rows = [
        (
            *(safe(row["id"]), safe(row["state"]), safe(row["attempts"]), moment(row["dead_at"])),
            *(safe(row["tenant"] or "-"), safe(row["last_error"]["message"])),
        )
        for row in answer["data"]
    ]
    more = f"\nmore: --after {safe(answer['after'])}" if answer["after"] else ""
    return lay_out([LETTERS, *rows]) + more if rows else "no dead letters there"


def _letter(answer: Mapping[str, Any]) -> str:
    if answer["object"] == "replay":
        return _redriven(answer)
    lines = [f"{name:10} {safe(answer[name])}" for name in FACTS if answer[name] is not None]
    lines += [f"{'dead at':10} {moment(answer['dead_at'])}"]
    for error in answer["trail"]:
        where = " ".join(safe(error[name]) for name in ("target", "phase") if error[name])
        lines.append(f"  {moment(error['at'])}  {safe(error['class'])}  {where}  {safe(error['message'])}")
    if "payload" in answer:
        lines.append(safe(answer["payload"]) if answer["payload"] is not None else "the request is gone")
    return "\n".join(lines)


def _redriven(answer: Mapping[str, Any]) -> str:
    if not answer.get("dry_run"):
        state = (
            f"{safe(answer['id'])} is {safe(answer['status'])}: {answer['replayed']} replayed, {answer['skipped']} gone"
        )
        return f"{state}\ngateway dlq show {safe(answer['id'])} shows how far it is"
    cost = "not priced" if answer["usd"] is None else f"about {usd(answer['usd'])}"
    rows = [
        (
            *(safe("-" if row[name] is None else row[name]) for name in ("model", "letters", "input_tokens")),
            "-" if row["usd"] is None else usd(row["usd"]),
            "-" if row["limit_per_s"] is None else safe(row["limit_per_s"]),
        )
        for row in answer["models"]
    ]
    gone = f", {answer['not_replayable']} are gone" if answer["not_replayable"] else ""
    letters = "1 letter" if answer["letters"] == 1 else f"{answer['letters']:,} letters"
    head = f"{letters} would run again{gone}; {cost}, {_age(answer['seconds'])}"
    return "\n".join([head, lay_out([MODELS, *rows])]) if rows else head


def _stats(client: AdminClient) -> dict[str, Any]:
    answer, found = client.get("dlq"), dict[tuple[str, str], dict[str, Any]]()
    for row in answer["groups"]:
        one = found.setdefault(
            (row["kind"], row["class"]),
            {"kind": row["kind"], "class": row["class"], "letters": 0, "bytes": 0, "oldest_seconds": 0.0},
        )
        one["letters"] += row["letters"]
        one["bytes"] += row["bytes"]
        one["oldest_seconds"] = max(one["oldest_seconds"], row["oldest_seconds"])
    return {"depth": answer["depth"], "classes": list(found.values())}


def _stats_table(answer: Mapping[str, Any]) -> str:
    rows = [
        (safe(row["kind"]), safe(row["class"]), safe(row["letters"]), safe(row["bytes"]), _age(row["oldest_seconds"]))
        for row in answer["classes"]
    ]
    return lay_out([("kind", "class", "letters", "bytes", "oldest"), *rows]) if rows else "no dead letters"


def _age(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
