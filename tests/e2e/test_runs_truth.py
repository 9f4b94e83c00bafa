"""What `/metrics` says of workflows, against what the provider's own ledger and the words that were told come to."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import AsyncMock

import orjson
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.clock import SteadyClock
from gateway.emulator.config import EmulatorConfig
from tests.e2e.caches import Wall
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, KEYS, WEB_KEY, Peer, Running, chat, config_of, connect, get, post

WEB, OPERATOR = f"authorization: Bearer {WEB_KEY}", f"authorization: Bearer {ADMIN_KEY}"
INPUT_USD, OUTPUT_USD = 2e-6, 8e-6
RUNS = 48
TASKS = {"invoice": ("extract", "check"), "digest": ("read", "write"), "undeclared": ("one", "two")}
WORKFLOWS = {
    "invoice": {"tasks": ["extract", "check"], "max_calls_per_run": 9},
    "digest": {"tasks": ["read", "write"], "ends": "idle 5m"},
}
ATTEMPTS = 2
LABELS = "workflow task result outcome was now usable level ok"
FAULTS = {
    "good": [],
    "streamed": [],
    "again": [],
    "twins": [],
    "saved": ["e503"],
    "lost": ["e500", "e503"],
    "refused": ["content_filter"],
    "cut": ["cut"],
}
"""What becomes of a call: the faults that the provider has for it."""
BAD = {"lost", "refused", "cut", "fuse"}
WORDS: list[dict[str, Any] | None] = [
    *(None, None, None),
    {"outcome": "succeeded"},
    {"outcome": "failed"},
    {"usable": True},
    {"outcome": "succeeded", "usable": False, "value_usd": 1.5},
    {"outcome": "failed", "usable": True},
]


@dataclass
class Pass:
    """One run: what becomes of its calls, task by task, and what is told of it."""

    run: str
    workflow: str
    calls: list[tuple[str, str]]
    """Task, and what becomes of the call."""
    word: dict[str, Any] | None
    is_told_late: bool
    """After it was counted."""
    said_by_header: str = ""
    """The outcome that its last call has said."""
    prompts: list[tuple[str, str, str]] = field(default_factory=list)
    """Of each call that was let in: its task, what became of it, its prompt."""

    @property
    def label(self) -> str:
        return self.workflow if self.workflow in WORKFLOWS else "other"

    def ends(self) -> tuple[str, str]:
        """What has become of it by what its calls show, before and after it went idle; empty: nothing yet."""
        last = {task: kind not in BAD for task, kind in self.calls}
        if self.workflow == "invoice" and last.get("check"):
            return "succeeded", "succeeded"
        if self.workflow not in WORKFLOWS:
            return "", "unknown"
        if not all(last.values()):
            return "", "failed"
        return "", "succeeded" if self.workflow == "digest" else "abandoned"


@dataclass
class Counted:
    """What the metrics of runs are to be, by their labels."""

    ends: Counter[tuple[str, ...]] = field(default_factory=Counter)
    corrected: Counter[tuple[str, ...]] = field(default_factory=Counter)
    used: Counter[tuple[str, ...]] = field(default_factory=Counter)
    levels: Counter[tuple[str, ...]] = field(default_factory=Counter)
    rescued: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def add(self, one: Pass) -> None:
        """Counts what becomes of a run: once when it has ended, and what another word has corrected."""
        word = {} if one.word is None else one.word
        said = "" if one.said_by_header == "succeeded" and one.calls[-1][1] in BAD else one.said_by_header
        at_once, when_idle = one.ends()
        first = at_once or when_idle
        final = said or word.get("outcome") or first
        if said or not one.is_told_late:
            first = final
        self.ends[one.label, first] += 1
        if first != final:
            self.corrected[one.label, first, final] += 1
        if first != "unknown":
            self.levels["workflow", str(first == "succeeded").lower()] += 1
        if first == "succeeded" and any(kind in {*BAD, "saved"} - {"fuse"} for _, kind in one.calls):
            self.rescued[(one.label,)] += 1
        if said or word:
            is_usable = word.get("usable", (said or word.get("outcome")) == "succeeded")
            self.used[one.label, str(is_usable).lower()] += 1
            self.levels["business", str(is_usable).lower()] += 1


def mix(rng: Random) -> list[Pass]:
    """Runs of all workflows; in each a failed call is tried again by its program two times in three."""
    runs = []
    for number in range(RUNS):
        workflow = rng.choice(list(TASKS))
        calls: list[tuple[str, str]] = []
        for task in TASKS[workflow][: rng.choice((1, 2, 2, 2))]:
            calls.append((task, rng.choice(list(FAULTS))))
            if calls[-1][1] in BAD and rng.random() < 2 / 3:
                calls.append((task, "good"))
        runs.append(Pass(f"run/{number}", workflow, calls, rng.choice(WORDS), rng.random() < 0.4))
        if runs[-1].word is None and rng.random() < 0.3:
            runs[-1].said_by_header = rng.choice(("succeeded", "failed"))
    endless = [("extract", "good")] * 9 + [("extract", "fuse")]
    return [*runs, Pass("endless", "invoice", endless, None, is_told_late=False)]


def config(folder: Path, url: str) -> dict[str, Any]:
    place = folder / "policies"
    place.mkdir()
    files: dict[str, Any] = {
        "workflows": {"workflows": WORKFLOWS},
        "retries": {"default": {"attempts": ATTEMPTS, "backoff": {"base": "1ms", "max": "1ms"}}},
        "breakers": {"default": {"enabled": False}},
        "cache": {"default": {"coalesce": "always", "exact": {"requests": "always", "ttl": "10m"}}},
    }
    for name, content in files.items():
        (place / f"{name}.yaml").write_text(yaml.safe_dump(content))
    price = {"input_usd_per_million": INPUT_USD * 1e6, "output_usd_per_million": OUTPUT_USD * 1e6}
    models = {"gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "price": price}]}}
    return config_of(url, models=models, keys=KEYS, admin={"key": ADMIN_KEY}, policies=str(place))


async def go(gateway: Running, peers: tuple[Peer, Peer], one: Pass) -> None:
    """Takes a run through its calls."""
    for number, (task, kind) in enumerate(one.calls):
        gateway.script(*FAULTS.get(kind, []))
        prompt = f"{one.run} {task} {number}"
        said = [f"x-gateway-run: {one.run}", f"x-gateway-task: {task}", f"x-gateway-workflow: {one.workflow}"]
        if one.said_by_header and number == len(one.calls) - 1:
            said.append(f"x-gateway-run-outcome: {one.said_by_header}")
        body = chat(messages=[{"role": "user", "content": prompt}], stream=kind in ("streamed", "cut"))
        request = post("/v1/chat/completions", body, WEB, *said)
        if kind == "cut":
            assert b"error" in (await peers[0].exchange(request)).body
        elif kind == "twins":
            for peer in peers:
                peer.send(request)
            assert [(await peer.response()).status for peer in peers] == [200, 200]
        else:
            for _ in range(2 if kind == "again" else 1):
                assert ((await peers[0].exchange(request)).status == 200) == (kind not in BAD)
        one.prompts += [(task, kind, prompt)] * (2 if kind in ("again", "twins") else 1)


async def tell(peer: Peer, one: Pass) -> None:
    if one.word is not None:
        path = f"/v1/runs/{one.run.replace('/', '%2F')}/outcome"
        assert (await peer.exchange(post(path, one.word, WEB))).status == 200


def samples(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each sample that is not 0, by its labels in the order of the documentation."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.value:
                labels = sorted(one.labels, key=LABELS.find)
                found.setdefault(one.name, {})[tuple(one.labels[name] for name in labels)] = one.value
    return found


async def test_the_metrics_of_workflows_are_what_the_ledger_and_the_words_say(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = Wall()
    monkeypatch.setattr(SteadyClock, "wall", staticmethod(wall.now))
    runs = mix(Random(25))
    gateway = await start(
        lambda url: config(tmp_path, url), emulator=EmulatorConfig(output_sigma=0.5, recorded_requests=10_000)
    )
    table = gateway.gateway._runs
    assert table is not None
    tick = table.tick
    monkeypatch.setattr(table, "tick", AsyncMock())  # the test says when it is
    async with connect(gateway.url) as peer, connect(gateway.url) as other:
        plain = await peer.exchange(post("/v1/chat/completions", chat(), WEB))
        for one in runs:
            await go(gateway, (peer, other), one)
            await gateway.idle()
            if not one.is_told_late:
                await tell(peer, one)
            await tick()
        wall.ahead_s += 400  # whoever was not told of goes idle
        await tick()
        for one in runs:
            if one.is_told_late:
                await tell(peer, one)
        told = samples((await peer.exchange(get("/metrics", OPERATOR))).body.decode())
        shown = orjson.loads((await peer.exchange(get("/v1/runs?limit=100", WEB))).body)["data"]
    async with connect(gateway.emulator.url) as peer:
        ledger = orjson.loads((await peer.exchange(get("/__emulator/requests"))).body)["requests"]
    assert plain.status == 200
    await gateway.stop()
    log = [one for one in gateway.records if one["event"] == "call"]

    asked: dict[str, list[dict[str, Any]]] = {}
    for request in ledger:
        asked.setdefault(orjson.loads(request["body"])["messages"][-1]["content"], []).append(request)
    calls: Counter[tuple[str, ...]] = Counter()
    costs: dict[tuple[str, ...], float] = defaultdict(float)
    counted = Counted()
    for one in runs:
        for task, kind, prompt in one.prompts:
            answers = asked.get(prompt, [])
            is_good = bool(answers) and answers[-1]["status"] == 200 and kind != "cut"
            assert len(answers) == {"saved": 2, "lost": 2, "fuse": 0}.get(kind, 1), prompt
            labels = (one.label, task if one.label != "other" else "other")
            calls[*labels, "ok" if is_good else "bad"] += 1
            counted.levels["task", str(is_good).lower()] += 1
        for task, prompt in {(task, prompt) for task, kind, prompt in one.prompts if kind != "cut"}:
            labels = (one.label, task if one.label != "other" else "other")
            for answer in asked.get(prompt, []):
                if answer["status"] == 200:
                    tokens = answer["tokens"]
                    costs[labels] += tokens["input"] * INPUT_USD + tokens["output"] * OUTPUT_USD
        counted.add(one)

    cut = [one for one in log if one["usage_estimated"]]
    for record in cut:  # the provider does not say what the half of an answer has cost
        costs[label_of(record)] += record["cost_usd"]
    assert len(cut) == sum(kind == "cut" for one in runs for _, kind in one.calls) > 0
    assert told["gateway_workflow_calls_total"] == calls
    assert told["gateway_workflow_runs_total"] == counted.ends
    assert told["gateway_workflow_runs_corrected_total"] == counted.corrected
    assert told["gateway_workflow_used_total"] == counted.used
    assert told["gateway_workflow_rescued_runs_total"] == counted.rescued
    assert told["gateway_success_ratio_total"] == counted.levels
    assert told["gateway_workflow_cost_usd_total"] == pytest.approx(dict(costs), abs=1e-9)

    by_task: dict[tuple[str, ...], float] = defaultdict(float)
    for record in log:
        if "workflow" in record:
            by_task[label_of(record)] += record["cost_usd"] or 0.0
    spent = sum(told["gateway_cost_usd_total"].values())
    plain_usd = sum(record["cost_usd"] for record in log if "workflow" not in record)
    assert told["gateway_workflow_cost_usd_total"] == pytest.approx(dict(by_task), abs=1e-9)
    assert sum(by_task.values()) + plain_usd == pytest.approx(spent, abs=1e-9)
    assert sum(one["cost_usd"] for one in shown) + plain_usd == pytest.approx(spent, abs=1e-9)
    with_retries = sum(told["gateway_workflow_run_cost_usd_sum"].values())
    wasted = sum(told.get("gateway_retries_cost_usd_total", {}).values())
    assert with_retries == pytest.approx(spent - plain_usd + wasted, abs=1e-9)


def label_of(record: dict[str, Any]) -> tuple[str, str]:
    """The labels of a call of the log."""
    return (record["workflow"], record["task"]) if record["workflow"] in WORKFLOWS else ("other", "other")
