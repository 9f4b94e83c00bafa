"""Anthropic's Message Batches of an emulated provider: an honest one, which works a batch off when its time has come.

It must not know sockets, limits or faults. Invariants: a request is answered once, by what answers calls; ids are never used
twice. Source: https://platform.claude.com/docs/en/api/messages/batches
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.emulator.answers.reply import EmulatedReply, Stream, json_reply
from gateway.emulator.problems import refusing
from gateway.emulator.problems.problems import EmulatedProblem, ProblemError, wrong_method

MOST_REQUESTS = 100_000
_PATH = re.compile(r"(?:/anthropic)?(?:/v1)?/messages/batches(?:/([^/]+))?(?:/(cancel|results))?")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LIMIT = re.compile(r"[1-9][0-9]{0,3}")
_WINDOW_S = 86_400
AnswerMessage = Callable[[bytes], EmulatedReply | Stream]
"""Answers the body of a call of Messages. Raises ProblemError."""


def is_of_batches(path: str) -> bool:
    """Tells whether a path is one of Message Batches."""
    return _PATH.fullmatch(path) is not None


class EmulatedMessageBatches:
    """All batches; `serve` answers every request for them."""

    def __init__(
        self, wall: Callable[[], float], rng: Random, answer: AnswerMessage, works_s: Callable[[], float]
    ) -> None:
        """`works_s` says how many seconds a batch takes."""
        self._wall = wall
        self._rng = rng
        self._answer = answer
        self._works_s = works_s
        self.batches: dict[str, dict[str, Any]] = {}
        self.requests: dict[str, list[dict[str, Any]]] = {}
        self.results: dict[str, bytes] = {}
        self.served: Counter[str] = Counter()
        """By custom_id, how often a request was answered, and would have to be paid for."""
        self._origin = ""
        """Of those who ask, where they fetch results."""
        self.made = 0
        """Batches, those that were removed again among them."""

    def serve(
        self, method: str, path: str, query: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> EmulatedReply:
        """Answers a request. Raises ProblemError."""
        told = dict(headers)
        self._origin = f"http://{told.get(b'host', b'').decode('latin-1')}"
        if b"anthropic-version" not in told:
            raise refusing.refused("anthropic-version: header is required")
        found = _PATH.fullmatch(path)
        id, verb = (found[1] or "", found[2] or "") if found else ("", "")
        asked = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
        match method, bool(id), verb:
            case "POST", False, _:
                return self._create(body)
            case "GET", False, _:
                return self._page(asked)
            case "GET", True, "":
                return json_reply(self._shown(self._known(id)))
            case "POST", True, "cancel":
                return self._cancel(self._known(id))
            case "GET", True, "results":
                return self._results(self._known(id))
            case "DELETE", True, "":
                return self._remove(self._known(id))
        raise ProblemError(wrong_method(method, path, "POST" if verb == "cancel" else "GET"))

    def _create(self, body: bytes) -> EmulatedReply:
        requests = refusing.read_object(body, "messages").get("requests")
        if not isinstance(requests, list) or not 0 < len(requests) <= MOST_REQUESTS:
            raise refusing.refused("requests: Field required")
        names = [one.get("custom_id") if isinstance(one, dict) else None for one in requests]
        for at, (name, one) in enumerate(zip(names, requests, strict=True)):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise refusing.refused(
                    f"requests.{at}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
                )
            if not isinstance(one.get("params"), dict):
                raise refusing.refused(f"requests.{at}.params: Field required")
        if len(set(names)) < len(names):
            raise refusing.refused("requests: custom_id must be unique")
        now = self._wall()
        id = f"msgbatch_{self._rng.getrandbits(96):024x}"
        unset = dict.fromkeys(("ended_at", "cancel_initiated_at", "archived_at", "results_url"))
        self.batches[id] = {
            "id": id,
            "type": "message_batch",
            "processing_status": "in_progress",
            "request_counts": _counts(processing=len(requests)),
            "created_at": now,
            "expires_at": _time(now + _WINDOW_S),
            **unset,
        }
        self.requests[id] = requests
        self.made += 1
        return json_reply(self._shown(id))

    def _shown(self, id: str) -> dict[str, Any]:
        """Returns a batch as it is shown; one whose time has come is worked off first."""
        batch = self.batches[id]
        if batch["processing_status"] == "in_progress" and self._wall() - batch["created_at"] >= self._works_s():
            self._work_off(id, 1.0)
        return {**batch, "created_at": _time(batch["created_at"])}

    def _cancel(self, id: str) -> EmulatedReply:
        batch, now = self.batches[id], self._wall()
        self._shown(id)
        if batch["processing_status"] != "in_progress":
            raise refusing.refused(f"Batch {id} cannot be canceled: it has ended.")
        batch["cancel_initiated_at"] = _time(now)
        self._work_off(id, min(1.0, (now - batch["created_at"]) / (self._works_s() or 1.0)))
        return json_reply({**self._shown(id), "processing_status": "canceling", "results_url": None})

    def _remove(self, id: str) -> EmulatedReply:
        self._shown(id)
        if self.batches[id]["processing_status"] != "ended":
            raise refusing.refused(f"Batch {id} cannot be deleted while it is in progress.")
        for kept in (self.batches, self.requests, self.results):
            kept.pop(id, None)
        return json_reply({"id": id, "type": "message_batch_deleted"})

    def _results(self, id: str) -> EmulatedReply:
        self._shown(id)
        if id not in self.results:
            raise refusing.refused(f"Batch {id} has no results yet.", 404)
        return EmulatedReply(body=self.results[id], content_type=b"application/x-jsonl")

    def _work_off(self, id: str, share: float) -> None:
        """Answers this share of a batch's requests, and ends it."""
        requests, lines = self.requests[id], []
        done = int(len(requests) * share)
        counts: Counter[str] = Counter()
        for at, one in enumerate(requests):
            result = self._result(one) if at < done else {"type": "canceled"}
            counts[str(result["type"])] += 1
            lines.append(orjson.dumps({"custom_id": one["custom_id"], "result": result}))
        self.results[id] = b"\n".join(reversed(lines)) + b"\n"
        self.batches[id] |= {
            "processing_status": "ended",
            "request_counts": _counts(**counts),
            "ended_at": _time(self._wall()),
            "results_url": f"{self._origin}/v1/messages/batches/{id}/results",
        }

    def _result(self, one: Mapping[str, Any]) -> dict[str, Any]:
        self.served[one["custom_id"]] += 1
        try:
            reply = self._answer(orjson.dumps(one["params"]))
        except ProblemError as found:
            reply = found.problem.reply("messages", request_id=f"req_{one['custom_id']}")
        if isinstance(reply, Stream):
            reply = EmulatedProblem(400, "stream: not supported in batches").reply("messages")
        said = orjson.loads(reply.body)
        return {"type": "errored", "error": said} if reply.status >= 400 else {"type": "succeeded", "message": said}

    def _page(self, asked: Mapping[str, str]) -> EmulatedReply:
        """Returns a page of the list, newest first."""
        ids = list(self.batches)[::-1]
        start = ids.index(asked["after_id"]) + 1 if asked.get("after_id") in ids else 0
        limit = int(asked["limit"]) if _LIMIT.fullmatch(asked.get("limit", "")) else 20
        page = ids[start : start + limit]
        ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        return json_reply({"data": [self._shown(one) for one in page], "has_more": start + limit < len(ids), **ends})

    def _known(self, id: str) -> str:
        if id not in self.batches:
            raise refusing.refused(f"Message batch {id} not found.", 404)
        return id


def _counts(**said: int) -> dict[str, int]:
    return {**dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0), **said}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
