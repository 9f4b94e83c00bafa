"""A request of Messages as a chat completion.

Each result of a tool becomes a message of its own, in order and before the rest of its turn (braintrustdata/lingua#166);
pictures in one follow in the user's message, because chat completions take them from users only (BerriAI/litellm#6953). The
line by which Claude Code is billed changes with each request and would defeat every cache of prefixes
(1rgs/claude-code-proxy#99): it is left out.
"""

from __future__ import annotations

import re
from typing import Any, Final

from gateway.core.errors import InvalidRequest
from gateway.dialects.anthropic.in_answer import ids
from gateway.dialects.anthropic.in_request.parts import Parts, text_at
from gateway.dialects.anthropic.in_request.turns import Turns
from gateway.dialects.base.base import Json, ModelFacts, ServerFacts, object_of, objects, stops_for, text_of
from gateway.dialects.schema_tools.schema import size_of

BILLING: Final = re.compile(r"^x-anthropic-billing-header:[^\n]*\n?", re.MULTILINE | re.IGNORECASE)
MOST_USER: Final = 64
"""The characters of a user's identifier that OpenAI takes."""
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_BY_BUDGET: Final = ((2048, "low"), (10_000, "medium"), (16_384, "high"))
_TIERS: Final = {"auto": "auto", "standard_only": "default"}
_CHOICES: Final = {"any": "required", "auto": "auto", "none": "none"}
SAMPLING: Final = ("temperature", "top_p")
_SAME: Final = ("model", *SAMPLING)


def chat_body(body: Json, facts: ServerFacts) -> Json:
    """Returns the chat completion. Raises InvalidRequest where the messages make no sense."""
    unsaid = unsampled(body, facts)
    made = {name: body[name] for name in _SAME if body.get(name) is not None and name not in unsaid}
    made["messages"] = _system(body.get("system"), facts) + _turns(body, facts)
    made |= _tools(body, facts)
    made[facts.bound_field] = bound(body, facts)
    if stops := stops_for(body.get("stop_sequences"), facts):
        made["stop"] = stops
    if (effort := effort_for(body, facts)) is not None:
        made["reasoning_effort"] = effort
    if (schema := schema_asked(body)) is not None:
        strict = is_strict(schema, facts)
        made["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": strict},
        }
    if user := text_of(object_of(body.get("metadata")).get("user_id")):
        is_bounded = facts.takes_developer and not facts.takes_details
        made |= {"safety_identifier": ids.shortened(user, MOST_USER)} if is_bounded else {"user": user}
    tier = _TIERS.get(text_of(body.get("service_tier")))
    if tier and (facts.takes_developer or facts.takes_details):
        made["service_tier"] = tier
    if facts.takes_details and body.get("top_k") is not None:
        made["top_k"] = body["top_k"]
    if body.get("stream"):
        made |= {"stream": True, "stream_options": {"include_usage": True}}
    return made


def unsampled(body: Json, facts: ServerFacts) -> tuple[str, ...]:
    """Returns what the model is not told of how to draw; behind another conversion, that one decides.

    OpenAI's models that can be told not to think draw as they are told only then.
    """
    if facts.takes_details:
        return ()
    may_think = facts.takes_developer and "none" in facts.model.efforts
    if facts.model.sampling and not (may_think and effort_for(body, facts) not in (None, "none")):
        return ()
    return SAMPLING


def bound(body: Json, facts: ServerFacts) -> int:
    """Returns the most tokens of the answer. Raises InvalidRequest where it is no number."""
    most = body.get("max_tokens")
    if type(most) is not int or most < 1:
        raise InvalidRequest("The field 'max_tokens' must be a whole number of at least 1.", param="max_tokens")
    if facts.takes_details or facts.model.max_output is None:
        return most
    return min(most, facts.model.max_output)


def effort_asked(body: Json) -> str | None:
    """Returns how much the model is to think, in the words of chat completions; None: nothing is said of it."""
    thinking = object_of(body.get("thinking"))
    kind, effort = thinking.get("type"), object_of(body.get("output_config")).get("effort")
    if kind in ("disabled", "between_tools"):
        return "none"
    if isinstance(effort, str) and effort:
        return effort
    budget = thinking.get("budget_tokens")
    if kind != "enabled" or type(budget) is not int:
        return None
    return next((name for most, name in _BY_BUDGET if budget <= most), "xhigh")


def effort_for(body: Json, facts: ServerFacts) -> str | None:
    """Returns the effort that the target is told: what was asked for, or what comes nearest and is no more."""
    asked = effort_asked(body)
    return asked if asked is None or facts.takes_details else nearest_effort(asked, facts.model)


def nearest_effort(asked: str, model: ModelFacts) -> str | None:
    """Returns the effort of a model's that is nearest to this one; None: the model is told none."""
    if asked in model.efforts or not model.efforts:
        return asked if asked in model.efforts else None
    most = EFFORTS.index(asked) if asked in EFFORTS else len(EFFORTS)
    less = [name for name in model.efforts if name in EFFORTS and EFFORTS.index(name) <= most]
    return less[-1] if less else model.efforts[0]


def schema_asked(body: Json) -> Json | None:
    """Returns the JSON Schema of the answer; a beta had it at the top."""
    asked = object_of(body.get("output_config")).get("format") or body.get("output_format")
    schema = object_of(asked).get("schema")
    return schema if isinstance(schema, dict) else None


def is_strict(schema: Json, facts: ServerFacts) -> bool:
    """Returns whether the answer can be held to the schema: OpenAI takes no optional property then, others do."""
    return not facts.requires_all or not size_of(schema).optional


def holds_arguments(tool: Json, facts: ServerFacts) -> bool:
    """Returns whether the arguments of a tool that asks for it can be held to its schema."""
    return not tool.get("strict") or is_strict(object_of(tool.get("input_schema")), facts)


def told_system(given: Any) -> list[tuple[str, Json]]:
    """Returns the texts of the instructions without the line by which a client is billed, each with its block.

    Raises InvalidRequest where they are no text.
    """
    if isinstance(given, str):
        given = [{"type": "text", "text": given}]
    if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
        raise InvalidRequest("The field 'system' must be a string or a list of text blocks.", param="system")
    found = []
    for number, block in enumerate(given or ()):
        text = text_at(block.get("text"), f"system[{number}].text")
        told = BILLING.sub("", text) if "x-anthropic" in text.lower() else text
        if told:
            found.append((told, block))
    return found


def _system(given: Any, facts: ServerFacts) -> list[Json]:
    marked = Parts(facts).marked
    parts = [marked(block, {"type": "text", "text": text}) for text, block in told_system(given)]
    if not parts:
        return []
    content = parts[0]["text"] if len(parts) == 1 and len(parts[0]) == 2 else parts
    return [{"role": "developer" if facts.takes_developer else "system", "content": content}]


def _turns(body: Json, facts: ServerFacts) -> list[Json]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("The field 'messages' must be a list with at least one message.", param="messages")
    turns = Turns(facts)
    for number, message in enumerate(messages):
        turns.take(message, number)
    return turns.all()


def _tools(body: Json, facts: ServerFacts) -> Json:
    given = body.get("tools")
    if given is not None and (not isinstance(given, list) or len(objects(given)) < len(given)):
        raise InvalidRequest("The field 'tools' must be a list of objects.", param="tools")
    made: Json = {"tools": [_tool(tool, f"tools[{number}]", facts) for number, tool in enumerate(given or ())]}
    if not made["tools"]:
        return {}
    choice = object_of(body.get("tool_choice"))
    kind = text_of(choice.get("type"))
    is_forced = kind in ("any", "tool") and (facts.takes_details or facts.model.forced_tools)
    if kind == "tool" and is_forced:
        made["tool_choice"] = {"type": "function", "function": {"name": ids.name_for(choice.get("name"), facts)}}
    elif kind in _CHOICES or kind == "tool":
        made["tool_choice"] = _CHOICES[kind] if is_forced or kind in ("auto", "none") else "auto"
    if choice.get("disable_parallel_tool_use"):
        made["parallel_tool_calls"] = False
    return made


def _tool(tool: Json, place: str, facts: ServerFacts) -> Json:
    """Returns a tool of the caller's. Raises InvalidRequest where it is none of those."""
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(f"'{place}' is of type '{kind}', which runs at Anthropic only.", param=place)
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"'{place}.name' must be a string.", param=f"{place}.name")
    named = {"name": ids.name_for(name, facts)}
    kept = {"description": "description", "input_schema": "parameters", "strict": "strict"}
    named |= {other: tool[field] for field, other in kept.items() if tool.get(field) is not None}
    if not holds_arguments(tool, facts):
        named.pop("strict", None)
    made: Json = {"type": "function", "function": named}
    if facts.takes_details and tool.get("cache_control"):
        made["cache_control"] = tool["cache_control"]
    return made
