"""`gateway pipelines check` and `explain`: what pipelines mean, without a gateway that runs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from gateway.cli.config import compile_config, settings_of
from gateway.cli.main import OK, UNUSABLE, fail
from gateway.cli.operate import lay_out, safe
from gateway.core.config.source import did_you_mean
from gateway.products.pipelines.compile.compiling import PREFIX
from gateway.products.pipelines.compile.explain import explained

HEADINGS = ("step", "waits for", "asks", "calls", "on failure")


def check(options: argparse.Namespace) -> int:
    """Checks all pipelines, with the config that they are part of."""
    settings = settings_of(options)
    plans = compile_config(settings).pipelines
    for plan in plans.values():
        print(f"{plan.model_name}: ok ({len(plan.steps)} steps, {plan.digest[:12]})")
    print(f"{settings.config}: ok ({len(plans)} pipelines)", file=sys.stderr)
    return OK


def explain(options: argparse.Namespace) -> int:
    """Shows one pipeline."""
    plans = compile_config(settings_of(options)).pipelines
    name = options.name.removeprefix(PREFIX)
    if name not in plans:
        return fail(f"there is no pipeline {name!r}{did_you_mean(name, plans)}", UNUSABLE)
    facts = explained(plans[name])
    print(json.dumps(facts, indent=2) if options.json else _text(facts))
    return OK


def _text(facts: dict[str, Any]) -> str:
    rows = [
        (safe(one["step"]), ", ".join(one["waits_for"]) or "-", _asks(one), one["calls"], one["on_failure"])
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


def _asks(one: dict[str, Any]) -> str:
    return safe(f"{one['endpoint']}: {', '.join(one['models'])}")
