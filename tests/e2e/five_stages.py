"""A pipeline of five stages: a branch, a fan-out of which a tenth may fail, and an output that has to be repaired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.e2e.durable import policies
from tests.e2e.harness import KEYS
from tests.e2e.speaking import PRICE, Say


def _call(content: str, model: str = "small", **others: Any) -> dict[str, Any]:
    return {"call": {"model": model, "messages": [{"role": "user", "content": content}]}, **others}


CLAUSES = {"type": "object", "required": ["clauses"], "properties": {"clauses": {"type": "array"}}}
PIPELINE: dict[str, Any] = {
    "input": {"type": "object", "required": ["document"]},
    "usd_per_run": 100,
    "steps": {
        "extract": _call(
            "extract {{ input.document }}",
            output={"schema": CLAUSES, "on_invalid": {"retry": 1, "repair_with": "small"}},
        ),
        "language": _call("language {{ input.document | first(100) }}"),
        "clause": {
            "for_each": "steps.extract.json.clauses",
            "max_concurrency": 50,
            "on_failure": {"tolerate_percent": 10},
            "choose": [
                {"when": "steps.language.text == 'es'", **_call("analiza {{ item }}", "big")},
                _call("analyse {{ item }}"),
            ],
        },
        "summary": _call("summarise {{ steps.clause.texts | join | first(200) }}", on_failure={"repair_with": "small"}),
        "report": _call("report {{ steps.summary.text }}: {{ steps.clause.failed }} of {{ steps.clause.total }}"),
    },
    "output": "steps.report.text",
}


def says(clauses: int) -> Say:
    """What the models say: a tenth of the clauses fails, the list of clauses is wrong twice, the first summary is refused."""
    found = orjson.dumps({"clauses": [f"c{number}" for number in range(clauses)]}).decode()

    def say(prompt: str, time: int) -> str | int:
        word, _, rest = prompt.partition(" ")
        if word == "extract":
            return '{"clause": []}'
        if word == "JSON":  # the repairing model, with the schema before the document
            return found
        if word == "language":
            return "es"
        if word == "analiza":
            return 400 if int(rest[1:]) % 10 == 0 else f"a{rest}"
        if word == "summarise":
            return "short" if rest == "less" else 400
        if word == "A":  # it is told of the request that has failed
            return orjson.dumps({"messages": [{"role": "user", "content": "summarise less"}]}).decode()
        return f"done: {prompt}"

    return say


def calls_paid(clauses: int) -> int:
    """The answers that a run without a kill pays for: extract twice and once repaired, and once each all that succeeds."""
    return 3 + 1 + clauses * 9 // 10 + 2 + 1


def config_with(folder: Path, url: str, **jobs: Any) -> dict[str, Any]:
    """A config with the pipeline and its models at a provider."""
    place = Path(policies(folder)) / "pipelines"
    place.mkdir(exist_ok=True)
    (place / "stages.yaml").write_text(yaml.safe_dump(PIPELINE))
    models = {name: {"targets": [{"provider": "main", "model": name, "price": PRICE}]} for name in ("small", "big")}
    kept = {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/blobs", "min_free": "1MiB", **jobs}
    provider = {"dialect": "openai", "base_url": url, "api_key": "sk-provider"}
    return {
        "providers": {"main": provider},
        "models": models,
        "keys": KEYS,
        "policies": str(place.parent),
        "jobs": kept,
    }
