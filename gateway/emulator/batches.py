"""Batches of an emulated provider, an honest one, which works a batch off when its time has come: OpenAI's, then Anthropic's.

OpenAI's take a file of lines and leave files of answers (the Files and Batch APIs); Anthropic's Message Batches take the
requests themselves. It must not know sockets, limits or faults: batches have room of their own. Invariants: a line is answered
once, by what answers calls; ids are never used twice. Source: https://platform.claude.com/docs/en/api/messages/batches
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.emulator.replies import (
    EmulatedProblem,
    EmulatedReply,
    EmulatedStream,
    ProblemError,
    json_reply,
    read_object,
    refused,
    unknown_url,
    wrong_method,
)
from gateway.emulator.routes import ENDPOINTS, MESSAGE_BATCHES, EmulatedEndpoint, canonical

# --- OpenAI's ---


MOST_FILES = 10_000
"""Older ones are forgotten."""
_WINDOW_S = 86_400
_BOUNDARY = re.compile(rb'boundary="?([^";]+)')
_FILENAME = re.compile(rb'filename="([^"]*)"')
_MAX_5_DIGITS = re.compile(r"[1-9][0-9]{0,4}")
_FIELD = re.compile(rb'name="([^"]*)"')
AnswerLine = Callable[[EmulatedEndpoint, dict[str, Any]], EmulatedReply | EmulatedStream]
"""Answers the body of a line. Raises ProblemError."""


@dataclass(slots=True)
class EmulatedFile:
    """An uploaded file, or the answers of a batch."""

    filename: str
    purpose: str
    data: bytes
    created_at: float


class EmulatedBatches:
    """All files and batches; `serve` answers every request for them."""

    def __init__(
        self, wall: Callable[[], float], rng: Random, answer: AnswerLine, works_s: Callable[[], float], dialect: str
    ) -> None:
        """`works_s` says how many seconds a batch takes."""
        self._wall = wall
        self._rng = rng
        self._answer = answer
        self._works_s = works_s
        self._dialect = dialect
        self.files: dict[str, EmulatedFile] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.served: Counter[str] = Counter()
        """How often a line was answered, and would have to be paid for, by custom_id."""

    def serve(self, method: str, path: str, query: bytes, content_type: bytes, body: bytes) -> EmulatedReply:
        """Answers a request below `/v1/files` or `/v1/batches`. Raises ProblemError."""
        kind, _, rest = path.removeprefix("/v1/").partition("/")
        id, _, verb = rest.partition("/")
        params = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
        match kind, method, bool(id), verb:
            case "files", "POST", False, _:
                return self._upload(content_type, body)
            case "files", "GET", False, _:
                listed = [self._file(one) for one in self.files if self._is_listed(one, params)]
                return _page(listed, params)
            case "files", "GET", True, "":
                return json_reply(self._file(self._known_file(id)))
            case "files", "GET", True, "content":
                data = self.files[self._known_file(id)].data
                return EmulatedReply(body=data, content_type=b"application/octet-stream")
            case "files", "DELETE", True, "":
                del self.files[self._known_file(id)]
                return json_reply({"id": id, "object": "file", "deleted": True})
            case "batches", "POST", False, _:
                return self._create(body)
            case "batches", "GET", False, _:
                return _page([self._looked(one) for one in self.batches], params)
            case "batches", "GET", True, "":
                return json_reply(self._looked(self._known_batch(id)))
            case "batches", "POST", True, "cancel":
                return self._cancel(self._known_batch(id))
        if kind in ("files", "batches") and verb in ("", "content", "cancel"):
            raise ProblemError(wrong_method(method, path, "POST" if verb == "cancel" else "GET"))
        raise ProblemError(unknown_url(method, path))

    def _upload(self, content_type: bytes, body: bytes) -> EmulatedReply:
        boundary = _BOUNDARY.search(content_type)
        fields: dict[bytes, bytes] = {}
        filename = ""
        for part in body.split(b"--" + boundary[1]) if boundary else ():
            head, _, data = part.partition(b"\r\n\r\n")
            name, file = _FIELD.search(head), _FILENAME.search(head)
            if name is not None:
                fields[name[1]] = data.removesuffix(b"\r\n")
                filename = file[1].decode("latin-1") if file else filename
        if b"file" not in fields or b"purpose" not in fields:
            raise ProblemError(EmulatedProblem(400, "'file' and 'purpose' are required"))
        file_id = self._kept(filename, fields[b"purpose"].decode("latin-1"), fields[b"file"])
        return json_reply(self._file(file_id))

    def _kept(self, filename: str, purpose: str, data: bytes) -> str:
        file_id = f"file-{self._rng.getrandbits(96):024x}"
        self.files[file_id] = EmulatedFile(filename, purpose, data, self._wall())
        while len(self.files) > MOST_FILES:
            del self.files[next(iter(self.files))]
        return file_id

    def _create(self, body: bytes) -> EmulatedReply:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError:
            fields = None
        if not isinstance(fields, dict) or fields.get("completion_window") != "24h":
            raise ProblemError(EmulatedProblem(400, "'completion_window' must be '24h'"))
        file = fields.get("input_file_id")
        if not isinstance(file, str) or file not in self.files:
            raise ProblemError(EmulatedProblem(400, "There is no such input file", param="input_file_id"))
        now = self._wall()
        batch_id = f"batch_{self._rng.getrandbits(96):024x}"
        problems = _problems(self.files[file].data)
        unset = ("errors", "output_file_id", "error_file_id", "finalizing_at", "completed_at", "failed_at")
        self.batches[batch_id] = {
            "id": batch_id,
            "object": "batch",
            "endpoint": fields.get("endpoint"),
            "input_file_id": file,
            "completion_window": "24h",
            "status": "in_progress",
            "created_at": now,
            "in_progress_at": int(now),
            "expires_at": int(now) + _WINDOW_S,
            **dict.fromkeys((*unset, "expired_at", "cancelling_at", "cancelled_at")),
            "request_counts": {"total": self.files[file].data.count(b"\n"), "completed": 0, "failed": 0},
            "metadata": fields.get("metadata"),
        }
        if problems:
            counts = {"total": 0, "completed": 0, "failed": 0}
            errors = {"object": "list", "data": problems}
            ended = {"status": "failed", "failed_at": int(now), "errors": errors, "request_counts": counts}
            self.batches[batch_id] |= ended
        return json_reply(self._looked(batch_id))

    def _cancel(self, batch_id: str) -> EmulatedReply:
        batch = self._looked(batch_id)
        if batch["status"] != "in_progress":
            raise ProblemError(EmulatedProblem(409, f"Cannot cancel a batch with status '{batch['status']}'"))
        now = self._wall()
        share = min(1.0, (now - self.batches[batch_id]["created_at"]) / (self._works_s() or 1.0))
        self.batches[batch_id] |= {"cancelling_at": int(now), "cancelled_at": int(now)}
        self._work_off(batch_id, share, "cancelled")
        return json_reply({**self._looked(batch_id), "status": "cancelling"})

    def _looked(self, batch_id: str) -> dict[str, Any]:
        """Returns a batch as it is shown; one whose time has come is worked off first."""
        batch = self.batches[batch_id]
        now = self._wall()
        if batch["status"] == "in_progress" and now - batch["created_at"] >= self._works_s():
            batch |= {"finalizing_at": int(now), "completed_at": int(now)}
            self._work_off(batch_id, 1.0, "completed")
        return {**batch, "created_at": int(batch["created_at"])}

    def _work_off(self, batch_id: str, share: float, status: str) -> None:
        """Answers this share of a batch's lines, and ends it."""
        batch = self.batches[batch_id]
        texts = self.files[batch["input_file_id"]].data.splitlines()
        done: dict[bool, list[bytes]] = {False: [], True: []}
        for text in texts[: int(len(texts) * share)]:
            line = orjson.loads(text)
            reply = self._answered(line)
            self.served[line["custom_id"]] += 1
            response = {"status_code": reply.status, "request_id": "req_batch", "body": orjson.loads(reply.body)}
            answered = {"id": f"batch_req_{self._rng.getrandbits(96):024x}", "custom_id": line["custom_id"]}
            is_failed = reply.status >= 400
            done[is_failed].append(orjson.dumps({**answered, "response": response, "error": None}))
        for is_failed, role in ((False, "output"), (True, "error")):
            if done[is_failed]:
                data = b"\n".join(done[is_failed]) + b"\n"
                batch[f"{role}_file_id"] = self._kept(f"{batch_id}_{role}.jsonl", "batch_output", data)
        counts = {"total": len(texts), "completed": len(done[False]), "failed": len(done[True])}
        batch |= {"status": status, "request_counts": counts}

    def _answered(self, line: Mapping[str, Any]) -> EmulatedReply:
        endpoint = ENDPOINTS.get(canonical(str(line.get("url")))[0])
        try:
            if endpoint is None or not isinstance(line.get("body"), dict):
                raise ProblemError(EmulatedProblem(400, "'url' and 'body' must be those of a request"))
            reply = self._answer(endpoint, line["body"])
        except ProblemError as found:
            return found.problem.reply(self._dialect)
        if isinstance(reply, EmulatedStream):
            return EmulatedProblem(400, "Batches have no streams").reply(self._dialect)
        return reply

    def _file(self, file_id: str) -> dict[str, Any]:
        file = self.files[file_id]
        about = {"bytes": len(file.data), "created_at": int(file.created_at), "filename": file.filename}
        return {"id": file_id, "object": "file", **about, "purpose": file.purpose, "status": "processed"}

    def _is_listed(self, file_id: str, params: Mapping[str, str]) -> bool:
        return params.get("purpose", self.files[file_id].purpose) == self.files[file_id].purpose

    def _known_file(self, file_id: str) -> str:
        if file_id not in self.files:
            raise ProblemError(EmulatedProblem(404, f"No such File object: {file_id}", param="id"))
        return file_id

    def _known_batch(self, batch_id: str) -> str:
        if batch_id not in self.batches:
            raise ProblemError(EmulatedProblem(404, f"No batch found with id '{batch_id}'."))
        return batch_id


def _problems(data: bytes) -> list[dict[str, Any]]:
    """Returns what makes a batch of this file fail: each line that is none."""
    message = "This line is not parseable as valid JSON."
    return [
        {"code": "invalid_json_line", "line": number, "message": message, "param": None}
        for number, text in enumerate(data.splitlines(), 1)
        if not _is_line(text)
    ]


def _is_line(text: bytes) -> bool:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(line, dict) and isinstance(line.get("custom_id"), str)


def _page(entries: list[dict[str, Any]], params: Mapping[str, str]) -> EmulatedReply:
    """Returns a page of a list, newest first."""
    entries = entries[::-1]
    ids = [one["id"] for one in entries]
    start = ids.index(params["after"]) + 1 if params.get("after") in ids else 0
    limit = int(params["limit"]) if _MAX_5_DIGITS.fullmatch(params.get("limit", "")) else 20
    page = entries[start : start + limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return json_reply({"object": "list", "data": page, **ends, "has_more": start + limit < len(entries)})


# --- Anthropic's ---


MOST_REQUESTS = 100_000
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_4_DIGITS = re.compile(r"[1-9][0-9]{0,3}")
AnswerMessage = Callable[[bytes], EmulatedReply | EmulatedStream]
"""Answers the body of a call of Messages. Raises ProblemError."""


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
        """How often a request was answered, and would have to be paid for, by custom_id."""
        self._origin = ""
        """The origin at which callers fetch results."""
        self.made = 0
        """The batches made so far, those that were removed again among them."""

    def serve(
        self, method: str, path: str, query: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> EmulatedReply:
        """Answers a request. Raises ProblemError."""
        named = dict(headers)
        self._origin = f"http://{named.get(b'host', b'').decode('latin-1')}"
        if b"anthropic-version" not in named:
            raise refused("anthropic-version: header is required")
        found = MESSAGE_BATCHES.fullmatch(path)
        id, verb = (found[1] or "", found[2] or "") if found else ("", "")
        params = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
        match method, bool(id), verb:
            case "POST", False, _:
                return self._create(body)
            case "GET", False, _:
                return self._page(params)
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
        requests = read_object(body, "messages").get("requests")
        if not isinstance(requests, list) or not 0 < len(requests) <= MOST_REQUESTS:
            raise refused("requests: Field required")
        names = [one.get("custom_id") if isinstance(one, dict) else None for one in requests]
        for at, (name, one) in enumerate(zip(names, requests, strict=True)):
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise refused(f"requests.{at}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
            if not isinstance(one.get("params"), dict):
                raise refused(f"requests.{at}.params: Field required")
        if len(set(names)) < len(names):
            raise refused("requests: custom_id must be unique")
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
            raise refused(f"Batch {id} cannot be canceled: it has ended.")
        batch["cancel_initiated_at"] = _time(now)
        self._work_off(id, min(1.0, (now - batch["created_at"]) / (self._works_s() or 1.0)))
        return json_reply({**self._shown(id), "processing_status": "canceling", "results_url": None})

    def _remove(self, id: str) -> EmulatedReply:
        self._shown(id)
        if self.batches[id]["processing_status"] != "ended":
            raise refused(f"Batch {id} cannot be deleted while it is in progress.")
        for kept in (self.batches, self.requests, self.results):
            kept.pop(id, None)
        return json_reply({"id": id, "type": "message_batch_deleted"})

    def _results(self, id: str) -> EmulatedReply:
        self._shown(id)
        if id not in self.results:
            raise refused(f"Batch {id} has no results yet.", 404)
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
        if isinstance(reply, EmulatedStream):
            reply = EmulatedProblem(400, "stream: not supported in batches").reply("messages")
        parsed = orjson.loads(reply.body)
        return {"type": "errored", "error": parsed} if reply.status >= 400 else {"type": "succeeded", "message": parsed}

    def _page(self, params: Mapping[str, str]) -> EmulatedReply:
        """Returns a page of the list, newest first."""
        ids = list(self.batches)[::-1]
        start = ids.index(params["after_id"]) + 1 if params.get("after_id") in ids else 0
        limit = int(params["limit"]) if _MAX_4_DIGITS.fullmatch(params.get("limit", "")) else 20
        page = ids[start : start + limit]
        ends = {"first_id": page[0] if page else None, "last_id": page[-1] if page else None}
        return json_reply({"data": [self._shown(one) for one in page], "has_more": start + limit < len(ids), **ends})

    def _known(self, id: str) -> str:
        if id not in self.batches:
            raise refused(f"Message batch {id} not found.", 404)
        return id


def _counts(**said: int) -> dict[str, int]:
    return {**dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0), **said}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
