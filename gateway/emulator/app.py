"""The emulator as one ASGI callable: finds the endpoint, admits the call, plays the answer.

`Emulator.__call__` and `_generate` are the life of a call, top to bottom. It must not know sockets (`server.py`) or
wire texts. Invariant: a call is counted on arrival and at its end, exactly once each, however it ends.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.emulator.answers import requests
from gateway.emulator.answers.play import EmulatedPace, perform, refusal_of
from gateway.emulator.answers.reply import EmulatedReply, Headers, Stream, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.answers.writer import Writer
from gateway.emulator.batches import EmulatedBatches
from gateway.emulator.call import EmulatedCall, PeerGoneError, Receive, Scope, Send, Sleep
from gateway.emulator.config import EmulatorConfig
from gateway.emulator.control import PREFIX, control
from gateway.emulator.dialects import EmulatedAccount, RequestDemand, open_account
from gateway.emulator.endpoints import ENDPOINTS, EmulatedEndpoint, canonical
from gateway.emulator.faults import FaultPlan
from gateway.emulator.problems import (
    EmulatedProblem,
    ProblemError,
    context_length,
    invalid_key,
    model_not_found,
    unknown_url,
    wrong_method,
)
from gateway.emulator.stats import Recorded, Recorder, Stats

_LISTED_MODELS = ("gpt-4o", "gpt-4o-mini", "gpt-4.1", "text-embedding-3-small", "text-embedding-3-large")
_MAX_ACCOUNTS = 10_000
_LIMIT_FIELDS = (
    "rpm",
    "burst",
    "tpm",
    "output_tpm",
    "max_concurrency",
    "model_limits",
    "dialect",
    "limit_headers",
    "charge",
)


class Emulator:
    """A scripted provider; `now` and `sleep` are its clock in seconds, `wall` the time of day in epoch seconds."""

    def __init__(
        self,
        config: EmulatorConfig,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._wall = wall
        self.stats = Stats(wall)
        self.config = config
        self.on_change: Callable[[], None] = lambda: None
        """Is called after every change of config or start of the schedule, for the listener of connections."""
        self.reset()

    def configure(self, config: EmulatorConfig) -> None:
        """Puts `config` in force at once; buckets start full again only when a limit changed."""
        if any(getattr(config, name) != getattr(self.config, name) for name in _LIMIT_FIELDS):
            self._accounts.clear()
        if (config.recorded_requests, config.recorded_bytes) != (
            self.config.recorded_requests,
            self.config.recorded_bytes,
        ):
            self.recorder = Recorder(config.recorded_requests, config.recorded_bytes)
        self.config = config
        self.faults.rules = config.faults
        self._writer = Writer(config, self._rng, self._wall)
        self.on_change()

    def connection_fault(self) -> str | None:
        """Returns the present fault of the whole server, if any."""
        return self.faults.connection_fault(self._now())

    def reset(self) -> None:
        """Starts anew under the same config: counters, buckets, scripts, fault schedule and random draws."""
        self._rng = random.Random(self.config.seed)  # noqa: S311 - draws of faults and ids, not secrets
        self._accounts: dict[tuple[bytes, str], EmulatedAccount] = {}
        self.faults = FaultPlan(self.config.faults, self._rng, self._now())
        self.recorder = Recorder(self.config.recorded_requests, self.config.recorded_bytes)
        self._writer = Writer(self.config, self._rng, self._wall)
        self.batches = EmulatedBatches(
            self._wall, self._rng, self._answer_line, lambda: self.config.batch_s, self.config.dialect
        )
        self.stats.clear()
        self.on_change()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one call from its first byte to its last."""
        if scope["type"] != "http":
            await _lifespan(scope, receive, send)
            return
        is_control = scope["path"].startswith(PREFIX)
        stats = Stats(self._wall) if is_control else self.stats  # what looks at the counters is not counted
        call = EmulatedCall(scope, receive, send, stats, self._now, self._sleep)
        if is_control:
            await self._control(call)
            return
        self.stats.enter()
        try:
            call.identify(self._identity())
            await call.read_body()
            self._record(call)
            await self._serve(call)
        except ProblemError as exc:
            await call.reply(exc.problem.reply(self.config.dialect))
        except PeerGoneError:
            pass
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not call.is_peer_gone or task is None:
                raise
            task.uncancel()
        finally:
            call.end()
            self.stats.leave(call.endpoint)

    async def _serve(self, call: EmulatedCall) -> None:
        path, deployment = canonical(call.path)
        endpoint = ENDPOINTS.get(path)
        if endpoint is not None:
            self._expect(call, "POST")
            await self._generate(call, endpoint, deployment)
        elif path.startswith(("/v1/files", "/v1/batches")):
            self._expect(call, call.method)
            call.endpoint = path.split("/")[2]
            query, content_type = call.scope.get("query_string", b""), call.header(b"content-type")
            await call.reply(self.batches.serve(call.method, path, query, content_type, call.body))
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            self._expect(call, "GET")
            call.endpoint = "models"
            await call.reply(self._models(path.removeprefix("/v1/models").strip("/")))
        else:
            raise ProblemError(unknown_url(call.method, call.path))

    async def _generate(self, call: EmulatedCall, endpoint: EmulatedEndpoint, deployment: str | None) -> None:
        config, now = self.config, self._now()
        call.endpoint = endpoint.name
        data = (
            requests.read_multipart(call.body, deployment)
            if endpoint.is_form
            else requests.read_json(call.body, deployment, endpoint.model)
        )
        request = self._check(endpoint.read(data))
        call.model = request.model
        self.stats.asked(request.model)

        key = _key_of(call)
        account = self._account(key, request.model)
        refusal = account.admit(self._demand(call, endpoint, request), now)
        if refusal is not None:
            await call.reply(refusal)
            return
        call.limit_headers = lambda: account.headers(self._now())
        account.in_flight += 1
        try:
            fault = self.faults.pick(request.model, now, key.decode("latin-1"))
            if fault is not None:
                self.stats.faults[fault.kind] += 1
                refusal = refusal_of(fault, account, config.dialect, now)
                if refusal is not None:
                    await call.reply(refusal)
                    return
            answer = self._answer(endpoint, request)
            if call.recorded is not None:
                call.recorded.tokens = request.prompt_tokens, answer.tokens
            await perform(call, answer, fault, self._pace(), account)
        finally:
            account.in_flight -= 1

    def _expect(self, call: EmulatedCall, method: str) -> None:
        if call.method != method:
            raise ProblemError(wrong_method(call.method, call.path, method))
        wanted = self.config.api_key
        if wanted is not None and (key := _key_of(call).decode("latin-1")) != wanted:
            raise ProblemError(invalid_key(key))

    def _check(self, request: CheckedRequest) -> CheckedRequest:
        config = self.config
        if config.models and request.model not in config.models:
            raise ProblemError(model_not_found(request.model))
        if config.context_window is not None:
            used = request.prompt_tokens + (request.max_tokens or 0)
            if used > config.context_window:
                raise ProblemError(context_length(config.dialect, config.context_window, used))
        return request

    def _answer(self, endpoint: EmulatedEndpoint, request: CheckedRequest) -> EmulatedReply | Stream:
        try:
            return endpoint.answer(request, self._writer)
        except orjson.JSONEncodeError as exc:  # what an answer echoes may be nested deeper than orjson writes
            raise ProblemError(EmulatedProblem(400, f"Invalid body: {exc}.")) from exc

    def _answer_line(self, endpoint: EmulatedEndpoint, data: dict[str, Any]) -> EmulatedReply | Stream:
        return self._answer(endpoint, self._check(endpoint.read(data)))

    def _account(self, key: bytes, model: str) -> EmulatedAccount:
        account = self._accounts.get((key, model))
        if account is None:
            if len(self._accounts) >= _MAX_ACCOUNTS:
                del self._accounts[next(iter(self._accounts))]
            account = open_account(self.config, model, self._now(), self._wall)
            self._accounts[key, model] = account
        return account

    def _demand(self, call: EmulatedCall, endpoint: EmulatedEndpoint, request: CheckedRequest) -> RequestDemand:
        max_tokens = (request.max_tokens or 0) * request.choices
        if self.config.dialect != "azure":
            return RequestDemand(request.prompt_tokens, max_tokens)
        query = parse_qs(call.scope.get("query_string", b"").decode("latin-1"))
        return RequestDemand(request.prompt_tokens, max_tokens, endpoint.operation, query.get("api-version", ["v1"])[0])

    def _pace(self) -> EmulatedPace:
        config = self.config
        per_token_s = 1.0 / config.tokens_per_second if config.tokens_per_second else 0.0
        slowness = max(1.0, self.stats.active / config.capacity) if config.capacity else 1.0
        ttft_s, per_token_s = config.ttft_s * slowness, per_token_s * slowness
        if not config.jitter or not (ttft_s or per_token_s):
            return EmulatedPace(ttft_s, per_token_s)
        draw = self._rng.lognormvariate
        return EmulatedPace(ttft_s * draw(0.0, config.jitter), per_token_s * draw(0.0, config.jitter))

    def _identity(self) -> Headers:
        request_id = b"%032x" % self._rng.getrandbits(128)
        headers = ((b"x-request-id", b"req_" + request_id), *_ORGANIZATION)
        if self.config.dialect == "azure":
            return (*headers, (b"apim-request-id", request_id), (b"x-ms-region", b"Emulated Central"))
        if self.config.dialect == "anthropic":
            return (*headers, (b"request-id", b"req_" + request_id))
        return headers

    def _models(self, name: str) -> EmulatedReply:
        served = self.config.models or _LISTED_MODELS
        if not name:
            return json_reply({"object": "list", "data": [self._model(each) for each in served]})
        if self.config.models and name not in self.config.models:
            raise ProblemError(model_not_found(name))
        return json_reply(self._model(name))

    @staticmethod
    def _model(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "emulator"}

    def _record(self, call: EmulatedCall) -> None:
        config = self.config
        if config.recorded_requests:
            query = call.scope.get("query_string", b"")
            kept = call.body[: config.recorded_bytes]
            size, number = len(call.body), self.stats.total
            call.recorded = Recorded(
                number, self._wall(), call.arrived_at, call.method, call.path, query, call.headers, kept, size
            )
            self.recorder.add(call.recorded)

    async def _control(self, call: EmulatedCall) -> None:
        try:
            await call.read_body()
            await call.reply(control(self, call))
        except ProblemError as exc:
            await call.reply(exc.problem.reply("openai"))
        except PeerGoneError:
            pass


_ORGANIZATION: Headers = ((b"openai-organization", b"org-emulator"), (b"openai-version", b"2020-10-01"))


def create_app(
    config: EmulatorConfig,
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Sleep = asyncio.sleep,
    wall: Callable[[], float] = time.time,
) -> Emulator:
    """Returns the ASGI application of a scripted provider; see `Emulator` for the clocks."""
    return Emulator(config, now=now, sleep=sleep, wall=wall)


def _key_of(call: EmulatedCall) -> bytes:
    bearer = call.header(b"authorization")
    if bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip()
    return call.header(b"api-key") or call.header(b"x-api-key")


async def _lifespan(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "lifespan":
        return
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
