"""Embeddings from a model of the config, each a call of its own through the gateway's pipeline; and then the opening of the
cache.

So the limits, breakers, money and metrics of the model apply, on the account of the caller for whom it is made. Invariants: the
caller's credential goes to no provider that the caller's own call could not have shown it to; a call that is made here shares
nothing and nothing is kept of it.
"""

from __future__ import annotations

import logging
import sys
from array import array
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from gateway.core.call import Call, CallRoute, Reply, Request
from gateway.core.clock import Clock
from gateway.core.errors import BudgetExceeded, GatewayError, KeyRateLimited
from gateway.core.snapshot import Model, PolicySnapshot
from gateway.dialects.endpoints import EMBEDDINGS
from gateway.features.reuse.rules import CACHING, LOCAL, SemanticRule
from gateway.features.semantic.question import Embedder, EmbeddingDenied, EmbeddingFailed
from gateway.features.semantic.store import Vectors

if TYPE_CHECKING:
    from gateway.features.semantic.local_model import LocalEmbedder
    from gateway.features.semantic.lookup import Semantic

DEADLINE_S = 30.0
"""The longest wait for an embedding, in seconds; a later one is useless."""
TEXTS_OWN_FAULT = frozenset((400, 413, 422))
"""The statuses with which a provider refuses this one text."""

Answer = Callable[[Call], Awaitable[Reply]]
JSON_HEADERS = [(b"content-type", b"application/json"), (b"accept", b"application/json")]


class Embedders:
    """The embedders, by the name in the rule: a model of the config, or one from disk that was opened beforehand."""

    def __init__(self, answer: Answer, clock: Clock, open_local: Callable[[str], Embedder]) -> None:
        """`open_local` takes a folder and may raise ValueError or ImportError; `answer` is the pipeline's `handle`."""
        self._answer = answer
        self._clock = clock
        self._open_local = open_local
        self._local: dict[str, Embedder] = {}
        self._problems: dict[str, str] = {}

    def prepare(self, rules: Iterable[SemanticRule]) -> list[str]:
        """Opens the models from disk that these rules need and that are not open yet; returns a message for each problem.

        This takes a while: not for the event loop's thread.
        """
        names = {rule.embeddings for rule in rules if rule.embeddings.startswith(LOCAL)}
        for name in sorted(names - self._local.keys()):
            try:
                self._local[name] = self._open_local(name.removeprefix(LOCAL))
                self._problems.pop(name, None)
            except (ValueError, ImportError) as error:
                self._problems[name] = str(error)
        return [self._problems[name] for name in sorted(names & self._problems.keys())]

    def of(self, rule: SemanticRule) -> Embedder:
        """Returns the rule's embedder. Raises EmbeddingFailed for a model from disk that could not be opened."""
        if not rule.embeddings.startswith(LOCAL):
            return ConfigEmbedder(self._answer, self._clock, rule.embeddings, rule.dimensions)
        local = self._local.get(rule.embeddings)
        if local is None:
            raise EmbeddingFailed(self._problems.get(rule.embeddings, "the model has not been opened"))
        return local


class ConfigEmbedder:
    """An `Embedder` that asks a model of the config in force."""

    __slots__ = ("_answer", "_clock", "_dimensions", "_model")

    def __init__(self, answer: Answer, clock: Clock, model: str, dimensions: int | None = None) -> None:
        self._answer = answer
        self._clock = clock
        self._model = model
        self._dimensions = dimensions

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        """Returns the vector of a text; None if the provider refuses this text."""
        model = call.route.policy.find_model(self._model)
        if model is None:
            raise EmbeddingFailed(f"the config has no model {self._model}")
        try:
            reply = await self._answer(self._call_for(text, call, model))
            body = await _body_of(reply)
        except (KeyRateLimited, BudgetExceeded) as error:
            raise EmbeddingDenied(f"{error.code}: {error}") from error
        except GatewayError as error:
            raise EmbeddingFailed(f"{error.code or error.type}: {error}") from error
        if reply.status in TEXTS_OWN_FAULT:
            return None
        if reply.status in (401, 403) and call.request.credential is not None:
            raise EmbeddingDenied(f"status {reply.status} for the caller's own credential")
        if reply.status != 200:
            raise EmbeddingFailed(f"status {reply.status}")
        return read_embedding(body)

    def _call_for(self, text: str, call: Call, model: Model) -> Call:
        body: dict[str, Any] = {"model": self._model, "input": text, "encoding_format": "base64"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        now = self._clock.monotonic()
        bound = model.model_for_caller_credentials or model
        is_shown = call.request.credential is not None and _is_same_house(call, bound)
        request = Request(
            id=f"{call.request.id}-embedding",
            endpoint=EMBEDDINGS,
            model_name=self._model,
            body=_json(body),
            stream=False,
            stream_options=None,
            model_span=None,
            headers=JSON_HEADERS.copy(),
            credential=call.request.credential if is_shown else None,
            lane=call.request.lane,
            received_at=now,
            deadline=now + DEADLINE_S,
            deadline_is_callers=False,
            path=EMBEDDINGS.path,
            tenant=call.request.tenant,
        )
        bound = bound if is_shown else model
        route = CallRoute(
            call.route.policy, call.route.key, bound, EMBEDDINGS, has_own_credential=is_shown, is_internal=True
        )
        return Call(request, route, body)


def read_embedding(body: bytes) -> Sequence[float]:
    """Returns the first vector of an embeddings list, of floats or base64. Raises EmbeddingFailed."""
    try:
        vector = orjson.loads(body)["data"][0]["embedding"]
        if isinstance(vector, str):
            values = array("f")
            values.frombytes(b64decode(vector, validate=True))
            if sys.byteorder == "big":
                values.byteswap()
            return values
        return array("f", vector)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise EmbeddingFailed("the answer is not a list of embeddings") from error


def _json(request: dict[str, Any]) -> bytes:
    """Encodes the request as JSON without lone surrogates, which cannot be sent as UTF-8."""
    try:
        return orjson.dumps(request)
    except TypeError:
        return orjson.dumps({**request, "input": request["input"].encode("utf-8", "replace").decode()})


async def _body_of(reply: Reply) -> bytes:
    try:
        if reply.chunks is None:
            return reply.body
        return b"".join([chunk async for chunk in reply.chunks])
    finally:
        await reply.close()


def _is_same_house(call: Call, model: Model) -> bool:
    """Returns whether only providers of the caller's own call would get the caller's own credential."""
    return _shown_to(call, model) <= _shown_to(call, call.route.model)


def _shown_to(call: Call, model: Model) -> set[str]:
    providers = call.route.policy.providers
    return {
        one.provider
        for one in (*model.plan, *model.context_plan)
        if one.name not in model.without_caller_credential
        and (one.provider not in providers or providers[one.provider].is_callers)
    }


# --- the semantic cache, opened when the first model of the config asks for it, with the extras that it needs ---

log = logging.getLogger("gateway")


def open_semantic(
    policy: PolicySnapshot, opened: Semantic | None, embedders: Embedders, clock: Clock, store: Vectors
) -> Semantic | None:
    """Opens the models from disk that the policy needs, and returns the cache; None where no model has asked for it yet.

    `opened` is the cache that calls use already, which stays. This may take long, and may run in any thread.

    A process whose models do not ask for it loads none of them.
    """
    models = (*policy.models.values(), *(model for _, model in policy.patterns))
    rules = [semantic for model in models if (semantic := CACHING.of(model).semantic) is not None]
    for problem in embedders.prepare(rules):
        log.warning("%s", problem)
    if opened is not None or not rules:
        return opened
    from gateway.features.semantic.index import VectorIndex  # an extra, that few pay for
    from gateway.features.semantic.lookup import Semantic  # an extra, that few pay for

    return Semantic(clock, VectorIndex(), store, embedders.of)


def open_local(folder: str) -> LocalEmbedder:
    """Returns the embedder of a model on disk. Raises ValueError or ImportError."""
    from gateway.features.semantic.local_model import LocalEmbedder  # an extra, that few pay for

    return LocalEmbedder(folder)
