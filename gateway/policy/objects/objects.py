"""Objects at a provider (files, batches, stored responses …) and the tenants that share its account: what a request is about.

A provider knows the account only, so ids are all that keeps tenants apart there: each id that was created through the gateway
is its tenant's, and whoever names an id of somebody else is told what he is told of ids that do not exist. Decisions only: who
owns what is known to a store. Paths are read decoded and in lower case, for providers differ in what they take for the same.
Source: OpenAI's API reference; ids in bodies and answers are found by `objectids` and `objectanswers`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import parse_qsl, unquote

from gateway.policy.request import Request

KEY_BYTES = 16
_MOST_DECODINGS = 3
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
"""Where there are objects: the path of each kind, and what follows it there that is no id."""
_CURSORS = ("after", "before")
_UNLISTED = frozenset(("DELETE", "HEAD", "PUT", "PATCH"))
"""Nobody documents these for all objects of a kind at once."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """What a path is about: all objects of a `kind`, or the one called `id`, or what is below it."""

    kind: str
    """Its path without slashes around: `files`, `fine_tuning/jobs`."""
    id: str = ""
    verb: str = ""
    """What is below the kind, or below the object: `complete`, `runs`."""


@dataclass(frozen=True, slots=True)
class Concern:
    """What one request has to do with objects."""

    place: ObjectPath | None
    """None: only its body may name some."""
    method: str = "POST"
    is_stored: bool = True
    """What it creates can be asked for later."""

    @property
    def is_list(self) -> bool:
        """Its answer holds objects of everybody."""
        return self.method == "GET" and self.place is not None and not (self.place.id or self.place.verb)

    @property
    def learns(self) -> bool:
        """Its answer may name objects that become the tenant's."""
        place = self.place
        if place is None or not self.is_stored or self.is_list:
            return False
        return self.method == "POST" or (self.method == "GET" and place.kind in _MADE_LATER and not place.verb)

    @property
    def reads_answer(self) -> bool:
        """Its answer has to be read before anybody gets it."""
        return self.is_list or self.learns


_MADE_LATER = frozenset(("batches", "fine_tuning/jobs", "responses"))
"""Objects that bring forth others while nobody asks: their ids are seen in later answers."""
CHAT, RESPONSES = ObjectPath("chat/completions"), ObjectPath("responses")
_HOT = {"chat": CHAT, "responses": RESPONSES}


def key_of(scope: bytes, id: str) -> bytes:
    """What an id is remembered as: a digest, of its provider and of itself."""
    return blake2b(id.encode("utf-8", "surrogatepass"), key=scope, digest_size=KEY_BYTES).digest()


def scope_of(base_url: str) -> bytes:
    """Of the provider at this address."""
    return blake2b(base_url.rstrip("/").lower().encode(), digest_size=KEY_BYTES).digest()


def read_path(path: str) -> ObjectPath | None:
    """What a path below the base URL is about, as it was sent; None: no objects of ours."""
    for _ in range(_MOST_DECODINGS):
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


def concern_of(request: Request, may_name: bool) -> Concern | None:
    """What the call has to do with objects, None: nothing. `may_name`: its body may hold ids."""
    if request.endpoint.request == "any":
        place = read_path(request.path)
        if place is None and not may_name:
            return None
        return Concern(place, request.method)
    hot = _HOT.get(request.endpoint.name)
    is_stored = hot is not None and _is_stored(request, default=hot is RESPONSES)
    if is_stored or may_name or (hot is RESPONSES and b'"id"' in request.body.lower()):  # of an item, perhaps
        return Concern(hot, is_stored=is_stored)
    return None


def _is_stored(request: Request, *, default: bool) -> bool:
    """Whether the provider is to keep the answer. A body that was not parsed is believed to ask for it."""
    if request.parsed is None:
        return default or b'"store"' in request.body
    store = request.parsed.get("store")
    return default if store is None else store is not False


def ids_in_path(concern: Concern, query: bytes) -> Iterator[str]:
    """The ids that path and query name. A name that nothing has (empty) stands for what nobody may do."""
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
    """What a tenant's `Idempotency-Key` is called at a provider whose account it shares: two tenants' never meet."""
    told = tenant.encode()
    return blake2b(b"%d:%b%b" % (len(told), told, sent), digest_size=20).hexdigest().encode()
