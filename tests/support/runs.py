"""Runs of pipelines on every store, in virtual time: processes that can be killed, and a provider that keeps a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from gateway.core.call import Call, Reply
from gateway.core.retry import Attempt
from gateway.products.jobs.calls import StoredRequest
from gateway.products.jobs.model import RUN, Job, JobKind, JobState, NewJob, new_id
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.worker import RunningWork
from gateway.products.pipelines.compile import compile_plan
from gateway.products.pipelines.rules import AT_ONCE, DIGEST, PIPELINE_NAME, RunPayload, rules_of_items
from gateway.products.pipelines.service import PipelineRuns, RunChildren, RunReader
from tests.support.stage import few_lines
from tests.support.targets import target_named
from tests.support.town import Process, Town, View

RUN_ID = new_id(RUN, bytes(16))
CALL_USD = 0.01
Say = Callable[[str, int], "str | int | float"]
"""What is said to a prompt that is asked for the n-th time: a text, a status, or seconds until the text `ok`."""


def call(content: str, model: str = "m", **others: Any) -> dict[str, Any]:
    return {"call": {"model": model, "messages": [{"role": "user", "content": content}]}, **others}


STAGES: dict[str, Any] = {
    "steps": {
        "extract": call("extract {{ input.document }}"),
        "language": call("language {{ input.document | first(10) }}"),
        "clause": {
            "for_each": "steps.extract.json.clauses",
            "max_concurrency": 7,
            "on_failure": {"tolerate_percent": 10},
            "choose": [
                {"when": "steps.language.text == 'es'", **call("analiza {{ item }}", "big")},
                call("analyse {{ item }}"),
            ],
        },
        "summary": call("summarise {{ steps.clause.texts | join }}", on_failure={"repair_with": "fixer"}),
        "report": call("report {{ steps.summary.text }} on {{ steps.clause.total }}"),
    },
    "output": "steps.report.text",
}
"""Five stages with a branch, a fan-out of which a tenth may fail, and a request that is repaired."""


def stages_say(clauses: int, failing: int = 0) -> Say:
    """What a provider says to the stages: so many clauses, of which the first `failing` cannot be analysed."""

    def say(prompt: str, _time: int) -> str | int:
        word, _, rest = prompt.partition(" ")
        if word == "extract":
            return orjson.dumps({"clauses": [f"c{number}" for number in range(clauses)]}).decode()
        if word == "language":
            return "es"
        if word == "analiza":
            return 400 if int(rest[1:]) < failing else f"a-{rest}"
        if word == "summarise":
            return "short" if rest == "less" else 400
        if word == "A":  # the repairing model is told of the request
            return orjson.dumps({"messages": [{"role": "user", "content": "summarise less"}]}).decode()
        return f"done: {prompt}"

    return say


@dataclass
class Ledger:
    """What the provider was asked, and what that has cost."""

    say: Say
    asked: Counter[str] = field(default_factory=Counter)
    usd: float = 0.0
    billed_usd: float = 0.0
    """What the provider wants to be paid, for calls of processes that died, too, where a test counts it."""


def prompt_of(request: StoredRequest) -> str:
    """What a provider is asked."""
    return cast("str", orjson.loads(request.body)["messages"][0]["content"])


@dataclass
class RunProcess(Process):
    """A gateway that runs pipelines."""

    ledger: Ledger = field(default_factory=lambda: Ledger(lambda prompt, _time: prompt))

    def __post_init__(self) -> None:
        super().__post_init__()

        async def usd_of(_new: NewJob) -> None:
            return None

        looks = RunReader(self.store, self.blobs)
        children = RunChildren(self.blobs, self._rules_of, usd_of)
        self.runs = PipelineRuns(self.store, looks, children, self.clock, lambda _model: lambda text: len(text) / 4)
        self.advanced = 0

    async def run_piece(self, running: RunningWork) -> None:
        if running.work.job.kind is JobKind.RUN:
            self.advanced += 1
            await self.runs.run(running)
        else:
            await super().run_piece(running)

    def _rules_of(self, job: Job) -> JobRules:
        return rules_of_items(self.rules, job.about) if AT_ONCE in job.about else self.rules

    async def serve(self, call: Call) -> Reply:
        seen: Any = call
        prompt = prompt_of(seen.request)
        said = self.ledger.say(prompt, self.ledger.asked[prompt])
        self.ledger.asked[prompt] += 1
        self.script = lambda _request, _time: said if not isinstance(said, str) else 0.1
        reply = await super().serve(call)
        is_ok = reply.status == 200
        usd = CALL_USD if is_ok else 0.0
        self.ledger.usd += usd
        seen.attempts.append(Attempt(target_named("p/m"), 0.0, cost_usd=usd))
        text = said if isinstance(said, str) else "ok"
        message = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        body = message if is_ok else {"error": {"message": f"no: {text}", "code": "bad_request"}}
        return Reply(reply.status, [], orjson.dumps(body), shared=reply.shared)

    async def accept_run(self, source: dict[str, Any], given: Any, id: str = RUN_ID, **changes: Any) -> None:
        """Takes a run of a pipeline of this source."""
        plan, problems = compile_plan("p", source)
        assert plan is not None, problems
        carried = RunPayload("p", source, given, "/v1/chat/completions")
        about = {"endpoint": carried.endpoint, PIPELINE_NAME: "p", DIGEST: plan.digest}
        usual = {"kind": JobKind.RUN, "about": about, "model": plan.model_name, "max_attempts": 1}
        new = self.new_job(id, **{**usual, **changes})
        await self.store.accept([NewJob(new.job, carried.packed())])

    async def text_of(self, job: Job) -> str:
        """The text of a run that has come to something."""
        answer = await self.store.answer(job.id, job.tenant)
        assert job.state is JobState.SUCCEEDED, job
        assert answer is not None
        return cast("str", orjson.loads(answer.body)["choices"][0]["message"]["content"])


class CountingView(View):
    """A process that dies at its n-th use of the store, before or after it."""

    def __init__(self, town: Town, dies_at: int = -1, *, after: bool = False) -> None:
        super().__init__(town.kept, town.over)
        self.uses: list[str] = []
        self._dies_at = dies_at
        self._after = after

    def asking(self, name: str, method: Callable[[], Any]) -> Callable[..., Any]:
        ask = super().asking(name, method)

        async def asked(*given: Any, **named: Any) -> Any:
            self.uses.append(name)
            if len(self.uses) - 1 == self._dies_at:
                self.dies_before, self.dies_after = ("", name) if self._after else (name, "")
            return await ask(*given, **named)

        return asked


def run_process(
    town: Town, ledger: Ledger, view: View | None = None, kind: type[RunProcess] = RunProcess, **fields: Any
) -> RunProcess:
    """A process at work."""
    usual: dict[str, Any] = {"rules": few_lines(window=50), "blobs": town.blobs, "tries": town.tries}
    one = kind(town.clock, view=view or View(town.kept, town.over), ledger=ledger, **{**usual, **fields})
    one.worker.start()
    return one
