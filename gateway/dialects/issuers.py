"""A conversation as one provider takes it: without what other providers signed, and within the provider's bounds.

Works on the bytes that go over the wire and come from it, so that it is the same for every caller's language, converted or not.
What a model thought is signed or encrypted for its provider alone: another one refuses it, on every later turn. Such a proof is
remembered with its issuer, the provider or the account there, and goes back to that issuer alone. In this order: what makes a
request fit, who signs, proofs on their way through a client of Responses, which are known, requests without the others.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import orjson

from gateway.core.openai.json_edit import insert_field, replace_field, value_end
from gateway.core.openai.sse import json_object
from gateway.core.types import Gap, How
from gateway.dialects.base import Json, object_of, objects, text_of
from gateway.dialects.schema_tools.tools import MOST_ID, shortened

# --- What makes a request fit ---


OPENAIS_KINDS: Final = ("openai", "azure")
LANGUAGES: Final[Mapping[str, str]] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/responses/compact": "responses",
    "/responses/input_tokens": "responses",
    "/messages": "messages",
    "/messages/count_tokens": "messages",
}
"""The language of a request, by its path below the base URL."""
_BY_END: Final[Mapping[str, str]] = {
    ":generateContent": "generate",
    ":streamGenerateContent?alt=sse": "generate",
    ":rawPredict": "messages",
    ":streamRawPredict": "messages",
    "/invoke": "messages",
    "/invoke-with-response-stream": "messages",
    "/converse": "converse",
    "/converse-stream": "converse",
}
"""The language of a request, by the end of paths with a model in them."""
MOST_CALL_ID: Final = 64
"""The characters of a `call_id` that Responses take; chat completions take `MOST_ID`."""
_PARAMETERS: Final = b'"parameters'
_FITTING: Final = re.compile(
    rb'"parameters"\s*:\s*\{\s*(?:"(?!properties")[a-zA-Z$]+"\s*:\s*(?:"[^"\\]*"|\[(?:[^\[\]{}"]|"[^"\\]*")*\]|[a-z0-9]+)\s*,\s*)*"properties"\s*:\s*\{'
)
"""A schema whose `properties` stand behind nothing but plain values, as most do."""
_SCHEMA: Final = re.compile(rb'"parameters"\s*:\s*(?=\{)')
_ID: Final = re.compile(rb'"(?:tool_)?call_id"\s*:\s*("(?:[^"\\]|\\.){%d,}")' % MOST_ID)
_MOST_SCHEMAS_AROUND: Final = 8
"""The schemas around another one, at most; one that is deeper stays as it is."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
FITTED: Final[Mapping[str, tuple[bytes, int]]] = {
    "chat": (b'"tool_call_id', MOST_ID),
    "responses": (b'"call_id', MOST_CALL_ID),
}
"""By the language, how the field begins with the id of a call that a result is of, and the most characters of an id."""


def fitted(body: bytes, language: str, kind: str) -> bytes:
    """Returns a request as a provider of this kind takes it; the same object where it fits already.

    At OpenAI and Azure a tool whose schema is an object without `properties` gets empty ones (400 `object schema missing
    properties`), and an id of a call that is too long is shortened, the same way wherever it stands. Both refuse the one
    and the other, although it means something.
    """
    if kind in GOOGLES and language == "chat":
        return with_stand_ins(body)
    if kind not in OPENAIS_KINDS or language not in FITTED:
        return body
    made, kept, ends = [], 0, [0] * _MOST_SCHEMAS_AROUND
    for at in _places(body, _PARAMETERS):
        # The ends of the last schemas, the innermost last: each byte is read that often at most, however they are nested.
        if at < max(kept, ends[0]) or _FITTING.match(body, at) or (found := _SCHEMA.match(body, at)) is None:
            continue
        start = found.end()
        end = value_end(body, start)
        ends = [*[one for one in ends if one > at], end]
        ends = [0] * (_MOST_SCHEMAS_AROUND - len(ends)) + ends
        if (schema := _with_properties(body[start:end])) is not None:
            made += [body[kept:start], schema]
            kept = end
    body = b"".join([*made, body[kept:]]) if made else body
    key, most = FITTED[language]
    shorter: dict[bytes, bytes] = {}
    for at in _places(body, key):
        found = _ID.match(body, at)
        if found is not None and (text := found.group(1)) not in shorter:
            id = _read(text)
            if isinstance(id, str) and len(id) > most:
                shorter[text] = orjson.dumps(shortened(id, most))
    return _STRING.sub(lambda one: shorter.get(one.group(), one.group()), body) if shorter else body


def _places(body: bytes, key: bytes) -> Iterator[int]:
    """Yields where a key, or the like of it, is written."""
    at = body.find(key)
    while at >= 0:
        yield at
        at = body.find(key, at + len(key))


def _with_properties(written: bytes) -> bytes | None:
    """Returns a tool's schema with properties; None: it has some, or is no schema."""
    schema = object_of(_read(written))
    if schema.get("type") != "object" or isinstance(schema.get("properties"), dict):
        return None
    edit = replace_field if "properties" in schema else insert_field
    return edit(written, "properties", b"{}")


def _read(written: bytes) -> Any:
    """Returns what a piece of a body says; None where it cannot be read by itself."""
    try:
        return orjson.loads(written)
    except orjson.JSONDecodeError:
        return None


def language_at(path: str) -> str | None:
    """Returns the language of a request at this path; None: it is no conversation's."""
    return LANGUAGES.get(path) or next((one for end, one in _BY_END.items() if path.endswith(end)), None)


# --- Who signs: whose proofs a provider knows again ---


_CLAUDES: Final = ("anthropic.com", "amazonaws.com", "api.aws", "googleapis.com", "azure.com")
_ORGANIZATION: Final = "openai-organization"
GOOGLES: Final = ("gemini", "vertex")
_ACCOUNT_BYTES: Final = 8


class ProvidersPlace(NamedTuple):
    """The place of a provider, from which it follows whose proofs it knows."""

    dialect: str
    kind: str
    base_url: str
    account: str = ""
    """Whose the config's credential is (see `Issuers.account_of`); empty: callers bring their own."""


def issuer_of(place: ProvidersPlace, language: str, credential: bytes | None) -> str:
    """Returns the name of who signs there; `credential` is the caller's own, where the provider is shown it.

    Claude's proofs hold wherever Claude is (Anthropic's reference, extended thinking), what OpenAI encrypts within one
    organization.
    """
    host = urlsplit(place.base_url).netloc or place.base_url
    if place.kind in GOOGLES and language in ("generate", "chat"):
        return place.kind
    if place.dialect == "bedrock" or (
        language == "messages" and (place.dialect == "vertex" or host.endswith(_CLAUDES))
    ):
        return "anthropic"
    if place.kind != "openai":
        return host
    return f"{host} {place.account or _hashed(credential or b'')}"


def _hashed(secret: bytes) -> str:
    return blake2b(secret, digest_size=_ACCOUNT_BYTES).hexdigest()


# --- Proofs on their way through a client of Responses and back ---


OUR_MARK: Final = "gw1."
"""Begins what the gateway itself has put in the place of a proof; a provider knows none of it."""


class CarriedProofs(NamedTuple):
    """What a turn of the model was signed with, where OpenAI's own Responses have what it encrypts."""

    details: list[Json]
    """The `reasoning_details` of the turn."""
    extras: dict[str, Json]
    """The `extra_content` of the turn's calls, by their ids."""

    def add(self, details: list[Json]) -> None:
        """Takes more details; pieces of one text become one."""
        for piece in details:
            last = self.details[-1] if self.details else {}
            is_more = "text" in piece and "text" in last and piece.get("index") == last.get("index")
            if is_more and piece.get("type") == last.get("type"):
                last["text"] = text_of(last["text"]) + text_of(piece["text"])
                last |= {name: value for name, value in piece.items() if name != "text" and value is not None}
            else:
                self.details.append(dict(piece))

    def as_mark(self) -> str:
        """Returns what a client is to keep; empty: nobody signed anything, or it is nested too deeply to be written again."""
        if not any(map(proof_of, self.details)) and not self.extras:
            return ""
        try:
            return OUR_MARK + urlsafe_b64encode(orjson.dumps([self.details, self.extras])).decode()
        except orjson.JSONEncodeError:
            return ""


def carried_in(encrypted: str) -> CarriedProofs | None:
    """Returns what a mark of ours holds, which may be nothing; None: it is none of ours."""
    if not encrypted.startswith(OUR_MARK):
        return None
    try:
        held = orjson.loads(urlsafe_b64decode(encrypted[len(OUR_MARK) :]))
    except ValueError:
        held = None
    details, extras = held if isinstance(held, list) and len(held) == 2 else ([], {})
    return CarriedProofs(objects(details), {id: object_of(extra) for id, extra in object_of(extras).items()})


# --- Which proofs there are, and whose they are ---


MOST_PROOFS: Final = 65_536
"""The most proofs that are known; those that were met the longest ago go first."""
_ENDS: Final = 48
"""The characters at both ends of a proof by which it is known again; all of it is random."""
_FRAMED: Final = b'"bytes'
"""Begins the field with an event of Messages in Base64, in a frame of Bedrock's."""
_OF_PROOF: Final[Mapping[str, tuple[bytes, ...]]] = {
    "chat": (b'"signature', b'"data', b'"thought_signature'),
    "responses": (b'"encrypted_content',),
    "messages": (b'"signature', b'"data', _FRAMED),
    "generate": (b'"thoughtSignature', b'"thought_signature'),
    "converse": (b'"signature', b'"redactedContent'),
}
"""How the fields with proofs begin, by language."""
_FIELD: Final = re.compile(rb'"[a-zA-Z_]+"\s*:\s*"')
_ESCAPED: Final = re.compile(rb'(?:[^"\\]|\\.)*"')
_MOST_PROOF_BYTES: Final = 262_144
"""The bytes of a proof, at most; what is longer is a picture, or the like."""
_LONGEST_FIELD: Final = 32
"""The characters of the longest name of a field with a proof, its quotes, colon and some space included."""


class Issuers:
    """Whose proofs are, and who has refused which; for one thread. Lives as long as the process."""

    def __init__(self) -> None:
        self.places: set[ProvidersPlace] = set()
        """The places where conversations may go; what is signed needs to be remembered where there are several."""
        self._accounts: dict[str, str] = {}
        self._issuers: OrderedDict[str, str] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()

    def account_of(self, provider: str, key: str | None, headers: Sequence[tuple[str, str]]) -> str:
        """Returns the account of a provider's credential: its organization, where a header of the config names one; else the
        provider in the config stands for it, whatever its key becomes, and all that have the same key."""
        organization = next((value for name, value in headers if name.lower() == _ORGANIZATION), None)
        if organization is not None or key is None:
            return organization or ""
        return self._accounts.setdefault(_hashed(key.encode()), provider)

    def remember(self, proof: str, issuer: str) -> None:
        """Takes a proof for one of this issuer's."""
        _put(self._issuers, _known_by(proof), issuer)

    def refuse(self, proof: str, issuer: str) -> None:
        """Takes a proof for one that this issuer does not know, whoever made it."""
        _put(self._refused, (_known_by(proof), issuer), None)

    def is_foreign(self, proof: str, issuer: str) -> bool:
        """Returns whether a proof is known to be of no use to this issuer."""
        if proof.startswith(OUR_MARK):
            return True
        if proof == STAND_IN:
            return False  # a word that all know: whoever has sent it, as a tool's argument too, has not signed it
        known_by = _known_by(proof)
        return self._issuers.get(known_by, issuer) != issuer or (known_by, issuer) in self._refused


def _known_by(proof: str) -> str:
    return proof if len(proof) <= 2 * _ENDS else proof[:_ENDS] + proof[-_ENDS:]


def _put(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > MOST_PROOFS:
        known.popitem(last=False)


def proofs_in(body: bytes, language: str) -> Iterator[str]:
    """Yields the proofs in a request or a whole answer, without reading all of it."""
    for key in _OF_PROOF.get(language, ()):
        for at in _places(body, key):
            is_field = body.startswith(b'"', at + len(key))
            found = _FIELD.match(body, at) if is_field else None
            end = -1 if found is None else _end_of_text(body, found.end())
            if found is None or not 0 < end - found.end() < _MOST_PROOF_BYTES:
                continue
            text = body[found.end() : end]
            proof = text.decode(errors="replace") if b"\\" not in text else _read(b'"%b"' % text)
            if isinstance(proof, str) and key is _FRAMED:
                yield from proofs_in(_unpacked(proof), language)
            elif isinstance(proof, str):
                yield proof


def _end_of_text(body: bytes, start: int) -> int:
    """Returns where the quote is that ends a text; -1: it has not come."""
    end = body.find(b'"', start)
    if end < 0 or body.find(b"\\", start, end) < 0:
        return end
    found = _ESCAPED.match(body, start)
    return -1 if found is None else found.end() - 1


def _unpacked(event: str) -> bytes:
    try:
        return b64decode(event)
    except ValueError:
        return b""


class ProofReader:
    """Finds the proofs in a stream, however it is cut."""

    __slots__ = ("_keys", "_language", "_rest")

    def __init__(self, language: str) -> None:
        self._language, self._keys = language, _OF_PROOF.get(language, ())
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yields the proofs that have come to their end."""
        text = self._rest + chunk if self._rest else chunk
        last = max(text.rfind(key) for key in self._keys) if self._keys else -1
        if last < 0:
            self._rest = text[-_LONGEST_FIELD:]
            return
        yield from proofs_in(text, self._language)
        found = _FIELD.match(text, last)
        if found is None:  # another value, if not only its beginning
            self._rest = text[-_LONGEST_FIELD:]
        elif (end := _end_of_text(text, found.end())) >= 0:
            self._rest = text[end:][-_LONGEST_FIELD:]
        else:
            self._rest = text[last:] if len(text) - last < _MOST_PROOF_BYTES else b""


# --- Requests without the parts that a provider does not know, language by language ---


IsLeft = Callable[[str], bool]
"""Returns whether a part with this proof is left out; an empty one stands for a part that nobody signed."""
_LONG_NUMBER: Final = re.compile(rb"[:,\[]\s*-?\d{19}")
"""A number that orjson could take for a float and write otherwise; or the like of it in a text."""
STAND_IN: Final = "skip_thought_signature_validator"
"""Google's word for none in the place of a call's signature (ai.google.dev, Thought signatures)."""
_SIGNED_CALL: Final = b'"thought_signature'
_WITHOUT_SIGNATURES: Final = re.compile(rb'"model"\s*:\s*"[^"]*gemini-[12]')
NOT_ITS_OWN: Final = "what a model thought goes back to the provider that signed it, and to no other"
_NO_REASONING: Final = "the target takes no reasoning back"
_OF_MODEL: Final = ("function_call", "custom_tool_call", "message", "web_search_call", "local_shell_call")


class Taken(NamedTuple):
    """What servers of a kind take back of what models thought, beyond what they signed themselves."""

    words: bool = True
    """Plain reasoning: `reasoning_content` of chat completions, `content` of an item of Responses."""
    details: bool = True
    """`reasoning_details` of chat completions."""
    extra: bool = True
    """`extra_content` of calls in chat completions."""


def taken_by(kind: str, *, takes_words: bool) -> Taken:
    """Returns what servers of a kind take; of a kind that says little, what a server has signed itself is taken for known."""
    is_open = kind in ("other", "vllm", "sglang", "ollama", "llamacpp", "tgi")
    return Taken(takes_words, details=is_open or kind == "openrouter", extra=is_open or kind in GOOGLES)


def unwanted_in(language: str, taken: Taken) -> tuple[bytes, ...]:
    """Returns what stands in requests that have parts which the kind never takes."""
    if language == "responses":
        return () if taken.words else (b'"reasoning_text',)
    if language != "chat":
        return ()
    named = {b'"reasoning_content': taken.words, b'"reasoning_details': taken.details, b'"extra_content': taken.extra}
    return tuple(name for name, is_taken in named.items() if not is_taken)


_HISTORY: Final[Mapping[str, tuple[bytes, ...]]] = {
    "chat": (b'"reasoning_', b'"extra_content', b'"thinking_blocks'),
    "responses": (b'"reasoning"',),
    "messages": (b'"signature', b'"redacted_thinking'),
    "generate": (b'"functionCall', b'"function_call', b"hought"),
    "converse": (b'"reasoningContent',),
}


def hints_of(language: str, kind: str) -> tuple[bytes, ...]:
    """Returns what a request has if something in it may not be for a provider of this kind; most have none of it."""
    hints = _HISTORY[language]
    if kind in OPENAIS_KINDS and language in FITTED:
        hints += (_PARAMETERS, FITTED[language][0])
    wants_calls = language == "chat" and (kind in GOOGLES or kind in _MISSED_BY)
    wants_uses = language == "messages" and kind in _MISSED_BY
    return hints + ((b'"tool_calls',) if wants_calls else (b'"tool_use',) if wants_uses else ())


def signs(language: str, kind: str) -> bool:
    """Returns whether answers in a language may have proofs that have to be remembered."""
    return language != "chat" or kind in GOOGLES or kind == "openrouter"


def read_exactly(body: bytes) -> Json | None:
    """Returns a request with its numbers as they are written; None: it is no object."""
    parsed = json_object(body)
    return json.loads(body) if parsed is not None and _LONG_NUMBER.search(body) is not None else parsed


def written(parsed: Json, body: bytes) -> bytes:
    """Returns a request that `read_exactly` has read of `body` as bytes again."""
    if _LONG_NUMBER.search(body) is not None:
        return json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode()
    return orjson.dumps(parsed)


def without(body: bytes, language: str, is_left: IsLeft, taken: Taken) -> tuple[bytes, list[Gap]]:
    """Returns a request without what a provider does not know, and what that loses; the same bytes where it knows all.

    For requests in the languages of OpenAI and of Converse. `is_left` decides on parts with proofs, `taken` on all others.
    """
    parsed = read_exactly(body)
    if parsed is None:
        return body, []
    field = "input" if language == "responses" else "messages"
    given = parsed.get(field)
    if not isinstance(given, list):
        return body, []
    gaps: dict[str, Gap] = {}
    leave_out = {"responses": _without_reasoning, "chat": _plain_message, "converse": _plain_turn}[language]
    kept = leave_out(given, is_left, taken, gaps)
    is_same = len(kept) == len(given) and all(one is other for one, other in zip(kept, given, strict=True))
    return (body, []) if is_same else (written({**parsed, field: kept}, body), list(gaps.values()))


def _without_reasoning(items: list[Any], is_left: IsLeft, taken: Taken, gaps: dict[str, Gap]) -> list[Any]:
    """Returns items of Responses. What followed reasoning that is left out has no id, by which OpenAI would miss that."""
    kept: list[Any] = []
    has_lost = is_bare = is_left("")
    for item in items:
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "reasoning":
            proof = text_of(item.get("encrypted_content"))
            has_words = bool(item.get("content"))
            if proof.startswith(OUR_MARK) and has_words and taken.words:
                item = {name: value for name, value in item.items() if name != "encrypted_content"}
                is_lost = is_left("")
            elif proof:
                is_lost = is_left(proof)
            else:
                is_lost = (has_words and not taken.words) or is_left("")
            if is_lost:
                gaps["input.reasoning"] = Gap("input.reasoning", How.DROPPED, NOT_ITS_OWN if proof else _NO_REASONING)
                has_lost = True
                continue
            if has_words and not taken.words:
                gaps["input.reasoning"] = Gap("input.reasoning", How.APPROXIMATED, "it goes back without its words")
                item = {name: value for name, value in item.items() if name != "content"}
        elif kind not in _OF_MODEL or (kind == "message" and item.get("role") != "assistant"):
            has_lost = is_bare
        elif has_lost and "id" in item:
            item = {name: value for name, value in item.items() if name != "id"}
        kept.append(item)
    return kept


def _plain_message(messages: list[Any], is_left: IsLeft, taken: Taken, gaps: dict[str, Gap]) -> list[Any]:
    """Returns messages of chat completions."""

    def lose(field: str, why: str) -> None:
        gaps[field] = Gap(f"messages.{field}", How.DROPPED, why)

    kept = []
    for message in messages:
        if not isinstance(message, dict) or message.get("role") != "assistant":
            kept.append(message)
            continue
        made = dict(message)
        details = objects(message.get("reasoning_details"))
        left = [one for one in details if taken.details and not is_left(proof_of(one))] if details else details
        if any(map(proof_of, details)) and not any(map(proof_of, left)):
            left = []  # the words of a thought whose proof is gone
        if len(left) < len(details):
            lose("reasoning_details", NOT_ITS_OWN if taken.details else _NO_REASONING)
            made["reasoning_details"] = left
        if "reasoning_details" in made and not made["reasoning_details"]:
            del made["reasoning_details"]
        blocks = objects(message.get("thinking_blocks"))
        if blocks and (not taken.details or any(is_left(proof_of(one)) for one in blocks)):
            lose("thinking_blocks", NOT_ITS_OWN)
            del made["thinking_blocks"]
        if not taken.words and made.pop("reasoning_content", None):
            lose("reasoning_content", _NO_REASONING)
        calls = message.get("tool_calls")
        if isinstance(calls, list) and any("extra_content" in call for call in objects(calls)):
            made["tool_calls"] = [_plain_call(call, is_left, taken, lose) for call in calls]
        kept.append(message if made == message else made)
    return kept


def _plain_call(call: Any, is_left: IsLeft, taken: Taken, lose: Callable[[str, str], None]) -> Any:
    extra = call.get("extra_content") if isinstance(call, dict) else None
    if extra is None:
        return call
    proof = text_of(object_of(object_of(extra).get("google")).get("thought_signature"))
    if taken.extra and not is_left(proof):
        return call
    lose("tool_calls.extra_content", NOT_ITS_OWN)
    return {name: value for name, value in call.items() if name != "extra_content"}


def with_stand_ins(body: bytes) -> bytes:
    """Returns a request for Gemini's chat completions with Google's word for none where a turn's first call has no signature.

    Models up to 2.5 ask for none.
    """
    if body.count(_SIGNED_CALL) >= body.count(b'"tool_calls') or _WITHOUT_SIGNATURES.search(body) is not None:
        return body
    parsed = read_exactly(body)
    messages = None if parsed is None else parsed.get("messages")
    if parsed is None or not isinstance(messages, list):
        return body
    return written({**parsed, "messages": [_with_stand_in(message) for message in messages]}, body)


def _with_stand_in(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not calls or not isinstance(calls[0], dict) or "extra_content" in calls[0]:
        return message
    first = {**calls[0], "extra_content": {"google": {"thought_signature": STAND_IN}}}
    return {**message, "tool_calls": [first, *calls[1:]]}


def _plain_turn(messages: list[Any], is_left: IsLeft, _taken: Taken, gaps: dict[str, Gap]) -> list[Any]:
    """Returns messages of Converse."""
    kept = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        thoughts = [one for one in objects(content) if "reasoningContent" in one and is_left(_proof_at_converse(one))]
        if thoughts and isinstance(content, list):
            gaps["reasoning"] = Gap("messages.reasoning_details", How.DROPPED, NOT_ITS_OWN)
            gone = set(map(id, thoughts))
            message = {**message, "content": [one for one in content if id(one) not in gone]}
        if not thoughts or message["content"]:
            kept.append(message)
    return kept


def proof_of(detail: Json) -> str:
    """Returns the proof of a detail of reasoning, or of a block of thoughts; empty: nobody signed it."""
    return text_of(detail.get("data")) or text_of(detail.get("signature"))


def _proof_at_converse(block: Json) -> str:
    thought = object_of(block["reasoningContent"])
    return text_of(thought.get("redactedContent")) or text_of(object_of(thought.get("reasoningText")).get("signature"))


# --- What a refusal says of a conversation's history ---


_REFUSES: Final = re.compile(
    rb"encrypted.content|signature|thought|reasoning.?(?:content|details|item|block)|thinking.{0,3}(?:block|content|is not)"
    rb"|extra.content|required .{0,3}reasoning|redacted|\b(?:rs|fc|msg)_|input\[\d+\]\.content|extra_forbidden|extra inputs"
    rb"|unexpected field|unrecognized|not permitted",
    re.IGNORECASE,
)
_MISSES: Final = re.compile(
    rb"(?:reasoning_content|content\[\]\.thinking)\W{1,3}(?:is missing|.{0,30}must be passed back)"
    rb"|missing .{0,3}reasoning_content",
    re.IGNORECASE,
)
_MISSED_BY: Final = ("deepseek", "other")
"""Kinds of servers that may miss reasoning: DeepSeek's and Moonshot's want some with each call of a tool."""
_PLACEHOLDER: Final = " "
"""What stands for reasoning that another model did; some servers take an empty text for none."""
REFUSALS: Final = (400, 404, 422)
"""The statuses with which a conversation is refused for its history; a 404 names an item that is not kept."""


def refuses_history(body: bytes) -> bool:
    """Returns whether the words of a refusal say that the provider does not know a part of a conversation's history."""
    return _REFUSES.search(body) is not None


def misses_reasoning(body: bytes) -> bool:
    """Returns whether the words of a refusal say that reasoning is missing, which another provider's turns do not have."""
    return _MISSES.search(body) is not None


def with_reasoning(body: bytes, language: str) -> bytes:
    """Returns a request in which each turn of the model has reasoning, or what stands for it; the same bytes if they have."""
    parsed = read_exactly(body)
    messages = None if parsed is None else parsed.get("messages")
    if parsed is None or not isinstance(messages, list) or language not in ("chat", "messages"):
        return body
    fill = _with_words if language == "chat" else _with_thought
    made = [fill(one) if object_of(one).get("role") == "assistant" else one for one in messages]
    is_same = all(one is other for one, other in zip(made, messages, strict=True))
    return body if is_same else written({**parsed, "messages": made}, body)


def _with_words(message: Json) -> Json:
    return message if message.get("reasoning_content") else {**message, "reasoning_content": _PLACEHOLDER}


def _with_thought(message: Json) -> Json:
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)
    if any(block.get("type") in ("thinking", "redacted_thinking") for block in blocks):
        return message
    return {**message, "content": [{"type": "thinking", "thinking": _PLACEHOLDER, "signature": ""}, *blocks]}
