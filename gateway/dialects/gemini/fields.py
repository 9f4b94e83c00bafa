"""The fields of what stands within a generateContent request and is judged by nobody else, in both spellings.

Source: the Gemini API's reference, Content and GenerationConfig.
"""

from __future__ import annotations

from typing import Final

from gateway.dialects.schema_tools.unknown import form

_DATA: Final = form("contents.other", "data displayName display_name mimeType mime_type")
_FILE: Final = form("contents.other", "fileUri file_uri displayName display_name mimeType mime_type")
_MEDIA: Final = {"inlineData": _DATA, "inline_data": _DATA, "fileData": _FILE, "file_data": _FILE}
_RESULT: Final = form("", "", parts=form("", "", **_MEDIA))
_INSTRUCTION: Final = form("systemInstruction.other", "role parts")
_THINKING: Final = form(
    "generationConfig.other",
    "includeThoughts include_thoughts thinkingBudget thinking_budget thinkingLevel thinking_level",
)
_CONFIG: Final = form("", "", thinkingConfig=_THINKING, thinking_config=_THINKING)
GENERATE: Final = form(
    "",
    "",
    contents=form(
        "contents.other",
        "role",
        parts=form("", "", functionResponse=_RESULT, function_response=_RESULT, **_MEDIA),
    ),
    systemInstruction=_INSTRUCTION,
    system_instruction=_INSTRUCTION,
    generationConfig=_CONFIG,
    generation_config=_CONFIG,
)
"""A generateContent request, without the fields that `in_gaps` looks at."""
