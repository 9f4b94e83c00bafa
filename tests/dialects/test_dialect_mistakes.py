"""What is wrong about providers with a language of their own is said once, with its place and what to do."""

from __future__ import annotations

from pathlib import Path

from tests.rows import rows
from tests.support.configs import load_text, problems_of

CLAUDE = "dialect: anthropic, api_key: sk-ant-x12345678"
GEMINI = "dialect: gemini, api_key: AIza-x12345678"
BEDROCK = "dialect: bedrock, region: us-east-1, api_key: x1234567890"
ENDPOINT = "is the address of an endpoint: leave"
HAVE = "; Gemini, Vertex AI, and Titan and Cohere at Bedrock have embeddings, and so have OpenAI's"


def said(folder: Path, provider: str, more: str = "models: {m: {targets: [p/m]}}") -> list[str]:
    return problems_of(folder, f"providers:\n  p: {{{provider}}}\n{more}\n", {})


@rows(
    ("provider", "problem"),
    [
        ("dialect: claude", 'dialect: "claude" is not one of openai, azure, anthropic, gemini, vertex, bedrock; '
         'did you mean "anthropic"?'),
        ("dialect: converse, region: us-east-1", 'dialect: "converse" is not one of openai, azure, anthropic, gemini, vertex, '
         'bedrock; did you mean "bedrock"?'),
        (f"{CLAUDE}, base_url: 'https://api.anthropic.com/v1/messages'", f'base_url: {ENDPOINT} "/messages" out'),
        (f"{GEMINI}, base_url: 'https://generativelanguage.googleapis.com/v1beta/models'",
         f'base_url: {ENDPOINT} "/models" out'),
        (f"{CLAUDE}, base_url: 'https://api.openai.com/v1'",
         "base_url: is an address of openai's: leave it out, or use `dialect: openai`"),
        (f"{GEMINI}, base_url: 'https://generativelanguage.googleapis.com/v1beta/openai'",
         "base_url: is an address of OpenAI's API: use `dialect: openai` for it, or leave its path out"),
        ("dialect: openai, base_url: 'https://generativelanguage.googleapis.com/v1beta'", "base_url: has not OpenAI's API: use "
         "https://generativelanguage.googleapis.com/v1beta/openai, or `dialect: gemini` without a base_url"),
        ("dialect: bedrock, auth: aws, base_url: 'https://bedrock-mantle.us-west-2.api.aws/anthropic'",
         "base_url: does not speak Converse: use `dialect: anthropic` with /anthropic behind the host, or `dialect: openai` "
         "with /v1"),
        ("dialect: vertex, project: p, region: europe-west1, auth: google",
         "region: is for the bedrock dialect only: a region of Google's is a `location`"),
        ("dialect: bedrock, location: us-east-1, auth: aws",
         "location: is for the vertex dialect only: a region of Amazon's is a `region`"),
        ("dialect: bedrock, auth: aws",
         "region: is missing: name the region of AWS's whose models are asked, such as us-east-1"),
        ("dialect: bedrock, region: us-east-1, auth: {aws: env, region: us-west-2}", 'auth.region: is "us-west-2", and the '
         'provider\'s region is "us-east-1", where no signature for another one counts: leave it out'),
        ("dialect: bedrock, auth: aws, region: us-east-1, base_url: 'https://bedrock-runtime.us-west-2.amazonaws.com'",
         'region: is "us-east-1", and the host of base_url is in "us-west-2": leave one of them out'),
        ("dialect: bedrock, region: us-east-1, auth: google", "auth: Bedrock is Amazon's: use `auth: aws`"),
        ("dialect: vertex, project: p, location: global, auth: aws", "auth: Vertex AI is Google's: use `auth: google`"),
        ("dialect: anthropic, auth: aws", "auth: Claude on Amazon's is `dialect: bedrock`, or has "
         "`base_url: https://bedrock-mantle.REGION.api.aws/anthropic`"),
        (f"{CLAUDE}, speaks: [chat]", "speaks: lacks messages, which is the language of the dialect anthropic: add it, or use "
         "`dialect: openai`"),
        (f"{BEDROCK}, speaks: [messages]",
         "speaks: is not for the dialect bedrock, which has a language of its own: leave it out"),
        (f"{CLAUDE}, on_loss: refuse", "on_loss: unknown field here: it is one of a model (models.NAME)"),
    ],
)  # fmt: skip
def test_a_mistake_about_a_provider_is_one_error(tmp_path: Path, provider: str, problem: str) -> None:
    """It names the field and the remedy, and no other error follows from it."""
    assert said(tmp_path, provider) == [f"config.yaml:2: providers.p.{problem}"]


@rows(
    ("provider", "models", "problem"),
    [
        (CLAUDE, "text-embedding-3-small: {targets: [p]}", 'text-embedding-3-small.targets[0]: "text-embedding-3-small" is '
         f"asked for embeddings, and the dialect anthropic has no such endpoint: name a provider that has it{HAVE}"),
        (BEDROCK, "e: {targets: [p/amazon.rufus-multimodal-embeddings-v1:0]}", 'e.targets[0]: "amazon.rufus-multimodal-'
         'embeddings-v1:0" is asked for embeddings, and it is not known how the model is asked for embeddings: a row of '
         f"models.yaml says it by `embeds`: name a provider that has it{HAVE}"),
        (GEMINI, "gpt-realtime: {targets: [p/gemini-live-2.5-flash]}", 'gpt-realtime.targets[0]: "gemini-live-2.5-flash" is '
         "asked for realtime, and the dialect gemini has no such endpoint: name a provider that has it"),
        (BEDROCK, "whisper-1: {targets: [p/amazon.nova-pro-v1:0]}", 'whisper-1.targets[0]: "whisper-1" is asked for '
         "transcriptions, and the dialect bedrock has no such endpoint: name a provider that has it"),
        (CLAUDE, "m: {targets: [p/m], group_embeddings: {}}", "m.group_embeddings: no target of the model has embeddings, or "
         "moderations: the dialect anthropic has no such endpoint"),
        (CLAUDE, 'a: {targets: [{provider: p, model: m, dialect: gemini}]}',
         "a.targets[0].dialect: unknown field here: it is one of a provider (providers.NAME)"),
        (CLAUDE, 'a: {targets: [{provider: p, model: m, body: {set: {a.b: 1}}}]}',
         'a.targets[0].body: "a.b" is no top-level field: those have letters, digits, `_` and `-`'),
        (CLAUDE, '"v/*": {targets: [{provider: p, strip: "v/*"}]}',
         '"v/*".targets[0].strip: "v/*" does not begin the names that "v/*" takes'),
    ],
)  # fmt: skip
def test_what_a_target_can_never_serve_is_an_error(tmp_path: Path, provider: str, models: str, problem: str) -> None:
    """As far as the config says by itself what a model is asked for."""
    assert said(tmp_path, provider, f"models:\n  {models}") == [f"config.yaml:4: models.{problem}"]


def test_policies_that_ask_a_target_for_what_it_lacks_are_errors(tmp_path: Path) -> None:
    """Each at its own place, whatever file that is in; a fallback may serve what the model's own targets do not."""
    folder = tmp_path / "policies"
    (folder / "pipelines").mkdir(parents=True)
    (folder / "cache.yaml").write_text("default: {}\nwords: {semantic: {embeddings: claude}}\n")
    (folder / "pipelines/p.yaml").write_text(
        "steps:\n  one: {call: {endpoint: embeddings, model: claude, input: x}}\n"
        "  two: {call: {endpoint: embeddings, model: both, input: x}}\noutput: steps.one.embedding\n"
    )
    more = "policies: policies\npassthrough: g\nmodels: {claude: {targets: [p/m]}, e: {targets: [g/gemini-embedding-001]}, "
    more += "both: {targets: [p/m], cache: words, fallbacks: [e]}}"

    found = said(tmp_path, f"{CLAUDE}}}\n  g: {{{GEMINI}", more)

    lacks = "the dialect anthropic has no such endpoint"
    assert sorted(found) == [
        "config.yaml:5: passthrough: the dialect gemini has none of OpenAI's other endpoints: name another provider",
        f'policies/cache.yaml:2: words.semantic.embeddings: "claude" makes none: {lacks}{HAVE}',
        f'policies/pipelines/p.yaml:2: steps.one.call.endpoint: no target of the model "claude" serves embeddings: {lacks}',
    ]


def test_names_of_a_pattern_tell_whose_models_they_are(tmp_path: Path) -> None:
    """Claude is asked in its own language at clouds, whether the config names each model or what they have in common."""
    text = (
        "providers: {v: {dialect: vertex, project: p, location: global, api_key: x1234567890}}\n"
        'models: {"claude-*": {targets: [v]}, "g/claude-*": {targets: [{provider: v, strip: g/}]}, "*": {targets: [v]}}'
    )

    models = {model.name: model for _, model in load_text(tmp_path, text, {}).patterns}

    spoken = {name: model.targets[0].gaps["chat"].pair.target for name, model in models.items()}  # type: ignore[attr-defined]  # a Conversion
    assert spoken == {"claude-*": "claude_at_vertex", "g/claude-*": "claude_at_vertex", "*": "vertex"}
