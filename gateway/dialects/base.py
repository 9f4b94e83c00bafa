"""What every conversion between two languages is made of.

In this order: the facts of a target, what was sent, translator and reader, helpers of all; finish reasons; two conversions
one after the other, counts of tokens, and requests without unknown fields, which are translators that hold others; usage in
the words of each language. Everything here and below is pure: no I/O, no clock, no draws; time and new ids come as
arguments. Bodies are plain dicts as orjson parses them, because an object per message would cost more than the conversion
itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, Protocol

from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import json_object
from gateway.core.openai.transcript import usage_in
from gateway.core.openai.usage import add_beside, read_usage
from gateway.core.types import ALL_TEXT, Gap, How, Usage
from gateway.dialects.memory import TurnMemory

Json = dict[str, Any]
FieldGaps = Mapping[str, tuple[How, str, tuple[object, ...]]]
"""What becomes of a field, why, and the values that mean nothing, by the field's name."""
MOST_NAMED: Final = 60
"""The characters of a field's name that a caller made up; only what is refused has such a name, in its error."""
MOST_STOPS: Final = 4
"""The sequences that chat completions stop at, at most."""
BY_TTL: Final = "cache_creation_token_details"
"""Among the details of an input, what was written to a cache by how long it stays there. The word is LiteLLM's."""


# --- The facts of a target ---


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a conversion has to know of the target's model, from `models.yaml`; the defaults are those of a model unknown."""

    max_output: int | None = None
    """The most tokens of an answer; None: not known."""
    max_input: int | None = None
    """The most tokens that the model reads; None: not known."""
    reads: tuple[str, ...] | None = None
    """What the model takes besides text: `image`, `pdf`, `audio`, `video`; None: not known."""
    sampling: bool = True
    """The model takes `temperature`, `top_p` and `top_k`."""
    stops: bool = True
    """The model's chat completions take sequences to stop at."""
    thinking: Literal["none", "budget", "adaptive", "level"] = "none"
    """How a request bounds the thinking: not at all, by a number of tokens, as it sees fit with an effort, or by a level."""
    efforts: tuple[str, ...] = ()
    """The efforts, or levels, that the model knows, the least first; empty: it takes none."""
    thinking_off: Literal["disabled", "between_tools", "never"] = "disabled"
    """How a request turns thinking off, if it can."""
    thinks_unasked: bool = False
    """The model thinks unless a request turns it off."""
    binds_thinking: bool = False
    """The model takes back what it thought only behind the very messages, tools and instructions that it thought it after."""
    forced_tools: bool = True
    """The model can be made to call a tool."""
    json_schema: bool = False
    """The model answers by a JSON Schema."""
    tools_with_schema: bool = True
    """The model has tools and a schema for its answer in one call."""
    later_system: bool = False
    """The model takes instructions between the messages."""
    cache_marks: bool = False
    """The model's chat completions take marks for the cache of prompts (`prompt_cache_breakpoint`)."""
    logprobs: bool = False
    """The model tells the probabilities of its tokens."""
    own_fields: Literal["none", "anthropic", "nova", "openai", "qwen", "xai"] = "none"
    """Whose names the model's own options have at Bedrock, where each family takes those of its maker."""
    caches: tuple[str, ...] = ()
    """Where Bedrock takes marks for the cache of the model's prompts: `tools`, `system`, `messages`."""
    beside_results: tuple[str, ...] = ("text", "image", "document")
    """What a user may say in one message with results of tools, at Bedrock."""
    in_results: tuple[str, ...] = ("image",)
    """What results of tools may have in them besides text, at Bedrock."""
    json_results: bool = False
    """The model takes results of tools as JSON alone, at Bedrock."""
    embeds: Literal["none", "cohere", "gemini", "nova", "titan"] = "none"
    """In whose form the model is asked for embeddings, at Bedrock and Vertex AI."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a conversion has to know of its target."""

    bound_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """How the target's chat completions name the most tokens of an answer: OpenAI and Azure the newer way."""
    takes_developer: bool = False
    """The target's chat completions know the role `developer`; elsewhere it is `system`."""
    takes_custom_tools: bool = False
    """The target's chat completions know tools whose input is free text, and what else OpenAI's alone know."""
    knows: frozenset[str] = frozenset()
    """The fields at the top of a request, beside those that all servers of its language have, that the target knows."""
    requires_all: bool = False
    """A schema that the target holds to strictly has no optional properties, as OpenAI's."""
    takes_reasoning: bool = True
    """The target's chat completions take back what the model thought, in plain words; others refuse the unknown field."""
    takes_details: bool = False
    """The target takes `reasoning_details` and `cache_control` in messages: the hub between two conversions does."""
    signed_in: Literal["", "reasoning_details", "extra_content"] = ""
    """The field in which the target's own chat completions have signatures, and take them back; empty: none is known."""
    issuer: str = ""
    """Whose signatures the target knows again: `anthropic`, `gemini`, `vertex`, `bedrock`; empty: it signs nothing."""
    model: ModelFacts = ModelFacts()
    most_user_characters: int = 64
    """The characters of a user's identifier that the target takes."""
    approximates: bool = False
    """What the target would have to refuse is approximated where the table of gaps names a way (`on_loss: approximate`)."""
    memory: TurnMemory | None = None
    """What the caller's turns were signed with, where it does not send that back; None: nothing is remembered."""

    def takes(self, field: Literal["reasoning_details", "extra_content"]) -> bool:
        """Returns whether what was signed goes to the target in this field of chat completions."""
        return self.takes_details or self.signed_in == field


# --- What was sent ---


@dataclass(frozen=True, slots=True)
class ConvertedRequest:
    """A converted request, and what its answer needs to know of it."""

    body: Json
    source: Json
    """The caller's own request, some of which its answer repeats."""
    id: str
    """The id of the answer, without a prefix; the ids of its items are made from it."""
    now: float
    """Wall time in seconds at which the request was converted."""
    custom_tools: frozenset[str] = field(default_factory=frozenset)
    """Names of tools with free text as input that went out as functions."""
    issuer: str = ""
    """Whose signatures its answer has (see `ServerFacts`)."""
    memory: TurnMemory | None = None
    """Where what its answer is signed with is remembered; None: nowhere."""
    gaps: Sequence[Gap] | None = None
    """What does not arrive as it was sent; None: that was not looked for on the way."""
    place: str | None = None
    """The place below the base URL that it goes to, where that is not the pair's usual one."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The caller's names of the tools that go by another one there, by that one."""
    carries_proofs: bool = False
    """What its answer is signed with goes to a caller of Responses, and comes back from there."""
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The namespace of a tool and its name in it, by the name under which the tool goes there without its namespace."""
    read: int | None = None
    """The tokens that were read, where a header of its answer tells them."""
    wall: Callable[[], float] | None = None
    """Returns the wall time in seconds, for what tells when its answer ended; None: that is `now`."""
    via: ConvertedRequest | None = None
    """The request in the language in between, where it took two conversions."""


def with_usage(sent: ConvertedRequest) -> ConvertedRequest:
    """Returns the request as if its caller had asked for usage at the end of the stream."""
    source = {**sent.source, "stream_options": {"include_usage": True}}
    return replace(sent, source=source, via=None if sent.via is None else with_usage(sent.via))


def with_wall(sent: ConvertedRequest, wall: Callable[[], float]) -> ConvertedRequest:
    """Returns the request with a clock for the end of its answer."""
    return replace(sent, wall=wall, via=None if sent.via is None else with_wall(sent.via, wall))


# --- Translator and reader ---


class Translator(Protocol):
    """One pair: the caller's language, and the target's."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        """Returns what would not arrive as it was sent, each field once; a gap that is REFUSED makes the target incapable."""
        ...

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        """Converts a request. Raises InvalidRequest, naming the place, where no target could understand it."""
        ...

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Converts a whole answer. Raises MalformedAnswer where it is none."""
        ...

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Returns what converts a streamed answer."""
        ...


class Reader(Protocol):
    """Converts one stream: is fed bytes of the target's and gives whole events of the caller's language."""

    @property
    def is_over(self) -> bool:
        """Returns whether the end was written, or an error: how the target's connection ends adds nothing."""
        ...

    @property
    def reported(self) -> Usage | Json | None:
        """Returns the usage that the target has reported last, also in its own words: another object with each report.

        None: it has reported none, or its reports stand in the events as they are.
        """
        ...

    def feed(self, chunk: bytes) -> bytes:
        """Returns the events that this chunk has completed; empty when there is none."""
        ...

    def close(self, *, is_clean: bool) -> bytes:
        """Returns the last events, if the target's stream has come to its end.

        An end is never invented: where the target's was cut, nothing comes, and the relay says so.
        """
        ...


class MalformedAnswer(Exception):
    """A target's answer is not what its language says."""


# --- Helpers of all ---


def lost_in(sent: ConvertedRequest, translator: Translator, facts: ServerFacts) -> Sequence[Gap]:
    """Returns what does not arrive as it was sent, of a request that this translator has converted."""
    return translator.gaps(sent.source, facts) if sent.gaps is None else sent.gaps


def gaps_of_fields(body: Json, table: FieldGaps) -> list[Gap]:
    """Returns the gaps among the top-level fields; the table names for each what becomes of it, why, and harmless values."""
    return [
        Gap(name, table[name][0], table[name][1])
        for name in body.keys() & table.keys()
        if body[name] is not None and body[name] not in table[name][2]
    ]


def once(gaps: Sequence[Gap]) -> list[Gap]:
    """Returns each field once, the worst of its gaps, in the order of the fields' names."""
    worst = {How.APPROXIMATED: 0, How.DROPPED: 1, How.REFUSED: 2}
    found: dict[str, Gap] = {}
    for gap in gaps:
        if gap.field not in found or worst[gap.how] > worst[found[gap.field].how]:
            found[gap.field] = gap
    return [found[name] for name in sorted(found)]


def objects(value: object) -> list[Json]:
    """Returns the objects of a list; none where it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def object_of(value: object) -> Json:
    """Returns the value, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def strings(value: object) -> list[str]:
    """Returns the strings of a list; none where it is no list."""
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def stops_for(stop: Any, facts: ServerFacts) -> list[str]:
    """Returns the sequences at which the target is to stop; behind another conversion, all of them."""
    if facts.takes_details:
        return strings(stop)
    return strings(stop)[:MOST_STOPS] if facts.model.stops else []


def text_of(value: object) -> str:
    """Returns the value, if it is a string; else an empty one."""
    return value if isinstance(value, str) else ""


def is_blank(text: str) -> bool:
    return not text or text.isspace()


def is_no_argument(text: str) -> bool:
    """Returns whether the whole text of a call's arguments says that there are none; models write `null` for that, too."""
    return text.strip() in ("", "null")


# --- Why a choice ended ---


_FINISHES: Final[Mapping[str, str]] = {
    "complete": "stop", "end": "stop", "end_turn": "stop", "eos": "stop", "eos_token": "stop", "stop_sequence": "stop",
    "function_call": "tool_calls", "tool_call": "tool_calls", "tool_use": "tool_calls",
    "max_output_tokens": "length", "max_tokens": "length", "model_context_window_exceeded": "length", "model_length": "length",
    "blocklist": "content_filter", "prohibited_content": "content_filter", "recitation": "content_filter",
    "refusal": "content_filter", "safety": "content_filter", "sensitive": "content_filter", "spii": "content_filter",
}  # fmt: skip
"""OpenAI's word for a finish reason of other servers: Cohere's, TGI's, Together's, Mistral's, Z.ai's, and proxies'."""
_OWN_FINISHES: Final = frozenset(("stop", "tool_calls", "length", "content_filter"))
ENDED_WELL: Final = frozenset(("stop", "tool_calls"))
"""The finish reasons of an answer that is whole."""


def after_null(lead: str, text: str) -> tuple[str, str]:
    """Returns the beginning of a call's arguments that may still become `null`, and what of them can leave now.

    `lead` is such a beginning, `text` the next piece: servers cut the word anywhere.
    """
    lead += text
    return (lead.strip(), "") if "null".startswith(lead.strip()) else ("", lead)


UNKNOWN_FINISH: Final = "unknown"
"""Stands for the finish reason of a whole answer that has none: some servers leave it `null`, and it may have been cut."""


def finish_in(choice: Json) -> str:
    """Returns why a choice ended, in OpenAI's words; a word that nobody knows as it is.

    Where there is none, whole calls and a refusal are an end, and plain text is not: it may have been cut anywhere.
    """
    word = text_of(choice.get("finish_reason"))
    if word in _OWN_FINISHES:
        return word
    known = word.lower()
    return _FINISHES.get(known) or (known if known in _OWN_FINISHES else word) or _end_without_word(choice)


def _end_without_word(choice: Json) -> str:
    message = object_of(choice.get("message"))
    named = objects(message.get("tool_calls")) or [{"function": message.get("function_call")}] * (
        "function_call" in message
    )
    calls = [text_of(object_of(call.get("function")).get("arguments")) for call in named]
    if calls and all(is_no_argument(text) or json_object(text.encode(errors="replace")) is not None for text in calls):
        return "tool_calls"
    return "stop" if message.get("refusal") else UNKNOWN_FINISH


def finish_fields(sent: ConvertedRequest, finish: str, *, has_calls: bool) -> Json:
    """Returns why a choice of a chat completion ended; a word that OpenAI has none for beside it, as OpenRouter does.

    A conversion that follows gets the word itself, for its language's own mark. Clients check OpenAI's words strictly.
    """
    if finish in _OWN_FINISHES or sent.via is not None:
        return {"finish_reason": finish}
    return {"finish_reason": "tool_calls" if has_calls else "stop", "native_finish_reason": finish}


# --- Two conversions, one after the other ---


OPENAIS_FIELDS: Final = frozenset(
    (
        "metadata", "moderation", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier",
        "service_tier", "verbosity",
    )
)  # fmt: skip
"""Fields of chat completions that OpenAI's own know; of others, many refuse a call that has one (zed-industries/zed#36215)."""
HUB: Final = ServerFacts(
    bound_field="max_completion_tokens", takes_developer=True, takes_details=True, knows=OPENAIS_FIELDS | {"top_k"}
)
"""What the first conversion has to know of its target, which is the second one."""


class ThroughChat:
    """Converts from a caller's language into chat completions, and from there into a target's; implements
    `base.Translator`.

    Chat completions are the hub: five languages need a way there and a way from there, and not a way for each pair. What
    the hub carries beyond OpenAI's own fields (`reasoning_details`, `cache_control`, pictures in results of tools) is
    public usage of others, and never leaves the gateway but to a caller of chat completions.
    """

    def __init__(self, first: Translator, second: Translator) -> None:
        """`first` converts from the caller's language into the hub, `second` from there into the target's."""
        self._first = first
        self._second = second

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        hub = _hub_of(facts)
        try:
            between = self._first.request(body, hub, 0.0, str)
        except InvalidRequest:  # it is raised again where the call is converted, with the place that is wrong
            return self._first.gaps(body, hub)
        return once([*lost_in(between, self._first, hub), *self._second.gaps(between.body, facts)])

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        hub = _hub_of(facts)
        between = self._first.request(body, hub, now, new_id)
        sent = self._second.request(between.body, facts, now, new_id)
        gaps = once([*lost_in(between, self._first, hub), *lost_in(sent, self._second, facts)])
        return replace(sent, gaps=gaps, via=between)

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return self._first.answer(_between(sent), self._second.answer(sent, body))

    def reader(self, sent: ConvertedRequest) -> Reader:
        return _ReaderThroughChat(self._first.reader(_between(sent)), self._second.reader(sent))


class _ReaderThroughChat:
    def __init__(self, first: Reader, second: Reader) -> None:
        self._first = first
        self._second = second

    @property
    def is_over(self) -> bool:
        return self._first.is_over

    @property
    def reported(self) -> Usage | Json | None:
        return self._second.reported

    def feed(self, chunk: bytes) -> bytes:
        converted = self._second.feed(chunk)
        return self._first.feed(converted) if converted else b""

    def close(self, *, is_clean: bool) -> bytes:
        converted = self._second.close(is_clean=is_clean)
        return (self._first.feed(converted) if converted else b"") + self._first.close(is_clean=is_clean)


def _hub_of(facts: ServerFacts) -> ServerFacts:
    return replace(
        HUB,
        issuer=facts.issuer,
        model=facts.model,
        approximates=facts.approximates,
        requires_all=facts.requires_all,
    )


def _between(sent: ConvertedRequest) -> ConvertedRequest:
    if sent.via is None:
        raise AssertionError("the request was not converted by way of chat completions")
    return sent.via


# --- Counts of tokens ---


class CountingTranslator(ABC):
    """What questions for the tokens of a request have in common: the number comes back as Anthropic has it.

    Implements `base.Translator` but for the request. Nothing is lost of what is only counted.
    """

    count_field: ClassVar[str]
    """The field of the answer with the number."""

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        return ()

    @abstractmethod
    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest: ...

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        """Raises MalformedAnswer where there is no number."""
        count = body.get(self.count_field)
        if type(count) is not int:
            raise MalformedAnswer("the answer tells no number of tokens")
        return {"input_tokens": count}

    def reader(self, sent: ConvertedRequest) -> Reader:
        """Raises MalformedAnswer: a number is not streamed."""
        raise MalformedAnswer("the provider has streamed a number")


# --- The fields of a request that its language does not have, wherever they stand ---


_WHY: Final = "the target has no such field"
_NOTHING: Final[tuple[object, ...]] = (None, False, "", [], {})
"""Values that say nothing."""


@dataclass(frozen=True, slots=True)
class Form:
    """The fields that an object, or each object of a list, may have."""

    gap: str
    """The name of the gap of all others; empty: they stay, and are judged elsewhere."""
    fields: Mapping[str, Form | None]
    """The forms of what stands in fields, by their names; None: that is not looked at."""
    kinds: Mapping[str, Form] = field(default_factory=dict)
    """The forms of an object that says its type, by type, if there are several; one of another type is not looked at."""


def form(gap: str, leaves: str = "", kinds: Mapping[str, Form] | None = None, /, **within: Form) -> Form:
    """Returns a form; `leaves` are the names, with spaces between, of fields whose values are not looked at."""
    return Form(gap, {**dict.fromkeys(leaves.split()), **within}, kinds or {})


def known_part(value: Json, known: Form, lost: set[str]) -> Json:
    """Returns an object without the fields that its form does not have, itself where there are none.

    Adds the names of their gaps to `lost`.
    """
    if known.kinds and type(kind := value.get("type")) is str:
        other = known.kinds.get(kind)
        if other is None:
            return value
        known = other
    fields, made = known.fields, value
    for name, given in value.items():
        kind_of_value = type(given)
        if name not in fields:
            if known.gap:
                if given not in _NOTHING:
                    lost.add(known.gap)
                made = dict(value) if made is value else made  # copied once, however much is unknown
                del made[name]
        elif (kind_of_value is list or kind_of_value is dict) and (inner := fields[name]) is not None:
            part = known_part(given, inner, lost) if kind_of_value is dict else _known_items(given, inner, lost)
            if part is not given:
                made = dict(value) if made is value else made
                made[name] = part
    return made


def _known_items(items: list[object], known: Form, lost: set[str]) -> list[object]:
    made = items
    for number, one in enumerate(items):
        if type(one) is dict and (part := known_part(one, known, lost)) is not one:
            made = [*items] if made is items else made
            made[number] = part
    return made


class KnownFields:
    """Leaves out what the caller's language does not have, before another translator converts; implements
    `base.Translator`.

    One walk goes along the forms of the language. A gap has a name of ours: a caller's own is no name for a header or a
    label. Texts, schemas, metadata and arguments of tools are not looked at.
    """

    __slots__ = ("_find_form", "_inner")

    def __init__(self, find_form: Callable[[], Form], inner: Translator) -> None:
        """`find_form` gives the form of a request, the same one each time."""
        self._find_form = find_form
        self._inner = inner

    def gaps(self, body: Json, facts: ServerFacts) -> Sequence[Gap]:
        lost: set[str] = set()
        found = self._inner.gaps(known_part(body, self._find_form(), lost), facts)
        return once([*found, *_gaps(lost)]) if lost else found

    def request(self, body: Json, facts: ServerFacts, now: float, new_id: Callable[[], str]) -> ConvertedRequest:
        lost: set[str] = set()
        known = known_part(body, self._find_form(), lost)
        sent = self._inner.request(known, facts, now, new_id)
        return replace(sent, gaps=once([*lost_in(sent, self._inner, facts), *_gaps(lost)])) if lost else sent

    def answer(self, sent: ConvertedRequest, body: Json) -> Json:
        return self._inner.answer(sent, body)

    def reader(self, sent: ConvertedRequest) -> Reader:
        return self._inner.reader(sent)


def _gaps(lost: set[str]) -> list[Gap]:
    return [Gap(name, How.DROPPED, _WHY) for name in lost]


# --- Usage in the words of each language: callers get what is billed, whatever their provider speaks ---


_KINDS: Final = ("audio", "image", "video")


def usage_of_answer(answer: Json) -> Usage | None:
    """Returns the usage that a chat completion, or a piece of one, has, with what stands beside it; None: it has none.

        a provider's usage object -> `read_usage` -> Usage -> `chat_usage`, `response_usage`, `message_usage`, `generated_usage`

    What `read_usage` makes of the result is the same usage again. Where a language has no word for a count that has a price
    of its own, it stands under the name of another language, and only where it is not zero.
    """
    reported = usage_in(answer)
    usage = None if reported is None else read_usage(reported)
    if usage is not None:
        add_beside(usage, answer)
    return usage


def chat_usage(usage: Usage) -> Json:
    """Returns a usage in the words of chat completions, whose input includes what a cache held or was given."""
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_written,
            "audio_tokens": usage.parts.audio_input,
            **_of_input(usage),
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.parts.reasoning,
            "audio_tokens": usage.parts.audio_output,
            **_of_output(usage),
        },
        **_besides(usage),
    }


def response_usage(usage: Usage) -> Json:
    """Returns a usage in the words of Responses."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {
            "cached_tokens": usage.cached,
            "cache_write_tokens": usage.cache_written,
            **_of_input(usage),
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.parts.reasoning, **_of_output(usage)},
        "total_tokens": usage.input + usage.output,
        **_besides(usage),
    }


def message_usage(usage: Usage) -> Json:
    """Returns a usage in the words of Messages, whose input is without what a cache has done."""
    made: Json = {
        "input_tokens": usage.input - usage.cached - usage.cache_written,
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }
    of_input, of_output = _of_input(usage), _of_output(usage)
    if by_ttl := of_input.pop(BY_TTL, None):
        made["cache_creation"] = by_ttl
    if of_input:
        made["input_tokens_details"] = of_input
    if usage.parts.reasoning:
        of_output = {"thinking_tokens": usage.parts.reasoning} | of_output
    if of_output:
        made["output_tokens_details"] = of_output
    return made | _besides(usage)


def generated_usage(usage: Usage) -> Json:
    """Returns a usage in the words of generateContent, whose candidates are without thoughts."""
    parts = usage.parts
    found = {
        "thoughtsTokenCount": parts.reasoning,
        "cachedContentTokenCount": usage.cached,
        "promptTokensDetails": _by_kind(parts.audio_input, parts.image_input, parts.video_input),
        "cacheTokensDetails": _by_kind(parts.audio_cached, parts.image_cached),
        "candidatesTokensDetails": _by_kind(parts.audio_output, parts.image_output, parts.video_output),
        "cacheWriteTokenCount": usage.cache_written,
        "cacheWrite1hTokenCount": usage.cache_written_1h,
        "serviceTier": usage.tier,
        "server_tool_use": {"web_search_requests": parts.searches} if parts.searches else None,
        "prompt_audio_seconds": parts.audio_s,
        "estimated": usage.estimated,
        "doubt": usage.doubt,
        "steps": [*map(message_usage, usage.steps)],
    }
    return {
        "promptTokenCount": usage.input,
        "candidatesTokenCount": usage.output - parts.reasoning,
        "totalTokenCount": usage.input + usage.output,
    } | {name: value for name, value in found.items() if value}


def _by_kind(*counts: int) -> list[Json]:
    return [
        {"modality": kind.upper(), "tokenCount": count} for kind, count in zip(_KINDS, counts, strict=False) if count
    ]


def _of_input(usage: Usage) -> Json:
    """Returns the details of an input that few answers have."""
    parts = usage.parts
    made: Json = {}
    if usage.cache_written_1h:
        made[BY_TTL] = {
            "ephemeral_5m_input_tokens": usage.cache_written - usage.cache_written_1h,
            "ephemeral_1h_input_tokens": usage.cache_written_1h,
        }
    if parts is not ALL_TEXT:
        made |= _filled(audio_tokens=parts.audio_input, image_tokens=parts.image_input, video_tokens=parts.video_input)
        if cached := _filled(audio_tokens=parts.audio_cached, image_tokens=parts.image_cached):
            made["cached_tokens_details"] = cached
    return made


def _of_output(usage: Usage) -> Json:
    parts = usage.parts
    if parts is ALL_TEXT:
        return {}
    return _filled(audio_tokens=parts.audio_output, image_tokens=parts.image_output, video_tokens=parts.video_output)


def _besides(usage: Usage) -> Json:
    searches = usage.parts.searches
    return _filled(
        server_tool_use={"web_search_requests": searches} if searches else None,
        prompt_audio_seconds=usage.parts.audio_s,
        service_tier=usage.tier,
        estimated=usage.estimated,
        doubt=usage.doubt,
        steps=[*map(message_usage, usage.steps)],
    )


def _filled(**values: Any) -> Json:
    return {name: value for name, value in values.items() if value}
