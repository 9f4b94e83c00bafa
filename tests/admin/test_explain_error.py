"""`gateway explain --error`: what an error means, and by which rule of which file."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import orjson
import pytest

from gateway.admin.explain import explain_error, read_headers
from gateway.cli.main import main
from gateway.core.errors import InvalidRequest
from tests.rows import rows
from tests.support.error_rows import TOO_LARGE, WALL, openai
from tests.support.tables import table_of

CONFIG = """\
policies: rules
providers:
  fast: {dialect: openai, base_url: "https://api.groq.com/openai/v1", api_key: sk-x}
models:
  m: {targets: [fast/m]}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    try:
        code = main(["explain", *map(str, arguments)])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


def test_everything_a_diagnosis_says_is_shown() -> None:
    """In words, with the file and line of the rule, and what of it was met."""
    body = orjson.dumps(openai(TOO_LARGE * 2, "tokens", "rate_limit_exceeded"))

    lines = explain_error(table_of("groq"), 413, body, [(b"retry-after", b"7")], WALL).splitlines()

    assert lines[:5] == [
        "class       rate_limit_tokens",
        "concerns    this target",
        "come back   in 7 s at the earliest",
        "never fits  yes: it asks for more than the limit ever holds",
        "kind        groq",
    ]
    assert lines[5].startswith("rule        default: tokens a minute, by type  (")
    assert "errors/default.yaml:" in lines[5]
    assert lines[6] == "because     status is 413; type is 'tokens'"
    assert lines[7].startswith("read as     rate_limit_exceeded tokens request too large for gpt-4o on tokens per min")
    assert lines[7].endswith("…")


@rows(
    ("kind", "status", "body", "headers", "because"),
    [
        ("openai", 429, b"You exceeded your current  quota", [], "status is 429; says 'exceeded your current quota'"),
        ("azure", 429, b"", [(b"policy-id", b"X-Token")], "status is 429; header policy-id says '-token'"),
        ("bedrock", 400, b"", [(b"x-amzn-errortype", b"RequestExpired")], "type is 'requestexpired'"),
        ("gemini", 400, b'{"error":{"status":"FAILED_PRECONDITION"}}', [], "body_status is 'failed_precondition'"),
        ("xai", 503, b'{"code":"x","error":"temporarily at  capacity"}', [], "says 'temporarily at capacity'"),
        ("sglang", 200, b'{"choices":[{"finish_reason":"abort"}]}', [], "finish_reason is 'abort'"),
        ("other", 503, b"", [], "status is 503"),
    ],
)
def test_only_what_was_met_is_the_reason(
    kind: str, status: int, body: bytes, headers: list[tuple[bytes, bytes]], because: str
) -> None:
    """Not all that the rule would have taken."""
    line = explain_error(table_of(kind), status, body, headers, WALL).splitlines()[6]

    assert line.startswith("because     ")
    assert line.endswith(because)


def test_an_unknown_error_says_that_nobody_knows_it() -> None:
    """Without a rule, a delay or a word."""
    lines = explain_error(table_of(), 302, b"", [], WALL).splitlines()

    assert lines[0] == "class       unknown"
    assert lines[2] == "come back   the provider does not say"
    assert lines[5:] == ["rule        none: not even the status tells anything", "read as     nothing"]


def test_headers_are_read_as_they_are_written() -> None:
    """Names in lower case; without a colon they are none."""
    assert read_headers(["Retry-After: 20", "x:a:b"]) == [(b"retry-after", b"20"), (b"x", b"a:b")]
    for wrong in ("retry-after 20", ": 20"):
        with pytest.raises(InvalidRequest, match="is not a header"):
            read_headers([wrong])


@pytest.mark.parametrize("form", ["literal", "file", "stdin"])
def test_command_takes_the_body_in_any_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    """As text, in a file or on standard input; without a config the built-in tables are used."""
    text = '{"error":"Model is overloaded","error_type":"overloaded"}'
    (tmp_path / "body.json").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    body = {"literal": text, "file": "body.json", "stdin": "-"}[form]

    code, output, errors = run(capsys, "--error", "429", body, "--kind", "tgi", "--header", "Retry-After: 3")

    assert (code, errors) == (0, "")
    assert output.startswith("class       overloaded\n")
    assert "in 3 s" in output
    assert "rule        tgi: overloaded" in output


def test_command_uses_the_users_rules_and_the_kind_of_a_provider(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Of the config that it is given."""
    config, folder = tmp_path / "config.yaml", tmp_path / "rules" / "errors"
    folder.mkdir(parents=True)
    config.write_text(CONFIG)
    (folder / "groq.yaml").write_text("mine: {status: 418, class: overloaded}\n")

    code, output, _ = run(capsys, "-c", config, "--provider", "fast", "--error", "418", "teapot")

    assert code == 0
    assert f"rule        own groq: mine  ({folder}/groq.yaml:1)" in output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--error", "teapot", "x"), "'teapot' is no HTTP status"),
        (("--error", "99", "x"), "'99' is no HTTP status"),
        (("--error", "503", "x", "--header", "nonsense"), "'nonsense' is not a header"),
        (("--error", "503", "x", "--provider", "slow"), "no target uses a provider 'slow'; there are: fast"),
        (("--error", "503", "x", "--kind", "slow"), "invalid choice: 'slow'"),
        (("--error", "503"), "expected 2 arguments"),
        (("--error", "503", "x", "request.json"), "not allowed with argument"),
    ],
)
def test_wrong_usage_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    """In one sentence, exit code 2."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)

    code, output, errors = run(capsys, "-c", tmp_path / "config.yaml", *arguments)

    assert (code, output) == (2, "")
    assert told in errors


def test_mistakes_in_the_users_tables_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Rather than an answer by half of the rules."""
    folder = tmp_path / "rules" / "errors"
    folder.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(CONFIG)
    (folder / "groq.yaml").write_text("mine: {status: 418, class: teapot}\n")

    code, _, errors = run(capsys, "-c", tmp_path / "config.yaml", "--error", "418", "x")

    assert code == 2
    assert 'groq.yaml:1: mine.class: "teapot" is not one of' in errors
