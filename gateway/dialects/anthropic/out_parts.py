"""The parts of a chat completion as Messages have them.

In this order: content with its marks for the cache of prompts, tools and their choice, and what of a chat completion
Messages cannot say, field by field, with the reason.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.core.types import Gap, How
from gateway.dialects.anthropic.out_thoughts import RememberedTurns, has_foreign, thought_blocks
from gateway.dialects.base import MOST_NAMED, FieldGaps, Json, ServerFacts, is_blank, object_of, objects, text_of
from gateway.dialects.schema_tools.chat_parts import (
    NO_OPTION,
    OPENAIS_ALONE,
    URLS,
    ChatOutline,
    data_url,
    file_of,
    gaps_of_chat,
    is_text,
    outline,
    text_in,
    type_of_name,
)
from gateway.dialects.schema_tools.schema import SchemaTooDeep, object_schema, size_of, strict_schema
from gateway.dialects.schema_tools.tools import (
    FUNCTIONS_ALONE,
    LESS_SEARCH,
    NO_SEARCH,
    ONLINE,
    SEARCH,
    function_of,
    functions_in,
    is_search,
    name_in,
    search_in,
    search_options,
    searches_offline,
)

# --- Parts as content blocks, and the marks for the cache on them ---


PICTURES: Final = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
PDF: Final = "application/pdf"
MOST_MARKS: Final = 4
"""The marks for the cache that a request may have; one with more is refused."""
_LONGER: Final[Json] = {"type": "ephemeral", "ttl": "1h"}
_SHORTER: Final[Json] = {"type": "ephemeral"}


def has_mark(given: Json) -> bool:
    """Returns whether a part, message or tool may have a mark for the cache."""
    return "cache_control" in given or "prompt_cache_breakpoint" in given


def mark_of(given: Json) -> Json | None:
    """Returns the mark for the cache that a part, message or tool has; None: it has none.

    OpenAI's marks last for half an hour at least, of which an hour is the next here.
    """
    if isinstance(own := given.get("cache_control"), dict):
        return own
    return _LONGER if isinstance(given.get("prompt_cache_breakpoint"), dict) else None


def marked(block: Json, given: Json) -> Json:
    """Returns the block with the mark of what it is made from."""
    mark = mark_of(given)
    if mark is not None:
        block["cache_control"] = mark
    return block


def most_marks(body: Json) -> int:
    """Returns how many blocks of a request may have marks; one that marks itself as a whole has one less."""
    return MOST_MARKS - isinstance(body.get("cache_control"), dict)


def bound_marks(blocks: list[Json], most: int) -> None:
    """Leaves marks on the last blocks only, as many as are taken, and none that lasts longer behind one that lasts shorter.

    `blocks` are those that may have marks, in the order in which the model reads them.
    """
    having = [block for block in blocks if "cache_control" in block]
    for block in having[:-most]:
        del block["cache_control"]
    has_shorter = False
    for block in having[-most:]:
        if block["cache_control"].get("ttl") != "1h":
            has_shorter = True
        elif has_shorter:
            block["cache_control"] = _SHORTER


def text_blocks(content: Any, place: str) -> list[Json]:
    """Returns a content of words alone. Raises InvalidRequest where there is more."""
    return blocks_of(content, place, takes_media=False)


def blocks_of(content: Any, place: str, *, takes_media: bool = True) -> list[Json]:
    """Returns a message's content. Raises InvalidRequest, naming the part, where it makes no sense.

    Text that is empty or white space is left out: a block of it is refused (400 `text content blocks must be non-empty`) as
    long as it stays in the conversation. Source: Anthropic's API reference, Messages.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [] if is_blank(content) else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequest(f"'{place}.content' must be a string or a list of parts.", param=f"{place}.content")
    made = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal"):
            text = part.get(kind)
            if not isinstance(text, str):
                where = f"{place}.content[{number}].{kind}"
                raise InvalidRequest(f"'{where}' must be a string.", param=where)
            if is_blank(text):
                continue
            block = {"type": "text", "text": text}
        elif takes_media and kind in ("image_url", "file"):
            where = f"{place}.content[{number}]"
            block = _picture(part, where) if kind == "image_url" else _document(part, where)
        else:
            where = f"{place}.content[{number}]"
            raise InvalidRequest(f"'{where}' is no part that this model's provider takes there.", param=where)
        if has_mark(part):
            marked(block, part)
        made.append(block)
    return made


def picture_url(part: Json) -> str | None:
    """Returns where the picture of a part is, or the picture itself."""
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, dict) else inner
    return url if isinstance(url, str) and url else None


def _picture(part: Json, place: str) -> Json:
    url = picture_url(part)
    if url is None:
        raise InvalidRequest(f"'{place}.image_url' needs a 'url'.", param=f"{place}.image_url")
    media = data_url(url)
    if media is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    if media.type not in PICTURES:
        message = (
            f"'{place}' is a picture of type '{media.type[:40]}'; this model's provider takes PNG, JPEG, GIF and WebP."
        )
        raise InvalidRequest(message, param=place)
    return {"type": "image", "source": {"type": "base64", "media_type": media.type, "data": media.data}}


def _document(part: Json, place: str) -> Json:
    inner = part.get("file")
    data = inner.get("file_data") if isinstance(inner, dict) else None
    if not isinstance(inner, dict) or not isinstance(data, str):
        raise InvalidRequest(f"'{place}.file' needs 'file_data'.", param=f"{place}.file")
    name = inner.get("filename")
    source: Json | None = None
    if data.startswith(URLS):
        source = {"type": "url", "url": data} if type_of_name(data) == PDF else None
    elif (media := file_of(data, name)).type == PDF:
        source = {"type": "base64", "media_type": PDF, "data": media.data}
    elif is_text(media.type):
        source = {"type": "text", "media_type": "text/plain", "data": text_in(media, f"{place}.file.file_data")}
    if source is None:
        raise InvalidRequest(f"'{place}' is no PDF and no text, and this model's provider takes those.", param=place)
    return {"type": "document", "source": source} | ({"title": name} if isinstance(name, str) and name else {})


# --- Tools and their choice ---


MOST_STRICT: Final = 20
MOST_OPTIONAL: Final = 24
MOST_UNIONS: Final = 16
"""What all strict tools of a request may have together: so many tools, optional properties, properties with alternatives."""
_SEARCHERS: Final = ("anthropic", "vertex")
"""Who searches the web for its models; Bedrock does not. Source: Anthropic's documentation of the tool."""
_OF_SEARCH: Final = ("allowed_domains", "blocked_domains", "max_uses")
_PLACE: Final = ("city", "region", "country", "timezone")
_NOT_DEFINED: Final = "calls in the conversation need a tool of their name: it is told without a description"


def tools_and_choice(body: Json, facts: ServerFacts, *, thinks_by_budget: bool) -> tuple[Json, list[Gap]]:
    """Returns `tools` and `tool_choice`, and what they lose. Raises nothing: what makes no sense is left out."""
    gaps: list[Gap] = []
    choice = body.get("tool_choice", body.get("function_call"))
    given = functions_in(body, gaps)
    if is_filtered(body):
        allowed = object_of(object_of(choice).get("allowed_tools"))
        names = {name_in(one) for one in objects(allowed.get("tools"))}
        given = [tool for tool in given if function_of(tool).get("name") in names]
        choice = allowed.get("mode", "auto")
        gaps.append(Gap("tool_choice.allowed_tools", How.APPROXIMATED, "the other tools are left out of the request"))
    tools = _tools(given, facts, gaps)
    offered = search_in(body.get("tools"))
    search = [] if offered is None else _search(offered, facts, {text_of(tool.get("name")) for tool in tools}, gaps)
    if not tools and (names_used := _names_used(body)):
        tools = [{"name": name, "input_schema": object_schema(None)} for name in names_used]
        choice = "none"
        gaps.append(Gap("tools", How.APPROXIMATED, _NOT_DEFINED))
    chosen = _choice(choice, gaps, has_search=bool(search))
    tools += search
    if not tools:
        if chosen is not None and chosen["type"] in ("any", "tool") and offered is not None:
            gaps.append(Gap("tool_choice", How.REFUSED, NO_SEARCH.why))
        elif chosen is not None and chosen["type"] in ("any", "tool"):
            gaps.append(Gap("tool_choice", How.DROPPED, "there are no tools to choose from"))
        return {}, gaps
    is_forced = chosen is not None and chosen["type"] in ("any", "tool")
    if is_forced and (thinks_by_budget or not facts.model.forced_tools):
        why = "the model cannot be made to call a tool" + (" while it thinks" if facts.model.forced_tools else "")
        gaps.append(Gap("tool_choice", How.APPROXIMATED if facts.approximates else How.REFUSED, why))
        chosen = {"type": "auto"}
    if body.get("parallel_tool_calls") is False and (chosen is None or chosen["type"] != "none"):
        chosen = {**(chosen or {"type": "auto"}), "disable_parallel_tool_use": True}
    return {"tools": tools} | ({"tool_choice": chosen} if chosen else {}), gaps


def is_filtered(body: Json) -> bool:
    """Returns whether a request leaves tools out that it defines."""
    return object_of(body.get("tool_choice")).get("type") == "allowed_tools"


def _search(offered: Json, facts: ServerFacts, names: set[str], gaps: list[Gap]) -> list[Json]:
    """Returns the provider's own search, if it has one, and no tool of the caller's has its name."""
    if facts.issuer not in _SEARCHERS or searches_offline(offered) or SEARCH in names:
        gaps.append(NO_SEARCH)
        return []
    options = search_options(offered)
    made = {"type": "web_search_20250305", "name": SEARCH} | {one: options[one] for one in _OF_SEARCH if one in options}
    if "allowed_domains" in made:  # one of both is taken
        made.pop("blocked_domains", None)
    if isinstance(place := options.get("user_location"), dict):
        made["user_location"] = {"type": "approximate", **{one: place[one] for one in _PLACE if place.get(one)}}
    if options.keys() - made.keys() - {ONLINE}:
        gaps.append(LESS_SEARCH)
    return [made]


def _tools(given: list[Json], facts: ServerFacts, gaps: list[Gap]) -> list[Json]:
    made = []
    strict = optional = unions = 0
    for tool in given:
        named = function_of(tool)
        block: Json = {"name": named.get("name"), "input_schema": object_schema(named.get("parameters"))}
        if named.get("description"):
            block["description"] = named["description"]
        if named.get("strict"):
            closed = _closed(block["input_schema"], facts, gaps)
            if closed is not None:
                size = size_of(closed)
                strict, optional, unions = strict + 1, optional + size.optional, unions + size.unions
                if strict > MOST_STRICT or optional > MOST_OPTIONAL or unions > MOST_UNIONS:
                    gaps.append(Gap("tools.strict", How.DROPPED, "the strict tools are more than the target compiles"))
                else:
                    if closed != block["input_schema"]:
                        gaps.append(Gap("tools.strict", How.APPROXIMATED, "what it cannot check is told in words"))
                    block |= {"input_schema": closed, "strict": True}
        mark = mark_of(tool) or mark_of(named)
        if mark is not None:
            block["cache_control"] = mark
        made.append(block)
    return made


def _closed(schema: Json, facts: ServerFacts, gaps: list[Gap]) -> Json | None:
    """Returns the schema of a strict tool; None: it cannot be one."""
    if not facts.model.json_schema:
        gaps.append(Gap("tools.strict", How.DROPPED, "the model checks no schemas"))
        return None
    try:
        made: Json = strict_schema(schema)
    except SchemaTooDeep:
        gaps.append(Gap("tools.strict", How.DROPPED, "a schema that refers to itself cannot be checked"))
        return None
    return made


def _names_used(body: Json) -> list[str]:
    """Returns the names of the tools that were called, for a request that defines none: the target wants them defined."""
    found: dict[str, None] = {}
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if type(message) is not dict or ("tool_calls" not in message and "function_call" not in message):
            continue
        if message.get("role") == "assistant":
            called = objects(message.get("tool_calls")) or [{"function": message.get("function_call")}]
            for call in called:
                if isinstance(name := function_of(call).get("name"), str):
                    found[name] = None
    return list(found)


def _choice(choice: Any, gaps: list[Gap], *, has_search: bool) -> Json | None:
    if isinstance(choice, dict) and has_search and is_search(choice):
        return {"type": "tool", "name": SEARCH}
    if isinstance(choice, dict):
        if choice.get("type", "function") != "function":
            kind = text_of(choice.get("type"))
            gaps.append(Gap(f"tool_choice.{kind}"[:MOST_NAMED], How.REFUSED, FUNCTIONS_ALONE))
            return None
        return {"type": "tool", "name": name_in(choice)}
    if choice is None:
        return None
    if choice in ("none", "auto", "required"):
        return {"type": "any" if choice == "required" else choice}
    gaps.append(Gap("tool_choice", How.DROPPED, "there is no such choice"))
    return None


# --- What Messages cannot say, field by field, with the reason ---


_OUTPUT: Final = "the target cannot answer so"


CHAT_ONLY: Final[FieldGaps] = {
    **OPENAIS_ALONE,
    "frequency_penalty": (How.DROPPED, NO_OPTION, (0,)),
    "logprobs": (How.REFUSED, _OUTPUT, (False,)),
    "metadata": (How.DROPPED, NO_OPTION, ({},)),
    "modalities": (How.REFUSED, "the target answers with text alone", (["text"],)),
    "n": (How.REFUSED, "the target gives one answer", (1,)),
    "presence_penalty": (How.DROPPED, NO_OPTION, (0,)),
    "prompt_cache_options": (How.DROPPED, "marks say what the target is to keep", ()),
    "prompt_cache_retention": (How.DROPPED, "marks say what the target is to keep", ()),
    "seed": (How.DROPPED, NO_OPTION, ()),
    "top_logprobs": (How.REFUSED, _OUTPUT, (0,)),
    "web_search_options": (How.REFUSED, "the target searches by a tool of its own", ()),
}
"""Top-level fields of a chat completion: what becomes of each in a Messages request, and the values that mean nothing."""


_SETTLED: Final = frozenset(
    (
        "messages", "model", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "stop", "stream",
        "stream_options", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls", "response_format",
        "reasoning_effort", "thinking", "user", "safety_identifier", "service_tier",
        "cache_control",
    )
)  # fmt: skip
"""Fields that Messages have, too, or whose gaps depend on more than themselves."""


_PARTS: Final = frozenset(("text", "refusal", "image_url", "file"))


_NOTED: Final = frozenset(
    (
        "name", "audio", "refusal", "tool_calls", "reasoning_details", "reasoning_content", "reasoning", "thinking_blocks",
        "cache_control", "prompt_cache_breakpoint",
    )
)  # fmt: skip
"""Fields of a message that may be lost, or go with it."""


_NOT_ITS_OWN: Final = "thoughts go back to the provider that signed them, and to no other"


_BOUND: Final = "the model takes thoughts back only behind what it thought them after"


_IN_PLACE: Final = "instructions between the messages become a user's words, in their place"


def gaps_at_top(body: Json) -> list[Gap]:
    """Returns the gaps among the fields that no model knows; those that are unknown to us have no name of their own.

    Source: Anthropic's API reference, and what others lost in silence (maximhq/bifrost#5274, vercel/ai#18982).
    """
    return gaps_of_chat(body, _SETTLED, CHAT_ONLY)


def gaps_of_recalled(recalled: RememberedTurns, *, keeps_thoughts: bool) -> list[Gap]:
    """Returns the gap of turns whose thoughts are remembered but cannot go back."""
    if recalled.has_foreign:
        return [Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN)]
    if not keeps_thoughts and any(recalled.contents.values()):
        return [Gap("messages.reasoning_details", How.DROPPED, _BOUND)]
    return []


def gaps_of_messages(
    body: Json, facts: ServerFacts, recalled: Container[int], *, keeps_thoughts: bool, looks: ChatOutline | None = None
) -> list[Gap]:
    """Returns the gaps among a chat completion's messages; of those `recalled`, by number, the thoughts are remembered.

    `looks`: the messages' outline, where it was made.
    """
    found: list[Gap] = []
    looks = looks or outline(body.get("messages"))
    tools = objects(body.get("tools"))
    marks = sum(1 for tool in tools if (mark_of(tool) or mark_of(object_of(tool.get("function")))) is not None)
    for number, message in looks.notable:
        role = message.get("role")
        content = message.get("content")
        if type(content) is list:
            marks += _read_parts(content, role, found)
        if _NOTED.isdisjoint(message):
            continue
        marks += _mark(message, found)
        if message.get("name") and role not in ("tool", "function"):
            found.append(Gap("messages.name", How.DROPPED, "the target knows no names of speakers"))
        if role == "assistant":
            if not keeps_thoughts and thought_blocks(message):
                found.append(Gap("messages.reasoning_details", How.DROPPED, _BOUND))
            _read_answer(message, found, is_recalled=keeps_thoughts and number in recalled)
    if looks.has_later_system and not facts.model.later_system:
        found.append(Gap("messages.system", How.APPROXIMATED, _IN_PLACE))
    if looks.begins_at is None:
        found.append(Gap("messages.system", How.APPROXIMATED, "instructions alone become a user's words"))
    if marks > most_marks(body):
        found.append(Gap("cache_control", How.APPROXIMATED, f"the last {MOST_MARKS} marks for the cache are kept"))
    return found


def _read_answer(message: Json, found: list[Gap], *, is_recalled: bool) -> None:
    if message.get("audio"):
        found.append(Gap("messages.audio", How.REFUSED, "the target does not hear what it said"))
    if message.get("refusal"):
        found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
    for call in objects(message.get("tool_calls")):
        if call.get("type", "function") != "function":
            found.append(Gap("messages.tool_calls.custom", How.REFUSED, FUNCTIONS_ALONE))
        if call.get("extra_content"):
            found.append(Gap("messages.tool_calls.extra_content", How.DROPPED, _NOT_ITS_OWN))
    if message.get("reasoning_details") and has_foreign(message):
        found.append(Gap("messages.reasoning_details", How.DROPPED, _NOT_ITS_OWN))
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought and not is_recalled and not message.get("reasoning_details") and not message.get("thinking_blocks"):
        found.append(Gap("messages.reasoning_content", How.DROPPED, "thoughts that nobody signed cannot go back"))


def _read_parts(parts: list[object], role: object, found: list[Gap]) -> int:
    """Looks at a message's parts. Returns the number of its marks for the cache."""
    marks = 0
    for part in parts:
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if kind == "image_url":
            detail = object_of(part.get("image_url")).get("detail")
            if detail and detail != "auto":
                found.append(Gap("messages.image_url.detail", How.DROPPED, NO_OPTION))
            url = picture_url(part) or ""
            media = data_url(url[: url.find(",") + 1]) if url[:5].lower() == "data:" else None
            if media is not None and media.type not in PICTURES:
                found.append(Gap("messages.image_url", How.REFUSED, "the target takes PNG, JPEG, GIF and WebP"))
        elif kind == "file":
            _read_file(object_of(part.get("file")), found)
        elif kind == "refusal" and role == "assistant":
            found.append(Gap("messages.refusal", How.APPROXIMATED, "it goes back as what the model has said"))
        elif kind != "text" and text_of(kind) not in _PARTS:
            found.append(Gap(f"messages.{text_of(kind)}"[:MOST_NAMED], How.REFUSED, "the target takes no such part"))
        marks += _mark(part, found)
    return marks


def _mark(given: Json, found: list[Gap]) -> int:
    if not has_mark(given):
        return 0
    mark = mark_of(given)
    if mark is not None and mark is not given.get("cache_control"):
        found.append(Gap("messages.prompt_cache_breakpoint", How.APPROXIMATED, "the target keeps it for an hour"))
    return mark is not None


def _read_file(file: Json, found: list[Gap]) -> None:
    if file.get("file_id"):
        found.append(Gap("messages.file.file_id", How.REFUSED, "files of a provider are unknown to others"))
    elif isinstance(data := file.get("file_data"), str):
        if data.startswith(URLS):
            is_taken = type_of_name(data) == PDF
        else:
            media = file_of(data[: data.find(",") + 1] if data[:5].lower() == "data:" else "", file.get("filename"))
            is_taken = media.type == PDF or is_text(media.type)
        if not is_taken:
            found.append(Gap("messages.file", How.REFUSED, "the target takes PDF and texts"))
