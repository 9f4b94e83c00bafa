"""Environment variables in a document."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.config.fields import EnvText, substitute
from gateway.core.config.source import Document, Problem
from tests.rows import rows

ENVIRON = {"HOST": "example.org", "PORT": "8443", "EMPTY": "", "NESTED": "${HOST}", "YAML": "[1, 2]"}

texts = st.text(st.characters(exclude_characters="\0"))
nearly_variables = st.lists(
    st.sampled_from(["$", "{", "}", ":-", "env.", "os.environ/", "A", "B", "Z"]), max_size=12
).map("".join)


def resolve(text: object, environ: Mapping[str, str] = ENVIRON) -> tuple[object, list[Problem]]:
    problems: list[Problem] = []
    document = Document("c.yaml", {"a": [text]}, {(): 1, ("a",): 7}, problems)
    return substitute(document, environ).at(("a", 0)), problems


def test_a_default_holds_no_other_variable() -> None:
    """`${A:-${B}}` would leave a brace behind the value of A, and the text `${B` in its place."""
    for environ in ({"A": "a"}, {}):
        value, problems = resolve("${A:-${B}}", environ)
        assert value is None
        assert [str(one) for one in problems] == [
            "c.yaml:7: a[0]: the default of ${A} cannot hold another variable; write it out, or set A"
        ]


@rows(
    ("text", "value"),
    [
        ("${HOST}", "example.org"),
        ("https://${HOST}:${PORT}/v1", "https://example.org:8443/v1"),
        ("os.environ/HOST", "example.org"),
        ("env.HOST", "example.org"),
        ("see env.HOST", "see env.HOST"),
        ("os.environ/HOST/x", "os.environ/HOST/x"),
        ("${NOPE:-x y}", "x y"),
        ("${EMPTY:-x}", "x"),
        ("${HOST:-x}", "example.org"),
        ("${NOPE:-}", ""),
        ("${EMPTY}", ""),
        ("$${HOST}", "${HOST}"),
        ("a$$b$c", "a$b$c"),
        ("$$$${HOST}", "$${HOST}"),
        ("$$${HOST}", "$example.org"),
        ("${NESTED}", "${HOST}"),
        ("${YAML}", "[1, 2]"),
        ("plain", "plain"),
        (5, 5),
        (None, None),
    ],
)
def test_text_with_variables_is_filled_in_once(text: object, value: object) -> None:
    """What a variable holds is data: neither read as YAML nor substituted again."""
    assert resolve(text) == (value, [])


@rows(
    ("text", "message"),
    [
        ("${NOPE}", "c.yaml:7: a[0]: the environment variable NOPE is not set"),
        ("x-${HOST}-${NOPE}", "c.yaml:7: a[0]: the environment variable NOPE is not set"),
        ("env.NOPE", "c.yaml:7: a[0]: the environment variable NOPE is not set"),
        ("os.environ/NOPE", "c.yaml:7: a[0]: the environment variable NOPE is not set"),
        ("${}", "c.yaml:7: a[0]: `${` needs a variable's name and a `}`; write `$${` for the characters"),
        ("${HOST", "c.yaml:7: a[0]: `${` needs a variable's name and a `}`; write `$${` for the characters"),
        ("${1X}", "c.yaml:7: a[0]: `${` needs a variable's name and a `}`; write `$${` for the characters"),
    ],
)
def test_variable_that_cannot_be_resolved_names_itself(text: str, message: str) -> None:
    """The problem has the variable, the field, the file and the line."""
    value, problems = resolve(text)

    assert value is None
    assert [str(p) for p in problems] == [message]


@given(texts, texts, texts)
def test_any_value_of_a_variable_arrives_unchanged(before: str, value: str, after: str) -> None:
    """Whatever the variable and the text around it hold."""
    text = f"{before.replace('$', '$$')}${{X}}{after.replace('$', '$$')}"

    assert resolve(text, {"X": value}) == (before + value + after, [])


@given(texts)
def test_doubled_dollars_escape_any_text(text: str) -> None:
    """Doubling each dollar makes every text mean itself (but for the two whole-value forms)."""
    assert resolve("-" + text.replace("$", "$$"), {}) == ("-" + text, [])


@given(st.one_of(texts, nearly_variables))
def test_substitution_is_total(text: str) -> None:
    """Any text gives a value or a problem."""
    value, problems = resolve(text, {"A": "1"})

    assert (value is None) == bool(problems)


def test_only_text_with_a_variable_is_marked() -> None:
    """The mark lets a number field read digits; an escaped dollar does not earn it."""
    assert isinstance(resolve("${PORT}")[0], EnvText)
    assert isinstance(resolve("${NOPE:-1}")[0], EnvText)
    assert not isinstance(resolve("$$1")[0], EnvText)
