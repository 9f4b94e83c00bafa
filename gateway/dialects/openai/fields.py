"""The fields of OpenAI's two languages, with what other servers and clients have added to them.

Source: OpenAI's API reference, `POST /v1/responses` and `POST /v1/chat/completions`.
"""

from __future__ import annotations

from typing import Final

from gateway.dialects.base import Form, form


def _marks(gap: str) -> dict[str, Form]:
    """Returns the forms of marks for the cache of prompts."""
    return {"cache_control": form(gap, "type ttl"), "prompt_cache_breakpoint": form(gap, "mode ttl")}


def _of_both() -> dict[str, Form]:
    """Returns the forms of what both languages have at the top."""
    bound = form("moderation.other", "mode")
    return {
        "moderation": form("moderation.other", "model", policy=form("moderation.other", input=bound, output=bound)),
        "prompt_cache_options": form("prompt_cache_options.other", "mode ttl prewarm"),
        "stream_options": form("stream_options.other", "include_obfuscation include_usage"),
    }


_PART: Final = form(
    "input.other",
    "type text refusal annotations logprobs image_url detail file_id file_data file_url filename",
    input_audio=form("input.other", "data format"),
    **_marks("input.other"),
)
_ITEM: Final = form(
    "input.other",
    "type id status role name call_id namespace phase async caller created_by arguments input",
    content=_PART,
    output=_PART,
)
_WORDS: Final = form("input.other", "type text")
_CALLS: Final = ("function_call", "custom_tool_call")
_CHOSEN: Final = form("tool_choice.other", "type name namespace mode server_label")
_TOOL: Final = form(
    "tools.other",
    "type name description parameters strict allowed_callers async defer_loading output_schema",
    format=form("tools.other", "type syntax definition"),
)
_SEARCH: Final = form(
    "tools.other",
    "type search_context_size external_web_access search_content_types",
    filters=form("tools.other", "allowed_domains blocked_domains"),
    user_location=form("tools.other", "type city country region timezone"),
)
_SEARCHES: Final = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
_TOOLS: Final = form(
    "tools.other",
    "",
    {
        "function": _TOOL,
        "custom": _TOOL,
        "namespace": form("tools.other", "type name description", tools=_TOOL),
        "tool_search": form("tools.other", "type description execution parameters"),
        **dict.fromkeys(_SEARCHES, _SEARCH),
    },
)
_LOADED: Final = form("input.other", "type id role call_id execution status arguments", tools=_TOOLS)
RESPONSES: Final = form(
    "",
    "model stream temperature top_p user metadata service_tier safety_identifier store background conversation"
    " previous_response_id prompt context_management max_tool_calls truncation image access_programs n instructions include"
    " max_output_tokens parallel_tool_calls top_logprobs prompt_cache_key prompt_cache_retention",
    input=form(
        "input.other",
        " ".join(_ITEM.fields),
        {
            **dict.fromkeys(("message", *_CALLS, *(f"{kind}_output" for kind in _CALLS)), _ITEM),
            **dict.fromkeys(("additional_tools", "tool_search_call", "tool_search_output"), _LOADED),
            "reasoning": form("input.other", "type id status encrypted_content", content=_WORDS, summary=_WORDS),
        },
        content=_PART,
        output=_PART,
    ),
    tools=_TOOLS,
    tool_choice=form("tool_choice.other", " ".join(_CHOSEN.fields), tools=_CHOSEN),
    text=form("text.other", "verbosity", format=form("text.other", "type name schema strict description")),
    reasoning=form("reasoning.other", "effort context generate_summary mode summary"),
    **_of_both(),
)
"""A Responses request; some targets know other fields at its top."""

_ARGUMENTS: Final = form("messages.other", "name arguments")
_URL: Final = form("messages.other", "url detail")
_FUNCTION: Final = form("tools.other", "name description parameters strict", **_marks("tools.other"))
_NAMED: Final = form("tool_choice.other", "name")
CHAT: Final = form(
    "",
    "",
    messages=form(
        "messages.other",
        "role name tool_call_id refusal annotations images audio is_error reasoning reasoning_content thinking_blocks",
        content=form(
            "messages.other",
            "type text refusal file_url",
            image_url=_URL,
            video_url=_URL,
            file=form("messages.other", "file_data filename file_id"),
            input_audio=form("messages.other", "data format"),
            **_marks("messages.other"),
        ),
        tool_calls=form(
            "messages.other",
            "id type index extra_content",
            function=_ARGUMENTS,
            custom=form("messages.other", "name input"),
            **_marks("messages.other"),
        ),
        function_call=_ARGUMENTS,
        reasoning_details=form("messages.other", "type id format index text summary signature data"),
        **_marks("messages.other"),
    ),
    tools=form(
        "tools.other",
        "type",
        {
            kind: form(
                "tools.other",
                "type",
                function=_FUNCTION,
                custom=form(
                    "tools.other",
                    "name description",
                    format=form("tools.other", "type", grammar=form("tools.other", "syntax definition")),
                ),
                **_marks("tools.other"),
            )
            for kind in ("function", "custom")
        },
        function=_FUNCTION,
        **_marks("tools.other"),
    ),
    functions=_FUNCTION,
    tool_choice=form(
        "tool_choice.other",
        "type name",
        function=_NAMED,
        custom=_NAMED,
        allowed_tools=form(
            "tool_choice.other", "mode", tools=form("tool_choice.other", "type name", function=_NAMED, custom=_NAMED)
        ),
    ),
    function_call=_NAMED,
    response_format=form(
        "response_format.other", "type", json_schema=form("response_format.other", "name description schema strict")
    ),
    thinking=form("thinking.other", "type budget_tokens display"),
    cache_control=form("other", "type ttl"),
    **_of_both(),
)
"""A chat completion; each target knows others of the fields at its top, and judges them."""
