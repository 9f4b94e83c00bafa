"""`gateway explain` says who keeps a response: the same as is done with it."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import yaml

from gateway.admin.explain import explain
from tests.support.configs import load_text

SECRET = "sixteen-characters"
CONFIG = {
    "providers": {
        "main": {"dialect": "openai", "base_url": "https://main.example/v1", "api_key": "x"},
        "chat": {"dialect": "openai", "base_url": "https://chat.example/v1", "api_key": "x", "speaks": ["chat"]},
    },
    "models": {
        "one": {"targets": [{"provider": "main"}]},
        "chat": {"targets": [{"provider": "chat"}]},
        "brief": {"targets": [{"provider": "chat"}], "jobs": "brief"},
    },
    "keys": [{"name": "web", "key": f"{SECRET}-1"}, {"name": "zdr", "key": f"{SECRET}-2", "keeps_responses": False}],
    "jobs": {"store": "sqlite:///j.db", "files": "blobs"},
    "policies": "policies",
}
SETS = {"default": {"keep": {"stored_responses": "2h", "background": "1h"}}, "brief": {"attempts": 2}}
"""How long they are kept concerns all, whatever set a model picks."""


@pytest.mark.parametrize(
    ("model", "key", "asked", "told"),
    [
        ("one", "web", {"store": True}, "by the provider, as the request says"),
        ("one", "web", {"background": True}, "here, where it runs in the background, and for 3600 s after its end"),
        ("chat", "web", {}, "by nobody: it does not ask for it"),
        ("chat", "web", {"store": True}, "here, for 7200 s"),
        ("brief", "web", {"store": True}, "here, for 7200 s"),
        ("brief", "web", {"background": True}, "and for 3600 s after its end"),
        ("chat", "zdr", {"store": True}, "by nobody (responses.store, or keeps_responses of the key)"),
        ("chat", "zdr", {"background": True}, "by nobody: refused"),
    ],
)
def test_who_keeps_a_response(tmp_path: Path, model: str, key: str, asked: dict[str, bool], told: str) -> None:
    """The provider, the gateway and for how long, or nobody."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "jobs.yaml").write_text(yaml.safe_dump(SETS))
    policy = load_text(tmp_path, yaml.safe_dump(CONFIG), {})
    body = orjson.dumps({"model": model, "input": "hello", **asked})
    lines = explain(policy, body, path="/v1/responses", key_name=key).splitlines()
    (line,) = [line for line in lines if line.startswith("response  kept ")]
    assert told in line
