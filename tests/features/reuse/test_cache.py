"""cache.yaml: what a set compiles to, which models have it, what the store gets, and every mistake in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.describe import describe
from gateway.core.snapshot import Model, PolicySnapshot
from gateway.core.types import StoreBounds
from gateway.drivers.store import LEASE_S
from gateway.features.reuse import config
from gateway.features.reuse.config import LOCAL_FILES, SemanticEntry, with_routes
from gateway.features.reuse.rules import CACHING, Caching, ExactRule, SemanticRule
from tests.rows import rows
from tests.support.configs import ROOT, load_text, problems_of, with_policies

KIB, MIB = 1024, 1024 * 1024
EMBEDDING = "  embed: {targets: [openai/text-embedding-3-small], cache: plain}\n"
"""A model that embeds, with a set of its own."""
HELPDESK = "  helpdesk: {targets: [openai/gpt-4o], cache: meaning}\n"
Packages = Callable[..., None]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Packages:
    """All extras are installed; called with names, only these are."""

    def install(*names: str) -> None:
        found = {name: ModuleSpec(name, None) for name in names}
        monkeypatch.setattr(config, "find_spec", found.get)

    install("numpy", "tokenizers")
    return install


def load_caching(folder: Path, text: str) -> Caching:
    """What the set `default` of this cache.yaml compiles to, in the model that has picked nothing; its version aside."""
    compiled = CACHING.of(load_text(folder, with_policies(folder, cache=text)).models["gpt-4o"])
    return replace(compiled, version=Caching().version)


def load_semantic(folder: Path, fields: str, models: str = EMBEDDING + HELPDESK) -> PolicySnapshot:
    """A config whose model `helpdesk` has the set `meaning` with these semantic fields."""
    return load_text(folder, with_policies(folder, cache=semantic(fields)) + models)


def semantic(fields: str) -> str:
    return f"plain: {{}}\nmeaning: {{semantic: {{{fields}}}}}\n"


# --- what it compiles to ---


def test_without_a_word_only_identical_calls_and_repeated_keys_are_answered_from_elsewhere(tmp_path: Path) -> None:
    """An empty file, an empty set and none at all are the same."""
    for text in ("# nothing\n", "default:\n", "default: {idempotency: {}, exact: {}, semantic: }\n"):
        assert load_caching(tmp_path, text) == Caching()


def test_every_field_reaches_the_compiled_set(tmp_path: Path) -> None:
    """Durations in seconds, sizes in bytes."""
    text = """\
default:
  version: 7
  idempotency: {keep: 2h, lease: 5s, max_bytes: 1MiB, max_entry: 10KiB}
  coalesce: always
  exact:
    requests: deterministic
    ttl: 5m
    stale_if_error: 1d
    max_bytes: 2MiB
    max_entry: 20KiB
    pace: 20ms
    ignore: [user, metadata]
"""

    assert load_caching(tmp_path, text) == Caching(
        coalesce="always",
        keep_s=7200,
        lease_s=5,
        max_record_bytes=10 * KIB,
        exact=ExactRule(
            requests="deterministic",
            ttl_s=300,
            stale_if_error_s=86400,
            max_bytes=2 * MIB,
            max_entry_bytes=20 * KIB,
            pace_s=0.02,
            ignore=frozenset({"user", "metadata"}),
        ),
    )


@rows("off", ["off", "'off'", "false", "no", "OFF"])
def test_off_needs_no_quotes(tmp_path: Path, off: str) -> None:
    """Although YAML reads it as false."""
    compiled = load_caching(tmp_path, f"default: {{coalesce: {off}, exact: {{requests: {off}}}}}")

    assert (compiled.coalesce, compiled.exact.requests) == ("off", "off")


def test_semantic_cache_is_on_as_soon_as_its_model_is_named(tmp_path: Path) -> None:
    """The rest is built in, and every field can be said."""
    few = CACHING.of(load_semantic(tmp_path, "embeddings: embed").models["helpdesk"])
    all_of_them = load_semantic(
        tmp_path, "embeddings: embed, threshold: 1, ttl: 1m, max_entries: 9, wait: 0s, dimensions: 256"
    )

    assert (few.name, few.semantic) == ("meaning", SemanticRule("embed"))
    assert CACHING.of(all_of_them.models["helpdesk"]).semantic == SemanticRule("embed", 1.0, 60.0, 9, 0.0, 256)
    assert CACHING.of(all_of_them.models["gpt-4o"]).semantic is None


def test_what_the_shipped_file_shows_of_the_semantic_cache_is_built_in() -> None:
    """Whoever takes the comment signs away changes nothing but what has no default."""
    lines = (ROOT / "policies" / "cache.yaml").read_text().split("# semantic:")[1].splitlines()[1:]
    shown = SemanticEntry.model_validate(yaml.safe_load("\n".join(re.sub("^  #", "", line) for line in lines)))

    assert shown == SemanticEntry(embeddings=shown.embeddings, dimensions=shown.dimensions)


def test_local_embeddings_are_found_beside_the_config(tmp_path: Path) -> None:
    """Not beside the policy file, nor where the process was started."""
    make_local_model(tmp_path / "minilm")

    rule = CACHING.of(load_semantic(tmp_path, "embeddings: 'local:minilm'").models["helpdesk"]).semantic

    assert rule is not None
    assert rule.embeddings == f"local:{tmp_path}/minilm"
    absolute = CACHING.of(load_semantic(tmp_path, f"embeddings: 'local:{tmp_path}/minilm'").models["helpdesk"]).semantic
    assert absolute == rule


def make_local_model(folder: Path) -> None:
    folder.mkdir()
    for name in LOCAL_FILES:
        (folder / name).touch()


# --- versions ---

TWO_PROVIDERS = """\
policies: rules
providers:
  a: {dialect: openai, base_url: "https://a.example/v1", api_key: ka}
  b: {dialect: openai, base_url: "https://b.example/v1", api_key: kb}
models:
  m: {targets: [{provider: a, model: x, rpm: 5}, {provider: b, model: x}], fallbacks: [n], context_fallbacks: [o]}
  n: {targets: [a/n]}
  o: {targets: [b/o]}
"""


def version_of(folder: Path, old: str = "", new: str = "", cache: str = "default: {version: 1}") -> str:
    """The version of the model `m` with this replaced in its config."""
    assert old in TWO_PROVIDERS
    with_policies(folder, cache=cache)
    return CACHING.of(
        load_text(folder, TWO_PROVIDERS.replace(old, new, 1) if old else TWO_PROVIDERS).models["m"]
    ).version


@rows(
    ("old", "new"),
    [
        ("model: x, rpm", "model: y, rpm"),
        ("[{provider: a, model: x, rpm: 5}, {provider: b, model: x}]", "[b/x, a/x]"),
        (", {provider: b, model: x}", ""),
        ("fallbacks: [n], ", ""),
        (", context_fallbacks: [o]", ""),
        ("https://a.example/v1", "https://c.example/v1"),
        ("targets: [a/n]", "targets: [b/n]"),
    ],
)
def test_model_that_goes_elsewhere_is_asked_anew(tmp_path: Path, old: str, new: str) -> None:
    """To another model, provider, address or fallback, or in another order."""
    assert version_of(tmp_path, old, new) != version_of(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rpm: 5", "rpm: 6, weight: 3"),
        ("api_key: ka", "api_keys: [k1, k2]"),
        ("context_fallbacks: [o]", "context_fallbacks: [o], choose: fastest"),
        ("policies: rules", "policies: rules\nserver: {grace: 1s}"),
    ],
)
def test_model_that_goes_to_the_same_places_keeps_its_answers(tmp_path: Path, old: str, new: str) -> None:
    """Whatever its limits, weights and credentials are."""
    assert version_of(tmp_path, old, new) == version_of(tmp_path)


def test_another_version_of_the_set_is_another_of_each_of_its_models(tmp_path: Path) -> None:
    """A number and the same as text are one; a long text stays short."""
    first = version_of(tmp_path)

    assert version_of(tmp_path, cache="default: {version: '1'}") == version_of(tmp_path, cache="default: {}") == first
    assert version_of(tmp_path, cache="default: {version: 2}") != first
    assert re.fullmatch("[0-9a-f]{16}", version_of(tmp_path, cache=f"default: {{version: {'x' * 999}}}"))


PARTS = st.text("a12:", max_size=3)
PLACES = st.lists(st.tuples(PARTS, PARTS, PARTS), max_size=3, unique=True)


@given(PARTS, PLACES, PARTS, PLACES)
def test_versions_are_equal_only_for_equal_parts(
    one: str, places: list[tuple[str, str, str]], other: str, others: list[tuple[str, str, str]]
) -> None:
    """Where one part ends and the next begins counts, too; a place that is met again does not."""
    first = with_routes(Caching(version=one), places)

    assert first == with_routes(Caching(version=one), [*places, *places])
    assert (first == with_routes(Caching(version=other), others)) == ((one, places) == (other, others))


# --- the store ---


def test_store_gets_a_group_for_each_set_that_keeps_answers_for_a_model(tmp_path: Path) -> None:
    """Patterns are models, too; what nobody picks, or keeps nothing, has no group. Records are bounded for all at once."""
    cache = """\
default: {idempotency: {max_bytes: 64MiB}}
plain: {}
exact: {exact: {requests: always, max_bytes: 2MiB}}
spare: {exact: {requests: always}}
meaning: {semantic: {embeddings: embed, max_entries: 70}, exact: {max_bytes: 3MiB}}
wider: {semantic: {embeddings: embed, max_entries: 90}}
widest: {semantic: {embeddings: embed, max_entries: 99}}
"""
    models = (
        f"{EMBEDDING}{HELPDESK}  a: {{targets: [openai], cache: exact}}\n"
        '  "b*": {targets: [openai], cache: wider}\n  b: {targets: [openai], cache: exact}\n'
    )

    store = load_text(tmp_path, with_policies(tmp_path, cache=cache) + models).store

    assert store == StoreBounds({"meaning": 3 * MIB, "exact": 2 * MIB, "wider": 256 * MIB}, 64 * MIB, 90)


def test_models_say_for_how_long_their_calls_hold_a_record(tmp_path: Path) -> None:
    """Also to what claims records without caches, such as steps of runs."""
    models = load_text(tmp_path, with_policies(tmp_path, cache="default: {idempotency: {lease: 5s}}")).models

    assert {LEASE_S.of(model) for model in models.values()} == {5.0}


def test_store_keeps_records_only_where_no_set_keeps_answers(tmp_path: Path) -> None:
    """As a snapshot that was made by hand."""
    snapshot = load_text(tmp_path, with_policies(tmp_path))

    assert snapshot.store == StoreBounds({}, 256 * MIB)
    assert snapshot.state == "memory"


# --- mistakes ---

REQUESTS = "is not one of off, deterministic, always"


@rows(
    ("text", "problem"),
    [
        ("exacts: {}", 'default.exacts: unknown field; did you mean "exact"?'),
        ("version: 1.10", "default.version: expected text, not a number; quote it"),
        ("version: true", "default.version: expected text, not true or false; quote it"),
        ("version: ''", "default.version: must not be empty"),
        ("coalesce: on", f"default.coalesce: true {REQUESTS}"),
        (
            "coalesce: determinstic",
            f'default.coalesce: "determinstic" {REQUESTS}; did you mean "deterministic"?',
        ),
        ("idempotency: off", "default.idempotency: expected a mapping, not true or false"),
        ("idempotency: {keeps: 1h}", 'default.idempotency.keeps: unknown field; did you mean "keep"?'),
        ("idempotency: {lease: 0s}", 'default.idempotency.lease: "0s" must be longer than nothing'),
        ("idempotency: {max_entry: 1GiB}", "default.idempotency: max_entry must not be more than max_bytes"),
        ("idempotency: {max_bytes: 1MiB}", "default.idempotency: max_entry must not be more than max_bytes"),
        (
            "exact: {ttl: 60}",
            "default.exact.ttl: 60 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        ),
        ("exact: {ttl: 0s}", 'default.exact.ttl: "0s" must be longer than nothing'),
        ("exact: {requests: [always]}", f"default.exact.requests: a list {REQUESTS}"),
        ("exact: {max_bytes: 512KiB}", "default.exact: max_entry must not be more than max_bytes"),
        (
            "exact: {stale_if_error: 1h}",
            "default.exact: stale_if_error has nothing to give with requests: off: write deterministic or always",
        ),
        ("exact: {ignore: user}", "default.exact.ignore: expected a list, not text"),
        *(
            (
                f"exact: {{ignore: [user, {name}]}}",
                f'default.exact.ignore[1]: "{name}" is the question itself: it cannot be ignored',
            )
            for name in ("model", "messages", "input", "prompt")
        ),
        (
            "exact: {ignore: [metadata.user]}",
            'default.exact.ignore[0]: "metadata.user" is not the name of a field: only those at the top of a request can be '
            "ignored",
        ),
        ("semantic: true", "default.semantic: expected a mapping, not true or false"),
        ("semantic: {}", "default.semantic.embeddings: is missing"),
        (
            "semantic: {embedings: embed}",
            'default.semantic.embedings: unknown field; did you mean "embeddings"?',
        ),
    ],
)
def test_mistake_in_cache_is_said_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    """With file, line, path and the remedy."""
    assert f"rules/cache.yaml:1: {problem}" in problems_of(
        tmp_path, with_policies(tmp_path, cache=f"default: {{{text}}}")
    )


@rows(
    ("fields", "problem"),
    [
        ("embeddings: embed, threshold: 0", "threshold: must be more than 0"),
        ("embeddings: embed, threshold: 90", "threshold: must be at most 1"),
        ("embeddings: embed, max_entries: 0", "max_entries: must be at least 1"),
        ("embeddings: embed, dimensions: 1.5", "dimensions: expected a whole number, not a number"),
        ("embeddings: embd", 'embeddings: no model "embd"; did you mean "embed"?'),
        ("embeddings: 'e*'", "embeddings: is a pattern: name one model"),
        ("embeddings: 'local:'", "embeddings: names no folder: write local:FOLDER"),
        ("embeddings: 'local:x'", 'embeddings: there is no folder "x", as seen from the config file'),
        ("embeddings: 'local:rules'", 'embeddings: the folder "rules" has no model.safetensors and no tokenizer.json'),
        ("embeddings: '${E}'", "embeddings: no model the value of ${E}"),
        (
            "embeddings: gpt-4o-meaning",
            'embeddings: "gpt-4o-meaning" would have a semantic cache itself: let it pick a set without one '
            "(`cache: NAME`)",
        ),
    ],
)
def test_mistake_in_the_semantic_cache_is_said_once(tmp_path: Path, fields: str, problem: str) -> None:
    """In the policy file, also where it takes the config to see it."""
    models = '  "gpt-4o-*": {targets: [openai], cache: meaning}\n'
    text = with_policies(tmp_path, cache=semantic(fields)) + EMBEDDING + HELPDESK + models

    problems = problems_of(tmp_path, text, {"OPENAI_API_KEY": "", "E": "embd"})

    assert problems == [f"rules/cache.yaml:2: meaning.semantic.{problem}"]


def test_embedding_model_may_be_served_by_a_pattern(tmp_path: Path) -> None:
    """The set of the entry that serves it is what counts: the exact one, else that of the longest pattern."""
    models = HELPDESK + '  "*": {targets: [openai], cache: meaning}\n  "text-*": {targets: [openai], cache: plain}\n'

    rule = CACHING.of(load_semantic(tmp_path, "embeddings: text-embedding-3-small", models).models["helpdesk"]).semantic

    assert rule is not None
    assert rule.embeddings == "text-embedding-3-small"


def test_all_of_a_semantic_sets_needs_are_named_at_once(tmp_path: Path, packages: Packages) -> None:
    """Which packages, and by which extra they come."""
    packages()
    text = with_policies(tmp_path, cache=semantic("embeddings: 'local:x'")) + HELPDESK
    where, missing = "rules/cache.yaml:2: meaning.semantic", "which is not installed (the extra"

    assert problems_of(tmp_path, text) == [
        f"{where}: needs the Python package numpy, {missing} semantic)",
        f"{where}.embeddings: needs the Python package tokenizers, {missing} local-embeddings)",
        f'{where}.embeddings: there is no folder "x", as seen from the config file',
    ]
    packages("numpy")
    assert CACHING.of(load_semantic(tmp_path, "embeddings: embed").models["helpdesk"]).semantic is not None


def test_semantic_set_that_nobody_picks_needs_nothing(tmp_path: Path, packages: Packages) -> None:
    """Neither a package nor a model: the folder may serve several configs."""
    packages()

    assert problems_of(tmp_path, with_policies(tmp_path, cache=semantic("embeddings: gone")) + EMBEDDING) == []


def test_bound_of_all_records_is_said_by_the_default_set_only(tmp_path: Path) -> None:
    """Another may repeat it, but not contradict it, nor have entries that do not fit in."""
    cache = """\
default: {idempotency: {max_bytes: 32MiB}}
same: {idempotency: {max_bytes: 32MiB, keep: 1h}}
other: {idempotency: {max_bytes: 64MiB}}
large: {idempotency: {max_entry: 48MiB}}
"""

    assert problems_of(tmp_path, with_policies(tmp_path, cache=cache)) == [
        "rules/cache.yaml:3: other.idempotency.max_bytes: concerns all calls at once: only the set `default` can say it",
        "rules/cache.yaml:4: large.idempotency: max_entry must not be more than max_bytes",
    ]


def test_set_that_a_model_picks_must_be_there(tmp_path: Path) -> None:
    """With a suggestion."""
    text = with_policies(tmp_path, cache="thrifty: {}") + "  o3: {targets: [openai], cache: thrify}\n"

    assert problems_of(tmp_path, text) == [
        'config.yaml:6: models.o3.cache: no set "thrify"; did you mean "thrifty"?',
    ]


# --- what is shown ---


def test_description_shows_what_is_kept_and_where(tmp_path: Path) -> None:
    """Of each model, and of the store; ready for JSON."""
    cache = "exact: {exact: {requests: always, ignore: [user, metadata]}}\n" + semantic("embeddings: embed")
    models = f"{EMBEDDING}{HELPDESK}  a: {{targets: [openai], cache: exact}}\nstate: sqlite:///x.db\n"
    snapshot = load_text(tmp_path, with_policies(tmp_path, cache=cache) + models)

    shown = describe(snapshot)

    assert json.loads(json.dumps(shown)) == shown
    assert shown["state"] == f"sqlite:///{tmp_path}/x.db"
    assert shown["store"] == {
        "answers": {"meaning": 256 * MIB, "exact": 256 * MIB},
        "records": 256 * MIB,
        "vectors": 50_000,
        "objects": 1_000_000,
    }
    assert shown["models"]["a"]["cache"] == {
        "set": "exact",
        "version": CACHING.of(snapshot.models["a"]).version,
        "idempotency": {"keep_s": 86400, "lease_s": 30, "max_entry_bytes": 16 * MIB},
        "coalesce": "deterministic",
        "exact": {
            "requests": "always",
            "ttl_s": 3600,
            "stale_if_error_s": 0,
            "max_bytes": 256 * MIB,
            "max_entry_bytes": MIB,
            "pace_s": 0,
            "ignore": ["metadata", "user"],
        },
        "semantic": None,
    }
    assert shown["models"]["helpdesk"]["cache"]["semantic"]["embeddings"] == "embed"


def test_model_made_by_hand_has_the_built_in_set() -> None:
    """With nothing that gives an old answer to who asks for none."""
    assert CACHING.of(Model("m", (), ())) == Caching()
