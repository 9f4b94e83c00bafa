"""The commands that start nothing: what they print, and their exit codes. Failures are sentences, never tracebacks."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway import __version__
from gateway.cli.main import main
from tests.e2e.harness import KEYS, NIGHTLY_KEY, PROVIDER_KEY, WEB_KEY, chat, config_of

ROOT = Path(__file__).parents[2]
TWO_MISTAKES = (
    "providers: {main: {dialect: openai, base_url: 'http://x/v1', api_kee: 1}}\nmodels: {'*': {targets: [mian]}}\n"
)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own environment plays a part."""
    for name in ("GATEWAY_CONFIG", "GATEWAY_PORT", "GATEWAY_HOST", "GATEWAY_LOG_FORMAT", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config with keys, a renamed model and a fallback."""
    models = {
        "gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "rpm": 500}], "fallbacks": ["renamed"]},
        "renamed": {"targets": ["main/gpt-4o-mini"]},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config_of("https://api.openai.com/v1", models=models, keys=KEYS)))
    return path


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    """A chat request."""
    path = tmp_path / "request.json"
    path.write_bytes(orjson.dumps(chat()))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    return code, output, errors


def test_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing else."""
    for words in ("version", "--version"):
        assert run(capsys, words) == (0, f"gateway {__version__}\n", "")


@pytest.mark.parametrize(("words", "meant"), [(["exlpain"], "explain"), (["jobs", "canel"], "cancel")])
def test_a_mistyped_command_is_told_what_it_is_like(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    """Exit code 2."""
    code, _, errors = run(capsys, *words)

    assert code == 2
    assert errors.rstrip().endswith(f"did you mean '{meant}'?")


@pytest.mark.parametrize(("words", "program"), [([], "gateway"), (["dlq"], "gateway dlq")])
def test_who_names_no_command_is_told_where_they_are_listed(
    capsys: pytest.CaptureFixture[str], words: list[str], program: str
) -> None:
    """Exit code 2."""
    code, _, errors = run(capsys, *words)

    assert code == 2
    assert errors.rstrip().endswith(f"; '{program} --help' lists them")


def test_a_target_in_the_place_of_an_action_is_taken_for_no_slip_of_the_pen(capsys: pytest.CaptureFixture[str]) -> None:
    """`open` would keep calls from it."""
    code, _, errors = run(capsys, "targets", "openai/gpt-4o")

    assert (code, "did you mean" in errors) == (2, False)


def test_a_code_of_the_gateway_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a config."""
    code, told, errors = run(capsys, "explain", "provider_credential_refused")

    assert (code, errors) == (0, "")
    assert told.startswith(
        "provider_credential_refused: status 502, type server_error\nThe provider refused the gateway's own"
    )


def test_who_has_no_config_is_told_how_to_name_or_write_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A newcomer starts in an empty folder. Exit code 2."""
    monkeypatch.chdir(tmp_path)
    for words in (("serve",), ("check",)):
        assert run(capsys, *words) == (
            2,
            "",
            "gateway: config.yaml: there is no such file; name the config by --config or GATEWAY_CONFIG, or write one: "
            "docs/start.md begins with it\n",
        )


def test_a_mistyped_code_is_told_what_it_is_like(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a config, too: no file of this name is missed."""
    neither = "gateway: {}: neither a file nor an error code of the gateway{}\n"

    assert run(capsys, "explain", "circuit_opn") == (
        1,
        "",
        neither.format("circuit_opn", '; did you mean "circuit_open"?'),
    )
    assert run(capsys, "explain", "mystery") == (1, "", neither.format("mystery", ""))
    assert run(capsys, "explain", "CIRCUIT_OPEN")[2] == neither.format("CIRCUIT_OPEN", '; did you mean "circuit_open"?')
    status = "; of an answer with this status: gateway explain --error 429 BODY"
    assert run(capsys, "explain", "429") == (1, "", neither.format("429", status))


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("rate_limit_requests", "a class of errors of providers\nsee docs/reference/errors.md#error-classes"),
        ("half_open", "why a call went past a target\nsee docs/reference/errors.md#skipped-targets"),
        ("model_not_found", "status 404\n"),
    ],
)
def test_what_attempts_are_called_by_is_explained_as_well(
    capsys: pytest.CaptureFixture[str], word: str, said: str
) -> None:
    """Words of `x-gateway-attempts`; a code of the gateway's goes first."""
    code, told, errors = run(capsys, "explain", word)

    assert (code, errors) == (0, "")
    assert told.startswith(f"{word}: {said}")


def test_a_closed_pipe_ends_a_command_without_a_word() -> None:
    """As `gateway --help | head -1` closes it."""
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "gateway", "version"]
    with os.fdopen(writes, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)

    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("serve",),
        ("check",),
        ("explain",),
        ("targets",),
        ("stats",),
        ("cache",),
        ("cache", "show"),
        ("cache", "purge"),
        ("cache", "why"),
        ("emulate",),
        ("version",),
    ],
)
def test_help_is_there_for_every_command(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    """On standard output, exit code 0, every command named."""
    code, output, errors = run(capsys, *command, "--help")

    assert (code, errors) == (0, "")
    assert output.startswith("usage: gateway")
    if not command:
        named = ("serve", "check", "explain", "targets", "stats", "cache", "demo", "emulate", "version")
        assert all(f"\n    {name} " in output for name in named)


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("frobnicate",),
        ("serve", "--port", "x"),
        ("serve", "--port", "99999"),
        ("emulate", "--port=-1"),
        ("serve", "--nope"),
        ("explain",),
        ("cache",),
        ("cache", "why"),
        ("stats", "--by", "tenant"),
    ],
)
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...]) -> None:
    """With the usage on standard error."""
    code, output, errors = run(capsys, *wrong)

    assert (code, output) == (2, "")
    assert "usage: gateway" in errors


def test_check_accepts_a_good_config(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """In one line."""
    code, output, errors = run(capsys, "check", "-c", config)

    assert (code, output) == (0, "")
    assert "ok (1 providers, 2 models, 2 keys)" in errors


def test_check_accepts_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    """The tour works as it is."""
    assert run(capsys, "check", "-c", ROOT / "config.example.yaml")[0] == 0


def test_check_shows_what_is_compiled_without_secrets(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """As JSON on standard output, for machines."""
    code, output, _ = run(capsys, "check", "-c", config, "--show")

    shown: dict[str, Any] = orjson.loads(output)
    assert code == 0
    assert shown["models"]["gpt-4o"]["plan"] == ["main/gpt-4o", "main/gpt-4o-mini"]
    assert all(secret not in output for secret in (PROVIDER_KEY, WEB_KEY, NIGHTLY_KEY))


@pytest.mark.parametrize("command", ["check", "serve"])
def test_every_problem_of_a_bad_config_is_told_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    """Each on its line, with file and place and a suggestion; exit code 2; nothing is started."""
    path = tmp_path / "bad.yaml"
    path.write_text(TWO_MISTAKES)

    code, output, errors = run(capsys, command, "-c", path)

    assert (code, output) == (2, "")
    lines = errors.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"gateway: {path}:") for line in lines)
    assert "api_kee" in lines[0]
    assert "api_key" in lines[0]
    assert "main" in lines[1]


@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_missing_config_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    """Exit code 2."""
    code, _, errors = run(capsys, command, "-c", tmp_path / "nowhere.yaml")

    assert code == 2
    assert "nowhere.yaml" in errors


def test_the_config_may_be_named_by_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    """As containers do."""
    monkeypatch.setenv("GATEWAY_CONFIG", str(config))

    assert run(capsys, "check")[0] == 0


@pytest.mark.parametrize(
    ("name", "value"), [("GATEWAY_PORT", "many"), ("GATEWAY_PORT", "99999"), ("GATEWAY_LOG_FORMAT", "xml")]
)
def test_a_bad_variable_of_the_process_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path, name: str, value: str
) -> None:
    """Exit code 2."""
    monkeypatch.setenv(name, value)

    code, _, errors = run(capsys, "serve", "-c", config)

    assert code == 2
    assert errors.startswith(f"gateway: {name}: ")


def test_a_host_without_an_address_is_one_sentence(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    """Exit code 1, naming what was asked for."""
    code, _, errors = run(capsys, "serve", "-c", config, "--host", "no.such.host.invalid")

    assert code == 1
    assert errors.startswith("gateway: cannot listen on no.such.host.invalid:8080: ")
    assert len(errors.splitlines()) == 1


def test_without_keys_only_this_machine_may_call(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`--host` is held to the same rule as the file."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config_of("https://api.openai.com/v1")))

    code, _, errors = run(capsys, "serve", "-c", path, "--host", "0.0.0.0")

    assert code == 2
    assert "without keys" in errors


def test_explain_tells_the_plan_of_a_request(
    capsys: pytest.CaptureFixture[str], config: Path, request_file: Path
) -> None:
    """Key, model, targets in order with limits and prices, clocks; no secret."""
    code, output, errors = run(capsys, "explain", "-c", config, request_file, "--key", "web")

    assert (code, errors) == (0, "")
    assert re.search(r"^key +web \(tenant web, lane interactive\)", output, re.MULTILINE)
    assert "\naround    a call: objects -> reuse\n          workflows: with baggage, " in output
    assert re.search(r"1\. main/gpt-4o +\[500 requests/min\]", output)
    assert re.search(r"2\. main/gpt-4o-mini +\(fallback\)", output)
    assert "million tokens" in output
    assert all(secret not in output for secret in (PROVIDER_KEY, WEB_KEY))


@pytest.mark.parametrize(
    ("temperature", "told"),
    [(0, "shared with equal calls, not given again"), (1, "not shared, not given again")],
)
def test_explain_tells_who_shares_the_answer(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, temperature: int, told: str
) -> None:
    """By the set of cache.yaml that the model picks, and by what the request asks."""
    path = tmp_path / "request.json"
    path.write_bytes(orjson.dumps({**chat(), "temperature": temperature}))

    _, output, _ = run(capsys, "explain", "-c", config, path, "--key", "web")

    assert f"cache     set default, an Idempotency-Key is kept for 86400 s, {told}" in output


def test_explain_tells_which_calls_go_together(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of a model that has that, at an endpoint that has inputs."""
    path, request = tmp_path / "grouped.yaml", tmp_path / "embed.json"
    models = {"e-1": {"targets": ["main/e-1"], "group_embeddings": {"window": "4ms", "most": 9}}}
    path.write_text(yaml.safe_dump(config_of("https://api.openai.com/v1", models=models)))
    request.write_bytes(orjson.dumps({"model": "e-1", "input": "a"}))

    code, output, _ = run(capsys, "explain", "-c", path, request, "--path", "/v1/embeddings")

    assert code == 0
    assert "grouped   with calls that differ in their inputs only: up to 9 inputs, or 4 ms\n" in output


def test_explain_tells_how_a_request_would_fare_as_a_job(
    capsys: pytest.CaptureFixture[str], request_file: Path, tmp_path: Path
) -> None:
    """Its segment by what it costs, where it is kept, and what becomes of it instead of a refusal."""
    folder = tmp_path / "rules"
    folder.mkdir()
    rules = {"attempts": 7, "degrade_to_job": {"lanes": ["interactive"]}, "batches": {"window": 33}}
    (folder / "jobs.yaml").write_text(yaml.safe_dump({"default": rules}))
    path = tmp_path / "jobs-config.yaml"

    def told(**sections: Any) -> str:
        path.write_text(yaml.safe_dump(config_of("https://api.openai.com/v1", policies=str(folder), **sections)))
        code, output, errors = run(capsys, "explain", "-c", path, request_file)
        assert (code, errors) == (0, "")
        return output

    output = told(jobs={"store": "sqlite:///j.db"}, keys=[{"name": "web", "key": WEB_KEY, "accepts_202": True}])
    assert re.search(
        r"^job +segment fast \(400 pieces at a time; about \$0\.\d+ an attempt\), lane inter", output, re.M
    )
    assert "tried             7x within 86400 s" in output
    assert "up to 33 lines at a time; 20 in a row that fail for auth, " in output
    assert "if refused        a call becomes a job (202) instead of queue_full\n" in output
    assert f"kept              in {tmp_path}/j.db, files in {tmp_path}/j.db.files; run here" in output
    strict = told(jobs={"store": "sqlite:///j.db"}, keys=[{"name": "web", "key": WEB_KEY}])
    assert "if its key had accepts_202; this one is refused" in strict
    assert "; run by nobody" in told(jobs={"work": False})
    assert "job       none: this gateway takes no jobs" in told(jobs="off")


def test_explain_reads_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    """For pipes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(orjson.dumps(chat("renamed")))))

    code, output, _ = run(capsys, "explain", "-c", config, "-", "--key", "web")

    assert code == 0
    assert "becomes 'gpt-4o-mini'" in output


@pytest.mark.parametrize(
    ("body", "arguments", "told"),
    [
        (b"{", ("--key", "web"), "answered with 400 invalid_json"),
        (orjson.dumps(chat("nope")), ("--key", "web"), "answered with 404 model_not_found"),
        (orjson.dumps(chat("renamed")), ("--key", "nightly"), "answered with 403 model_not_allowed"),
        (orjson.dumps(chat()), (), "--key: web, nightly"),
        (orjson.dumps(chat()), ("--key", "web", "--path", "/v1/nope"), "/v1/chat/completions"),
    ],
)
def test_explain_tells_how_a_request_would_be_refused(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, body: bytes, arguments: tuple[str, ...], told: str
) -> None:
    """In the words of the answer; exit code 1."""
    path = tmp_path / "request.json"
    path.write_bytes(body)

    code, output, errors = run(capsys, "explain", "-c", config, path, *arguments)

    assert (code, output) == (1, "")
    assert told in errors


def test_a_request_file_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    """One sentence, exit code 1."""
    missing = tmp_path / "missing.json"

    code, _, errors = run(capsys, "explain", "-c", config, missing, "--key", "web")

    assert (code, errors) == (1, f"gateway: {missing}: No such file or directory\n")


def test_a_port_of_the_emulator_that_is_taken_is_told_with_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """As of a gateway; exit code 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = run(capsys, "emulate", "--port", str(port))

    assert code == 1
    assert errors.startswith(f"gateway: cannot listen on 127.0.0.1:{port}: address already in use")
    assert errors.endswith("; choose another port: --port\n")


def test_bad_settings_of_the_emulator_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its name; exit code 2."""
    code, _, errors = run(capsys, "emulate", "--ttft", "soon", "--rpm", "0", "--fault", "e501=1")

    assert code == 2
    assert len(errors.splitlines()) == 3
