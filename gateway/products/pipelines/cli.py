"""The commands `gateway pipelines`: plans checked and explained, without a gateway that runs; and one run, from its input on.

The run is the gateway's: it goes on whatever becomes of this process, and who leaves it sees how to find it again. Where no
gateway runs, this process is one until the run has ended.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from gateway.cli.config import compile_config, settings_of
from gateway.cli.main import FAILED, INTERRUPTED, OK, UNUSABLE, fail
from gateway.cli.operate import AdminRefused, lay_out, safe, usd
from gateway.core.config.source import did_you_mean
from gateway.products.jobs.cli import CallerClient, ProgressLine, caller_for, patiently
from gateway.products.pipelines.compile import PIPELINES, PREFIX, explained

HEADINGS = ("step", "waits for", "asks", "calls", "on failure")


def check(options: argparse.Namespace) -> int:
    """Checks all pipelines, with the config that they are part of."""
    settings = settings_of(options)
    plans = PIPELINES.of(compile_config(settings))
    for plan in plans.values():
        print(f"{plan.model_name}: ok ({len(plan.steps)} steps, {plan.digest[:12]})")
    print(f"{settings.config}: ok ({len(plans)} pipelines)", file=sys.stderr)
    return OK


def explain(options: argparse.Namespace) -> int:
    plans = PIPELINES.of(compile_config(settings_of(options)))
    name = options.name.removeprefix(PREFIX)
    if name not in plans:
        return fail(f"there is no pipeline {name!r}{did_you_mean(name, plans)}", UNUSABLE)
    facts = explained(plans[name])
    print(json.dumps(facts, indent=2) if options.json else _text(facts))
    return OK


def _text(facts: dict[str, Any]) -> str:
    rows = [
        (
            safe(one["step"]),
            ", ".join(one["waits_for"]) or "-",
            safe(f"{one['endpoint']}: {', '.join(one['models'])}"),
            one["calls"],
            one["on_failure"],
        )
        for one in facts["steps"]
    ]
    money = facts["usd_per_run"]
    lines = [
        f"{facts['model']}  {facts['digest'][:12]}",
        *([safe(facts["description"])] if facts["description"] else []),
        f"input: {', '.join(facts['input_fields']) or 'anything'}",
        f"money: {f'{money:g} USD a run' if money is not None else 'no bound'}",
        f"calls: {facts['calls']}",
        "",
        lay_out([HEADINGS, *rows]),
        "",
        f"output: {safe(facts['output'])}",
    ]
    return "\n".join(lines)


ENDS = frozenset({"succeeded", "failed", "cancelled", "expired"})
POLL_S = 1.0
_RUN_ID = re.compile(r"run_gw\w+")


def run(options: argparse.Namespace) -> int:
    """Begins a run, or goes on with one, and prints what it comes to."""
    is_begun = _RUN_ID.fullmatch(options.name) is not None
    if not is_begun and options.input is None:
        return fail("give the input with --input FILE; - reads standard input", UNUSABLE)
    given = "" if is_begun else _read(options.input)
    progress = ProgressLine(sys.stderr)
    run_id = options.name if is_begun else ""
    try:
        with caller_for(options, progress) as (client, _):
            run_id = run_id or _begin(client, options.name.removeprefix(PREFIX), given, progress)
            job = _to_its_end(client, run_id, progress)
            return _finish(client, job, progress, prints_json=options.json)
    except AdminRefused as error:
        progress.clear()
        return fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    except KeyboardInterrupt:
        progress.clear()
        ways = f"{run_id} goes on; 'gateway pipelines run {run_id}' waits for it" if run_id else "nothing has begun"
        return fail(ways, INTERRUPTED)


def _read(place: Path) -> str:
    return sys.stdin.read() if str(place) == "-" else place.read_text(encoding="utf-8", errors="replace")


def _begin(client: CallerClient, name: str, given: str, progress: ProgressLine) -> str:
    """Returns the id of a new run. Raises AdminRefused where the gateway has no such pipeline for this key.

    It is looked up first: a gateway without pipelines may have a model that takes any name, and would have it answer.
    """
    models = patiently(lambda: client.request("GET", "models").fields, progress)["data"]
    names = [model["id"].removeprefix(PREFIX) for model in models if model["id"].startswith(PREFIX)]
    if name not in names:
        known = f"it has {', '.join(map(safe, names))}" if names else "it has none; see 'policies' of its config"
        raise AdminRefused(f"the gateway has no pipeline '{safe(name)}' for this key: {known}", is_misuse=True)
    body = {"model": PREFIX + name, "messages": [{"role": "user", "content": given}]}
    request = {"endpoint": "/v1/chat/completions", "body": body}
    once = {"idempotency-key": str(uuid.uuid4())}  # asked again, it is the same run
    return str(patiently(lambda: client.request("POST", "jobs", request, once).fields, progress)["id"])


def _to_its_end(client: CallerClient, run_id: str, progress: ProgressLine) -> dict[str, Any]:
    while True:
        answer = patiently(lambda: client.request("GET", f"jobs/{run_id}"), progress)
        job = answer.fields
        if job["status"] in ENDS:
            return job
        done = job["progress"]
        progress.show(f"{run_id}: {done['done']} of {done['total']} steps, {usd(job['cost_usd'])}")
        time.sleep(POLL_S if answer.poll_after_s is None else min(POLL_S, answer.poll_after_s))


def _finish(client: CallerClient, job: dict[str, Any], progress: ProgressLine, *, prints_json: bool) -> int:
    progress.clear()
    if job["status"] != "succeeded":
        why = (job["last_error"] or {}).get("message") or "without an answer"
        return fail(f"{job['id']} has ended as {job['status']}: {safe(why)}", FAILED)
    answer = patiently(lambda: client.request("GET", f"jobs/{job['id']}/result").fields, progress)
    if prints_json:
        print(json.dumps(answer, indent=2))
    else:
        print(answer["choices"][0]["message"]["content"])
    tokens = job["usage"]["total_tokens"]
    print(f"{job['id']}: {job['progress']['total']} steps, {tokens} tokens, {usd(job['cost_usd'])}", file=sys.stderr)
    return OK
