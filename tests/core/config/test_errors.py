"""errors/*.yaml: whose rules are asked first, that the shipped tables are good, and every mistake in a user's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.core.config import error_tables
from gateway.core.config.admission import KINDS
from gateway.core.config.error_tables import (
    DEFAULT,
    FIELDS,
    MAX_PHRASES,
    NAMES,
    ErrorTables,
    RuleEntry,
    built_in_folder,
    read_error_tables,
)
from gateway.core.config.source import Problem, read_text
from gateway.core.error_tables import Diagnosis, ErrorRule, ErrorTable, Phrase
from gateway.core.types import ErrorClass, Phase
from tests.rows import rows
from tests.support.configs import ROOT

SHIPPED = ROOT / "policies" / "errors"
WALL = 1_790_000_000.0


def read(folder: Path, environ: dict[str, str] | None = None, **files: str) -> tuple[ErrorTables, list[str]]:
    """The tables with these files of a user, each named without `.yaml`, and their problems without the folder's name."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    problems: list[Problem] = []
    tables = read_error_tables(sorted(folder.iterdir()), environ or {}, problems)
    return tables, [str(problem).replace(f"{folder}/", "") for problem in problems]


def rule_of(tables: ErrorTables, kind: str, status: int, body: bytes = b"") -> str:
    """The rule that this answer meets."""
    return diagnosis_of(tables.of(kind), status, body).rule


def diagnosis_of(table: ErrorTable, status: int, body: bytes = b"") -> Diagnosis:
    return table.diagnose(Phase.ANSWERED, status, (), body, WALL)


def test_every_kind_has_a_shipped_table() -> None:
    """And nothing else is shipped; nobody in particular has the one for everybody."""
    assert {file.name for file in SHIPPED.iterdir()} == {f"{name}.yaml" for name in NAMES if name != "other"}
    assert set(NAMES) == {DEFAULT, *KINDS}
    assert built_in_folder() == SHIPPED


@rows("kind", KINDS)
def test_shipped_tables_are_read_without_a_problem(kind: str) -> None:
    """Those of the kind first, then those for everybody; every rule knows its line."""
    rules = read_error_tables((), {}, []).of(kind).rules
    tables = [rule.name.partition(": ")[0] for rule in rules]

    assert list(dict.fromkeys(tables)) == [name for name in (kind, DEFAULT) if name != "other"]
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(f"{name}.yaml:" in rule.where for name, rule in zip(tables, rules, strict=True))


def test_every_field_is_told_in_the_shipped_default() -> None:
    """Whoever writes a rule finds them there."""
    head = (SHIPPED / "default.yaml").read_text().partition("\n\n")[0]

    assert [field for field in FIELDS if not re.search(rf"\b{field}\b", head)] == []


def test_every_field_of_a_rule_is_compiled(tmp_path: Path) -> None:
    """In the units of its name; one thing may stand for a list."""
    text = """
r:
  phase: sent
  status: [418, 5xx, "429"]
  code: [A, 7]
  type: T
  body_status: S
  finish_reason: [F]
  says: [One  thing, "# * more", 42]
  unless_says: not
  headers: {X-Kind: [a, "*"]}
  class: timeout
  scope: account
  never_fits: true
  delay: 90s
  resets_daily_at: "08:30"
"""
    tables, problems = read(tmp_path, groq=text)

    assert problems == []
    assert tables.of("groq").rules[0] == ErrorRule(
        name="own groq: r",
        error_class=ErrorClass.TIMEOUT,
        scope="account",
        phases=frozenset([Phase.SENT]),
        statuses=frozenset([418, 429, *range(500, 600)]),
        codes=frozenset(["a", "7"]),
        types=frozenset(["t"]),
        states=frozenset(["s"]),
        finishes=frozenset(["f"]),
        says=(Phrase.of("one thing"), Phrase.of("# * more"), Phrase.of("42")),
        unless_says=(Phrase.of("not"),),
        headers=((b"x-kind", (Phrase.of("a"), Phrase.of("*"))),),
        never_fits=True,
        delay_s=90.0,
        resets_daily_at_s=8.5 * 3600,
        where=f"{tmp_path}/groq.yaml:2",
    )


def test_what_the_user_says_goes_first(tmp_path: Path) -> None:
    """The kind's before everybody's, the user's before the built-in ones of the same file."""
    own = "mine: {status: [412, 498, 503], says: word, class: %s}\n"
    tables, problems = read(tmp_path, fireworks=own % "auth", default=own % "timeout")

    assert problems == []
    assert rule_of(tables, "fireworks", 412, b"word") == "own fireworks: mine"
    assert rule_of(tables, "fireworks", 412) == "fireworks: adapter not loaded"
    assert rule_of(tables, "cohere", 498, b"word") == "cohere: blocked output"
    assert rule_of(tables, "groq", 498, b"word") == rule_of(tables, "", 503, b"word") == "own default: mine"
    assert rule_of(tables, "groq", 498) == "default: status 498"


def test_a_rule_of_the_same_name_replaces_the_built_in_one(tmp_path: Path) -> None:
    """So that a copied file may be changed in place."""
    tables, problems = read(tmp_path, fireworks="tokens: {status: 429, says: tokens, class: rate_limit_tokens}\n")

    assert problems == []
    assert rule_of(tables, "fireworks", 429) == "default: status 429"
    assert diagnosis_of(tables.of("fireworks"), 429, b"tokens").rule == "own fireworks: tokens"
    assert [rule.name for rule in tables.of("fireworks").rules].count("fireworks: tokens") == 0


def test_the_shipped_folder_as_the_users_own_changes_nothing() -> None:
    """As in a checkout, whose example config names it."""
    problems: list[Problem] = []
    tables = read_error_tables(sorted(SHIPPED.iterdir()), {}, problems)

    assert problems == []
    assert len(tables.documents) == len(NAMES) - 1
    assert all(tables.of(kind) == read_error_tables((), {}, []).of(kind) for kind in KINDS)


def test_tables_are_made_once_and_only_when_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads the kinds that its targets have; without a folder nothing at all."""
    tables, _ = read(tmp_path)
    read_files: list[str] = []

    def noted(file: Path, problems: list[Problem]) -> str | None:
        read_files.append(file.name)
        return read_text(file, problems)

    monkeypatch.setattr(error_tables, "read_text", noted)

    assert tables.of("groq") is tables.of("groq")
    assert tables.of("groq").kind == "groq"
    assert tables.of("") is tables.of("other")
    assert read_files == ["groq.yaml", "default.yaml"]


def test_a_built_in_file_that_changes_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout it may be edited under a running gateway; what stays as it is, is not compiled for each load."""
    monkeypatch.setattr(error_tables, "built_in_folder", lambda: tmp_path)
    (tmp_path / "default.yaml").write_text("busy: {status: 503, class: overloaded}\n")
    first, second = (read_error_tables((), {}, []).of("").rules for _ in range(2))
    (tmp_path / "default.yaml").write_text("busy: {status: 504, class: overloaded}\n")
    third = read_error_tables((), {}, []).of("").rules

    assert first[0] is second[0]
    assert [rules[0].statuses for rules in (second, third)] == [{503}, {504}]

    (tmp_path / "default.yaml").write_text("busy: {status: 503, class: none of them}\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"default\.yaml:1: busy"):
            read_error_tables((), {}, []).of("")


def test_a_broken_installation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped files are no business of the user's config."""
    monkeypatch.setattr(error_tables, "built_in_folder", lambda: tmp_path)

    with pytest.raises(RuntimeError, match=r"groq\.yaml: there is no such file"):
        read_error_tables((), {}, []).of("groq")


def test_variables_may_be_used(tmp_path: Path) -> None:
    """As in every policy file."""
    tables, problems = read(tmp_path, {"D": "5s"}, groq="r: {status: 418, class: timeout, delay: '${D}'}")

    assert problems == []
    assert diagnosis_of(tables.of("groq"), 418).delay_s == 5


CLASSES = ", ".join(ErrorClass)


@rows(
    ("text", "problem"),
    [
        ("r: {status: 503}", "groq.yaml:1: r.class: is missing"),
        ("r:\n  status: 503\n  class: auth\n  say: x", 'groq.yaml:4: r.say: unknown field; did you mean "says"?'),
        (
            "r: {status: 503, class: overload}",
            f'groq.yaml:1: r.class: "overload" is not one of {CLASSES}; did you mean "overloaded"?',
        ),
        (
            "r: {status: 503, class: auth, scope: keys}",
            'groq.yaml:1: r.scope: "keys" is not one of target, key, account; did you mean "key"?',
        ),
        (
            "r: {status: 503, class: auth, delay: 30}",
            "groq.yaml:1: r.delay: 30 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        ),
        (
            "r: {status: 503, class: auth, resets_daily_at: 10:30}",
            'groq.yaml:1: r.resets_daily_at: 630 is no time of day: write for example "08:00", in quotes; it is in UTC',
        ),
        (
            "r: {status: [503, 6xx], class: auth}",
            'groq.yaml:1: r.status: "6xx" is no HTTP status: write for example 429 or 5xx',
        ),
        (
            "r: {phase: [send], class: auth}",
            'groq.yaml:1: r.phase[0]: "send" is not one of nothing_sent, sent, answered, streaming; did you mean "sent"?',
        ),
        ("r: {code: [], class: auth}", "groq.yaml:1: r.code: needs at least one entry"),
        ("r: {code: [[x]], class: auth}", "groq.yaml:1: r.code[0]: expected text, not a list"),
        ("r: {says: {a: b}, class: auth}", "groq.yaml:1: r.says: expected phrases, each a text; is one to be quoted?"),
        (
            "r: {says: ['* *'], class: auth}",
            "groq.yaml:1: r.says: a phrase without words would be found in every error",
        ),
        ("r: {says: '*', class: auth}", "groq.yaml:1: r.says: a phrase without words would be found in every error"),
        (
            "r: {says: 'limit # of 5', class: auth}",
            'groq.yaml:1: r.says: "limit # of 5" has digits beside a #, which stands for any number: write # for them too, '
            "or for none",
        ),
        (f"r: {{says: {'x' * 201}, class: auth}}", "groq.yaml:1: r.says: a phrase has at most 200 characters"),
        (
            "r: {headers: x, class: auth}",
            "groq.yaml:1: r.headers: expected a mapping of header names to phrases, such as {policy-id: token}",
        ),
        (
            "r: {never_fits: 1, status: 413, class: auth}",
            "groq.yaml:1: r.never_fits: expected true or false, not a number",
        ),
        (
            "r: {class: auth}",
            "groq.yaml:1: r: has no condition, so it would hold for every error; there are: phase, status, code, type, "
            "body_status, finish_reason, says, unless_says, headers",
        ),
        ("r: 503", "groq.yaml:1: r: expected a rule such as {status: 503, class: overloaded}, not 503"),
        (
            "- {status: 503}",
            "groq.yaml:1: expected named rules such as `busy: {status: 503, class: overloaded}`, not a list",
        ),
        (
            "r: {status: 503, class: auth}\nr: {status: 504, class: auth}",
            'groq.yaml:2: "r" is here twice, first on line 1',
        ),
        (
            f"r: {{says: [{', '.join(f'w{n}' for n in range(301))}], class: auth}}",
            f"groq.yaml:1: has 301 phrases, of which a file takes {MAX_PHRASES}: every one is looked for in every error",
        ),
    ],
)
def test_mistake_in_a_rule_is_said_once(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line, path and a suggestion."""
    assert read(tmp_path, groq=text)[1] == [problem]


def test_a_mistake_does_not_hide_the_next(tmp_path: Path) -> None:
    """Of one rule or of several."""
    text = "a: {status: x, class: y}\nb: {status: 418, class: auth}\nc: {status: 1, class: auth}\n"
    problems = read(tmp_path, groq=text)[1]

    assert [problem.split(": ")[1] for problem in problems] == ["a.status", "a.class", "c.status"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gorq.yaml", 'did you mean "groq.yaml"?'),
        ("groq.yml", 'did you mean "groq.yaml"?'),
        ("zzzzzz.yaml", "there are: default.yaml"),
    ],
)
def test_unknown_table_is_a_mistake(tmp_path: Path, name: str, hint: str) -> None:
    """A file that nobody reads would be worse."""
    (tmp_path / name).write_text("r: {status: 503, class: auth}")
    problems = read(tmp_path)[1]

    assert len(problems) == 1
    assert problems[0].startswith(f"{name}: unknown error table; {hint}")


def test_fields_are_those_of_the_entry() -> None:
    """`class` is a word of Python's, so it has another name there."""
    assert len(FIELDS) == len(RuleEntry.model_fields)
    assert "class" in FIELDS
