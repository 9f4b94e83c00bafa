"""Where providers are, by their dialect: the vendor's own place, the version of its API, and a base URL that is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.configs import load_text, problems_of


def config(entry: str) -> str:
    return f"providers: {{p: {{{entry}}}}}\nmodels: {{m: {{targets: [p]}}}}\n"


@pytest.mark.parametrize(
    ("entry", "base_url"),
    [
        ("dialect: anthropic", "https://api.anthropic.com/v1"),
        ("dialect: anthropic, base_url: 'https://proxy.example'", "https://proxy.example/v1"),
        ("dialect: anthropic, base_url: 'https://proxy.example/v1/'", "https://proxy.example/v1"),
        ("dialect: anthropic, base_url: 'https://x.example/anthropic'", "https://x.example/anthropic/v1"),
        ("dialect: anthropic, base_url: 'emulator://one'", "emulator://one"),
        ("dialect: bedrock, region: eu-central-1", "https://bedrock-runtime.eu-central-1.amazonaws.com"),
        ("dialect: bedrock, region: us-gov-west-1", "https://bedrock-runtime.us-gov-west-1.amazonaws.com"),
        ("dialect: bedrock, base_url: 'https://vpce-1.example/'", "https://vpce-1.example"),
        ("dialect: bedrock, region: us-east-1, base_url: 'https://vpce-1.example'", "https://vpce-1.example"),
        ("dialect: openai, base_url: 'https://x.example/v4'", "https://x.example/v4"),
        ("dialect: gemini", "https://generativelanguage.googleapis.com/v1beta"),
        ("dialect: gemini, base_url: 'https://x.example'", "https://x.example/v1beta"),
        ("dialect: gemini, base_url: 'https://x.example/v1beta/'", "https://x.example/v1beta"),
        ("dialect: gemini, base_url: 'https://x.example/v1alpha'", "https://x.example/v1alpha"),
        (
            "dialect: vertex, project: p-1, location: global",
            "https://aiplatform.googleapis.com/v1/projects/p-1/locations/global",
        ),
        (
            "dialect: vertex, project: p-1, location: eu",
            "https://aiplatform.eu.rep.googleapis.com/v1/projects/p-1/locations/eu",
        ),
        (
            "dialect: vertex, project: 'example.com:p', location: europe-west1",
            "https://europe-west1-aiplatform.googleapis.com/v1/projects/example.com:p/locations/europe-west1",
        ),
        (
            "dialect: vertex, project: p, location: us, base_url: 'https://x.example/v1beta1'",
            "https://x.example/v1beta1/projects/p/locations/us",
        ),
        (
            "dialect: vertex, base_url: 'https://x.example/v1/projects/p/locations/us'",
            "https://x.example/v1/projects/p/locations/us",
        ),
        ("dialect: vertex, base_url: 'https://aiplatform.googleapis.com'", "https://aiplatform.googleapis.com/v1"),
        ("dialect: vertex, base_url: 'emulator://one'", "emulator://one"),
    ],
)
def test_a_providers_address_is_as_in_its_vendors_sdk(tmp_path: Path, entry: str, base_url: str) -> None:
    assert load_text(tmp_path, config(entry)).providers["p"].base_url == base_url


@pytest.mark.parametrize(
    ("entry", "problems"),
    [
        (
            "dialect: vertex",
            [
                "project: is missing: name the project at Google that pays, as in `project: my-project`",
                "location: is missing: name the region, as in `location: europe-west1`, or `global`, `us`, `eu`",
            ],
        ),
        (
            "dialect: vertex, location: us, base_url: 'https://x.example'",
            ["project: is missing: name the project at Google that pays, as in `project: my-project`"],
        ),
        (
            "dialect: vertex, project: 'my/p', location: US",
            [
                'project: "my/p" is no name that Google gives, such as my-project',
                'location: "US" is no name that Google gives, such as europe-west1',
            ],
        ),
        (
            "dialect: vertex, project: p, location: 'x.example/'",
            ['location: "x.example/" is no name that Google gives, such as europe-west1'],
        ),
        ("dialect: gemini, project: p", ["project: is for the vertex dialect only"]),
    ],
)
def test_a_project_and_a_location_are_vertexs(tmp_path: Path, entry: str, problems: list[str]) -> None:
    """Named where they are missing, with what is to be written."""
    assert problems_of(tmp_path, config(entry)) == [f"config.yaml:1: providers.p.{problem}" for problem in problems]


def test_where_there_is_no_usual_one_it_has_to_be_written(tmp_path: Path) -> None:
    told = "is missing: write `base_url: https://api.openai.com/v1`, or where your server is"
    assert problems_of(tmp_path, config("dialect: openai")) == [f"config.yaml:1: providers.p.base_url: {told}"]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("dialect: bedrock", "region: is missing: name the region of AWS's whose models are asked, such as us-east-1"),
        ("dialect: bedrock, region: Virginia", 'region: "Virginia" is no region of AWS\'s such as us-east-1'),
        ("dialect: anthropic, region: us-east-1", "region: is for the bedrock dialect only"),
        (
            "dialect: bedrock, base_url: 'https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1'",
            "base_url: is an address of OpenAI's API: use `dialect: openai` for it, or leave its path out",
        ),
    ],
)
def test_what_is_wrong_with_an_address_is_said_with_its_remedy(tmp_path: Path, entry: str, problem: str) -> None:
    assert problems_of(tmp_path, config(entry)) == [f"config.yaml:1: providers.p.{problem}"]


@pytest.mark.parametrize("url", ["https://x.example/anthropic", "https://x.example/anthropic/v1/"])
def test_messages_may_be_at_another_path_of_the_server(tmp_path: Path, url: str) -> None:
    entry = f"dialect: openai, base_url: 'https://X.example/v4', speaks: [chat, messages], messages_url: '{url}'"

    assert load_text(tmp_path, config(entry)).providers["p"].messages_url == "https://x.example/anthropic/v1"


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("dialect: anthropic", "is for the dialect openai only: others have one address for all that they speak"),
        (
            "dialect: openai, base_url: 'https://x.example/v1'",
            "is of no use to a provider that is not said to speak messages: add `speaks: [chat, messages]`",
        ),
        (
            "dialect: openai, base_url: 'https://y.example/v1', speaks: [chat, messages]",
            "is another server's than base_url is: make it a provider of its own, with `dialect: anthropic`",
        ),
        (
            "dialect: openai, base_url: 'https://x.example/v1', speaks: [messages]",
            'is the address of an endpoint: leave "/messages" out',
        ),
    ],
)
def test_messages_are_nowhere_else(tmp_path: Path, entry: str, problem: str) -> None:
    """Each mistake has its remedy."""
    path = "/v1/messages" if "speaks: [messages]" in entry else "/anthropic"

    problems = problems_of(tmp_path, config(f"{entry}, messages_url: 'https://x.example{path}'"))

    assert problems == [f"config.yaml:1: providers.p.messages_url: {problem}"]
