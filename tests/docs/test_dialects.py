"""The pages of dialects name every field that is lost there, and what becomes of it, as the code has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from gateway.core.types import How
from gateway.dialects.anthropic import in_gaps, out_parts
from gateway.dialects.bedrock import request as bedrock
from gateway.dialects.gemini import in_gaps as generate
from gateway.dialects.gemini import translators as gemini
from tests.docs.support import PAGES, ROOT, rows, section, words

DIALECTS = ROOT / "gateway/dialects"
CHAT = (
    "anthropic/out_answer",
    "anthropic/out_parts",
    "anthropic/out_request",
    "anthropic/out_thoughts",
)
MESSAGES = (
    "anthropic/in_answer",
    "anthropic/in_gaps",
    "anthropic/in_request",
)
TO_GEMINI = ("gemini/out_answer", "gemini/out_request", "gemini/translators")
GENERATE = ("gemini/in_answer", "gemini/in_gaps", "gemini/in_request")
SHARED = ("schema_tools/tools", "openai/fields")
FIELDS = ("schema_tools/chat_parts", "schema_tools/schema")
EMBEDDINGS = ("embeddings without EmbeddingsOverInvoke", "embeddings without EmbeddingsOverGenerate")
"""Of Google and of Bedrock: what they have in common, and the class of each."""
PAGES_OF = {
    "docs/dialects/anthropic.md": ("## What does not", (*CHAT, *FIELDS), out_parts.CHAT_ONLY),
    "docs/dialects/gemini.md": ("## What does not", (*TO_GEMINI, FIELDS[0], EMBEDDINGS[0]), gemini.CHAT_ONLY),
    "docs/dialects/bedrock.md": ("## What does not", ("bedrock", *FIELDS, EMBEDDINGS[1]), bedrock.CHAT_ONLY),
    "docs/generate.md": ("## What does not arrive elsewhere", GENERATE, generate.AT_TOP),
    "docs/messages.md": ("## What does not arrive elsewhere", MESSAGES, in_gaps.MESSAGES_ONLY),
}
"""By page: where its table is, the modules that make the gaps, and the table of fields that no model knows."""
ANY = "…"
"""Stands in a name for what the caller, or the kind of a part, says."""


def name_of(node: ast.expr) -> str | None:
    """The name of a gap, if it is written where the gap is made."""
    match node:
        case ast.Constant(value=str(name)):
            return name
        case ast.JoinedStr(values=values):
            return "".join(str(one.value) if isinstance(one, ast.Constant) else ANY for one in values)
        case ast.Subscript(value=value):  # cut to a length
            return name_of(value)
        case _:
            return None


@cache
def trees(places: tuple[str, ...]) -> list[ast.Module]:
    found = []
    for one in places:
        place, _, left_out = one.partition(" without ")
        paths = (path for path in (DIALECTS / place, DIALECTS / f"{place}.py") if path.exists())
        for file in (file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))):
            tree = ast.parse(file.read_text())
            tree.body = [node for node in tree.body if getattr(node, "name", "") != left_out or not left_out]
            found.append(tree)
    return found


def made(places: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields the names of gaps that these modules make, with what becomes of the field."""
    for tree in trees(places):
        for call in (one for one in ast.walk(tree) if isinstance(one, ast.Call) and len(one.args) == 3):
            if getattr(call.func, "id", getattr(call.func, "attr", "")) not in ("Gap", "_lose"):
                continue
            name = name_of(call.args[0])
            hows = {one.attr for one in ast.walk(call.args[1]) if isinstance(one, ast.Attribute)}
            yield from ((name, How[how]) for how in hows & set(How.__members__) if name is not None)


def texts(places: tuple[str, ...]) -> set[str]:
    return {
        name for tree in trees(places) for one in ast.walk(tree) if isinstance(one, ast.expr) and (name := name_of(one))
    }


@pytest.mark.parametrize("page", PAGES_OF)
def test_each_field_that_is_lost_is_told_of_with_what_becomes_of_it(page: str) -> None:
    """Who reads a name in `x-gateway-lossy` finds it on the page of the dialect."""
    heading, places, table = PAGES_OF[page]
    told = {
        (name, how)
        for names, hows, _ in rows(section(PAGES[page], heading))
        for name in words(names)
        for how in hows.split(", ")
    }

    code = {*made((*places, *SHARED)), *((name, row[0]) for name, row in table.items())}

    assert sorted({(name, str(how)) for name, how in code} - told) == []


@pytest.mark.parametrize("page", PAGES_OF)
def test_no_field_is_told_of_that_nothing_loses(page: str) -> None:
    """Bedrock shares what Claude and it have in common with Anthropic's modules."""
    heading, places, table = PAGES_OF[page]
    known = texts((*places, *CHAT, *SHARED)) | table.keys()

    named = [name for names, _, _ in rows(section(PAGES[page], heading)) for name in words(names)]

    assert [name for name in named if name not in known] == []
    assert sorted({name for name in named if named.count(name) > 1}) == []
