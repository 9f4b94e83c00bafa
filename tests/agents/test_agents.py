"""What `python -m tests.agents` reads of a run, and that each client can be installed and run as it stands."""

from __future__ import annotations

import json
import re

import pytest

from tests.agents.__main__ import head, row
from tests.agents.client import CLIENTS, CLIENTS_FOLDER, TRIALS, Client
from tests.agents.trial import Outcome, outcomes_of, refusals_of

GOOD = dict.fromkeys(TRIALS)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_each_client_has_a_program_and_exact_pins(client: Client) -> None:
    """In a folder of its own."""
    assert client.program.exists()
    assert client.version != "unknown"
    if client.pins.name == "package.json":
        pinned = json.loads(client.pins.read_text())["dependencies"].values()
        assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned)
    elif client.pins.name == "requirements.txt":
        assert all("==" in line for line in client.pins.read_text().splitlines())


def test_each_folder_is_a_client() -> None:
    """None is forgotten in the list."""
    folders = [folder for folder in CLIENTS_FOLDER.iterdir() if folder.is_dir() and folder.name != "__pycache__"]
    assert {folder.name for folder in folders} == set(CLIENTS)


def test_a_program_prints_its_outcomes_last_and_fails_in_each_trial_if_it_does_not() -> None:
    """The reason is its last line then."""
    assert outcomes_of('noise\n{"outcomes": {"tool": null}}\nbye\n') == {"tool": None}
    assert outcomes_of("Traceback\nImportError: no\n") == dict.fromkeys(TRIALS, "ImportError: no")


def test_a_refusal_counts_unless_the_model_refuses_everything() -> None:
    """In the path or in the body, whichever names the model."""
    chat = {"status": 400, "path": "/v1/chat/completions"}
    long = chat | {"body": '{"model":"gpt-5-mini"}'}
    converse = {"status": 400, "path": "/model/anthropic.claude-haiku-4-5-20251001-v1%3A0/converse", "body": "{}"}

    assert refusals_of([long, converse, chat | {"status": 200, "body": "{}"}]) == []
    assert refusals_of([chat | {"body": '{"model":"gpt-5.1"}'}]) == ["400 at /v1/chat/completions"]


def test_a_cell_names_what_failed_with_either_key() -> None:
    """And what the emulator refused, though the client did not see it."""
    client = CLIENTS["openai"]
    outcomes = [
        Outcome("openai", "chat", "acme", GOOD),
        Outcome("openai", "chat", "globex", GOOD | {"tool": "no"}),
        Outcome("openai", "messages", "acme", GOOD, refused=["400 at /v1/messages"]),
    ]

    line = row(client, ["chat", "messages"], outcomes)

    assert line.endswith(" | stream, error; **not**: tool | tool, stream, error; **not**: refused |")
    assert line.count("|") == head(["chat", "messages"]).splitlines()[0].count("|")
