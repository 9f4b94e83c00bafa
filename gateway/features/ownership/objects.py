"""Finds the objects at a provider (files, batches, stored responses …) that a request concerns, where tenants share an account.

A provider knows the account only, so ids are all that keeps tenants apart there: each id that was created through the gateway
is its tenant's, and a caller that names another tenant's id gets the answer for an id that does not exist. Decisions only: a
store knows the owners. Paths are read decoded and in lower case, for providers differ in what they take for the same.
Source: OpenAI's API reference. Ids in bodies are found by `rules.py`, those in answers by
`ownership/service.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import parse_qsl, unquote

from gateway.core.call import Call
from gateway.features.ownership.rules import MOST_DECODINGS

KEY_BYTES = 16
_VERBS: Mapping[tuple[str, ...], frozenset[str]] = {
    ("files",): frozenset(),
    ("uploads",): frozenset(),
    ("batches",): frozenset(),
    ("responses",): frozenset(("compact", "input_tokens")),
    ("conversations",): frozenset(),
    ("threads",): frozenset(("runs",)),
    ("assistants",): frozenset(),
    ("vector_stores",): frozenset(),
    ("containers",): frozenset(),
    ("fine_tuning", "jobs"): frozenset(),
    ("fine_tuning", "checkpoints"): frozenset(),
    ("evals",): frozenset(),
    ("videos",): frozenset(("edits", "extensions")),
    ("videos", "characters"): frozenset(),
    ("chat", "completions"): frozenset(),
    ("models",): frozenset(),
}
"""The path of each kind of objects, with the words below it that are no ids."""
_CURSORS = ("after", "before")
_UNLISTED = frozenset(("DELETE", "HEAD", "PUT", "PATCH"))
"""The methods that no provider documents for all objects of a kind at once."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """The subject of a path: all objects of a `kind`, the one called `id`, or something below it."""

    kind: str
    """The path without slashes around: `files`, `fine_tuning/jobs`."""
    id: str = ""
    verb: str = ""
    """The part below the kind or the object: `complete`, `runs`."""


@dataclass(frozen=True, slots=True)
class ObjectAccess:
    """The objects that one request concerns."""

    place: ObjectPath | None
    """The objects of the path; None: only the body may name some."""
    method: str = "POST"
    is_stored: bool = True
    """The created object can be asked for later."""

    @property
    def is_list(self) -> bool:
        """Returns whether the answer lists objects of all tenants."""
        return self.method == "GET" and self.place is not None and not (self.place.id or self.place.verb)

    @property
    def learns(self) -> bool:
        """Returns whether the answer may name objects that become the tenant's."""
        place = self.place
        if place is None or not self.is_stored or self.is_list:
            return False
        return self.method == "POST" or (self.method == "GET" and place.kind in _MADE_LATER and not place.verb)

    @property
    def reads_answer(self) -> bool:
        """Returns whether the answer has to be read before the client gets it."""
        return self.is_list or self.learns


_MADE_LATER = frozenset(("batches", "fine_tuning/jobs", "responses"))
"""The kinds that create further objects later: their ids are seen in later answers."""
CHAT, RESPONSES, MESSAGES = ObjectPath("chat/completions"), ObjectPath("responses"), ObjectPath("messages")
_HOT = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


def key_of(scope: bytes, id: str) -> bytes:
    """Returns the key of an id: a digest of its provider and of itself."""
    return blake2b(id.encode("utf-8", "surrogatepass"), key=scope, digest_size=KEY_BYTES).digest()


def scope_of(base_url: str) -> bytes:
    """Returns the scope of the provider at this address."""
    return blake2b(base_url.rstrip("/").lower().encode(), digest_size=KEY_BYTES).digest()


def read_path(path: str) -> ObjectPath | None:
    """Returns the subject of a path below the base URL, as it was sent; None: it has no objects."""
    for _ in range(MOST_DECODINGS):
        path = unquote(path)
    steps = [step for step in path.split("/") if step]
    lower = [step.lower() for step in steps]
    depth = 2 if tuple(lower[:2]) in _VERBS else 1
    verbs = _VERBS.get(tuple(lower[:depth]))
    if verbs is None:
        return None
    kind, rest = "/".join(lower[:depth]), steps[depth:]
    if not rest:
        return ObjectPath(kind)
    if lower[depth] in verbs:
        return ObjectPath(kind, verb=lower[depth])
    return ObjectPath(kind, rest[0], "/".join(lower[depth + 1 :]))


def concern_of(call: Call, may_name: bool) -> ObjectAccess | None:
    """Returns the objects that the call concerns; None: it concerns none. `may_name`: its body may hold ids."""
    if call.request.endpoint.request == "any":
        place = read_path(call.request.path)
        if place is None and not may_name:
            return None
        return ObjectAccess(place, call.request.method)
    hot = _HOT.get(call.request.endpoint.name)
    is_stored = hot is not None and _is_stored(call, default=hot is RESPONSES)
    if is_stored or may_name or (hot is RESPONSES and b'"id"' in call.request.body.lower()):  # of an item, perhaps
        return ObjectAccess(hot, is_stored=is_stored)
    return None


def _is_stored(call: Call, *, default: bool) -> bool:
    """Returns whether the provider is to keep the answer. A body that was not parsed is assumed to ask for it."""
    if call.request.endpoint.name == "messages":  # what another request can go on from
        return b'"thread"' in call.request.body if call.parsed is None else bool(call.parsed.get("thread"))
    if call.parsed is None:
        return default or b'"store"' in call.request.body
    store = call.parsed.get("store")
    return default if store is None else store is not False


def ids_in_path(concern: ObjectAccess, query: bytes) -> Iterator[str]:
    """Yields the ids that path and query name. An empty id, which no object has, stands for a forbidden request."""
    place = concern.place
    if place is None:
        return
    if place.id:
        yield place.id
    elif concern.method in _UNLISTED and not place.verb:
        yield ""
    if concern.is_list:
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            if name in _CURSORS and value:
                yield value


def own_idempotency_key(sent: bytes, tenant: str) -> bytes:
    """Returns the `Idempotency-Key` sent to a provider whose account tenants share: those of two tenants never meet."""
    tenant_bytes = tenant.encode()
    return blake2b(b"%d:%b%b" % (len(tenant_bytes), tenant_bytes, sent), digest_size=20).hexdigest().encode()
