"""The section `jobs` and jobs.yaml: what they compile to, what a start says of them, and every mistake in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gateway.admin.describe import describe
from gateway.core.balancing import Backoff, CostRule
from gateway.core.types import SharedState
from gateway.drivers.config import SCHEMES
from gateway.drivers.durability import IN_REDIS, JOB_SETTINGS, KEEP_RUNS_S, JobSettings
from gateway.products.jobs.config import FILE
from gateway.products.jobs.rules import (
    JOB_RULES,
    JOBS,
    BatchRules,
    DeadLetterRules,
    DegradeRules,
    JobRules,
    Jobs,
    NativeRules,
    SegmentRules,
)
from tests.rows import rows
from tests.support.configs import GOOD, ROOT, load_text, problems_of, with_policies

MIB = 1024 * 1024
PASSED_ON = "files and batches go to the provider of `passthrough`, at its price; `jobs: {}` makes them the gateway's"
FORM = (
    "must be state, off, sqlite:///FILE (an absolute path has four slashes: sqlite:////var/lib/jobs.db), "
    f"or begin with {', '.join(SCHEMES)}"
)
IN_MEMORY = (
    "jobs: the bytes of files, and the answers of batches, are in the memory of the Redis, 512 MiB of them at most; "
    "name a folder that all gateways share: `jobs: {files: file:///FOLDER}`"
)


def load_jobs(folder: Path, text: str = "") -> Jobs:
    """What a good config with these lines says of jobs."""
    return JOBS.of(load_text(folder, f"{text}\n{GOOD}"))


def load_rules(folder: Path, text: str) -> JobRules:
    """What the set `default` of this jobs.yaml compiles to."""
    return JOBS.of(load_text(folder, with_policies(folder, jobs=text))).default


# --- the section ---


@pytest.mark.parametrize("text", ["", "jobs:", "jobs: {}"])
def test_jobs_are_on_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """In a file of their own in the working directory, where the state is in memory; it is not made by looking."""
    monkeypatch.chdir(tmp_path)

    jobs = load_jobs(tmp_path, text)

    assert jobs.is_on
    assert jobs.settings == JobSettings(store=f"{tmp_path}/{FILE}", files=f"{tmp_path}/{FILE}.files")
    assert [one.name for one in tmp_path.iterdir()] == ["config.yaml"]


def test_what_others_read_of_jobs_is_what_jobs_have(tmp_path: Path) -> None:
    """Where jobs are kept, and for how long steps are: it is read without the rules of jobs."""
    text = f"jobs: {{store: sqlite:///kept.db, work: false}}\n{with_policies(tmp_path, jobs='default: {keep: {runs: 3d}}')}"

    snapshot = load_text(tmp_path, text)

    assert JOB_SETTINGS.of(snapshot) == JOBS.of(snapshot).settings
    assert JOB_SETTINGS.of(snapshot).store == f"{tmp_path}/kept.db"
    assert KEEP_RUNS_S.of(snapshot) == JOBS.of(snapshot).default.keep_runs_s == 3 * 86_400


def test_jobs_are_beside_the_state_file(tmp_path: Path) -> None:
    """In another: the two are backed up, and sized, apart."""
    settings = load_jobs(tmp_path, "state: sqlite:///gateway.db").settings

    assert (settings.store, settings.files) == (f"{tmp_path}/gateway.db.jobs", f"{tmp_path}/gateway.db.jobs.files")


def test_every_field_of_the_section_is_compiled(tmp_path: Path) -> None:
    """Paths from the folder of the config, sizes in bytes."""
    settings = load_jobs(
        tmp_path,
        'jobs: {store: "sqlite:///j.db", files: blobs, work: false, max_file: 1MiB, max_bytes: 5MiB, '
        "max_bytes_per_tenant: 2MiB, min_free: 3MiB, max_open: 9, max_open_per_tenant: 4}",
    ).settings

    assert settings == JobSettings(
        store=f"{tmp_path}/j.db",
        files=f"{tmp_path}/blobs",
        takes_files=True,
        works=False,
        max_file_bytes=MIB,
        max_bytes=5 * MIB,
        max_bytes_per_tenant=2 * MIB,
        min_free_bytes=3 * MIB,
        max_open_jobs=9,
        max_open_jobs_per_tenant=4,
    )


@rows(
    "text",
    [
        "jobs: off",
        "jobs: 'off'",
        "jobs: no",
        "jobs: {store: off}",
        "jobs: {store: 'off'}",
        "state: redis://h:1/0\njobs: off",
    ],
)
def test_jobs_can_be_off(tmp_path: Path, text: str) -> None:
    """Although YAML reads the word as false."""
    assert not load_jobs(tmp_path, text).is_on


def test_jobs_are_in_the_redis_that_has_the_state(tmp_path: Path) -> None:
    """As all gateways' together, unless a file is named, which is one gateway's; their files are there, too."""
    shared = SharedState("redis://h:1/0", namespace="mine")
    snapshot = load_text(tmp_path, f"state: {{redis: 'redis://h:1/0', namespace: mine}}\n{GOOD}")

    assert JOBS.of(snapshot).settings == JobSettings(redis=shared, files=IN_REDIS)
    assert IN_MEMORY in snapshot.notices
    settings = load_jobs(tmp_path, 'state: redis://h:1/0\njobs: {store: "sqlite:///j.db"}').settings
    assert (settings.store, settings.redis, settings.files) == (f"{tmp_path}/j.db", None, f"{tmp_path}/j.db.files")


@pytest.mark.parametrize(
    ("state", "work", "is_told"),
    [("memory", "false", True), ("memory", "true", False), ("redis://h:1/0", "false", False)],
)
def test_jobs_that_nobody_runs_are_told_of(tmp_path: Path, state: str, work: str, is_told: bool) -> None:
    """A file is one process's alone, so no other can run what this one takes."""
    snapshot = load_text(tmp_path, f"state: {state}\njobs: {{work: {work}}}\n{GOOD}")

    assert any("nobody runs them" in one for one in snapshot.notices) == is_told


@pytest.mark.parametrize(
    ("store", "shared"),
    [
        ("rediss://h:1/3", SharedState("rediss://h:1/3")),
        ("'redis+sentinel://a,b/main'", SharedState("redis+sentinel://a,b/main")),
        ("'redis+cluster://a,b'", SharedState("redis+cluster://a,b")),
        ("{redis: 'redis://h', password: p, namespace: jobs}", SharedState("redis://:p@h", namespace="jobs")),
    ],
)
def test_jobs_can_have_a_redis_of_their_own(tmp_path: Path, store: str, shared: SharedState) -> None:
    """In all the forms of `state`; its login is shown nowhere."""
    snapshot = load_text(tmp_path, f"jobs: {{store: {store}, accept: replicated, files: 'file:///srv/files'}}\n{GOOD}")

    assert JOBS.of(snapshot).settings == JobSettings(redis=shared, accept="replicated", files="/srv/files")
    assert IN_MEMORY not in snapshot.notices
    assert ":p@" not in json.dumps(describe(snapshot))
    assert [one for one in snapshot.notices if one.startswith("jobs.store: ")]


@rows(
    ("section", "said"),
    [
        ("{store: 'redis://h:x/0'}", "jobs.store: has a host that is not HOST or HOST:PORT"),
        ("{store: {redis: 'redis://u:canary@h', password: canary}}", "jobs.store.password: and one in the URL exclude"),
        ("{store: {namespace: x}}", "jobs.store.redis: is missing"),
        ("{store: 5}", "jobs.store: expected text or a mapping, not a number"),
        ("{accept: sometimes}", '"sometimes" is not one of fsync, replicated, fast'),
        ("{accept: fast}", "jobs.accept: is for jobs in a Redis: a file is written to its disk before each answer"),
        ("{files: redis}", "jobs.files: redis is for jobs that are kept in one: name a folder"),
        ("{files: 's3://bucket/x'}", "jobs.files: must be a folder, file:///FOLDER (from the root), or redis"),
        ("{files: 'file://srv/x'}", "jobs.files: must be a folder, file:///FOLDER (from the root), or redis"),
    ],
)
def test_a_mistake_about_a_redis_is_said_once(tmp_path: Path, section: str, said: str) -> None:
    """And repeats nothing of a URL."""
    (problem,) = problems_of(tmp_path, f"jobs: {section}\n{GOOD}")

    assert said in problem
    assert "canary" not in problem


@rows(
    ("text", "takes_files", "notices"),
    [
        ("", True, ()),
        ("passthrough: openai", False, (PASSED_ON,)),
        ("passthrough: openai\njobs: {}", True, ()),
        ("passthrough: openai\njobs: off", False, ()),
        ("jobs: off", False, ()),
    ],
)
def test_files_and_batches_go_on_where_they_went_before(
    tmp_path: Path, text: str, takes_files: bool, notices: tuple[str, ...]
) -> None:
    """A `passthrough` has them until somebody asks for jobs; that is said at start."""
    snapshot = load_text(tmp_path, f"{text}\n{GOOD}")

    assert JOBS.of(snapshot).settings.takes_files is takes_files
    assert tuple(one for one in snapshot.notices if "batches" in one) == notices


@rows(
    ("section", "said"),
    [
        ("[]", "jobs: expected a mapping, not a list"),
        ("true", "jobs: expected a mapping, not true or false"),
        ("{stor: x}", 'jobs.stor: unknown field; did you mean "store"?'),
        ("{store: memory}", f"jobs.store: {FORM}"),
        ('{store: "http://h:1/0"}', f"jobs.store: {FORM}"),
        ('{store: "sqlite:///"}', f"jobs.store: {FORM}"),
        ('{store: "sqlite:///state.db"}', "jobs.store: is the file of `state`: name another one, or leave it out"),
        ('{store: "sqlite:///folder"}', 'jobs.store: "folder" is a folder: name a file in it'),
        ("{files: config.yaml}", "jobs.files: is a file: name a folder"),
        ('{store: "sqlite:///j.db", files: j.db}', "jobs.files: is a file: name a folder"),
        ("{work: maybe}", "jobs.work: expected true or false, not text"),
        ("{max_file: 5}", "jobs.max_file: 5 has no unit: write for example 500kB, 20MB or 512MiB"),
        ("{max_open: 0}", "jobs.max_open: must be at least 1"),
    ],
)
def test_a_mistake_in_the_section_is_said_once(tmp_path: Path, section: str, said: str) -> None:
    """With its line and what to do."""
    (tmp_path / "folder").mkdir()

    assert problems_of(tmp_path, f"state: sqlite:///state.db\njobs: {section}\n{GOOD}") == [f"config.yaml:2: {said}"]


# --- jobs.yaml ---


@pytest.mark.parametrize(
    "text", ["# nothing\n", "default:\n", "default: {backoff: {}, keep: , batches: {brake: {}}}\n"]
)
def test_without_a_word_the_built_in_rules_hold(tmp_path: Path, text: str) -> None:
    """An empty file, an empty set and none at all are the same."""
    assert load_rules(tmp_path, text) == load_jobs(tmp_path).default == JobRules()


def test_the_file_beside_the_others_has_the_built_in_rules(tmp_path: Path) -> None:
    """To copy it changes nothing; each of its fields is one that there is."""
    text = (ROOT / "policies/jobs.yaml").read_text()

    assert load_rules(tmp_path, text) == JobRules()
    assert set(yaml.safe_load(text)["default"]) == {
        *("attempts", "deadline", "backoff", "by_cost", "segments", "keep", "dedupe_for", "dead_letters", "batches"),
        *("degrade_to_job", "allow_request_urls", "responses"),
    }


def test_every_field_reaches_the_compiled_set(tmp_path: Path) -> None:
    """Durations in seconds, sizes in bytes."""
    text = """\
default:
  attempts: 7
  deadline: 2h
  backoff: {base: 1s, factor: 3, max: 1m, jitter: full}
  by_cost: [{above_usd: 1, attempts: 1}]
  batches:
    run: flex
    standard_before_end: 2h
    max_lines: 10
    max_bytes: 1MiB
    mixed_models: false
    window: 3
    parallel_chunks: 2
    slice: 5s
    brake: {after: 4, classes: [auth]}
    cancel_grace: 0s
    group_embeddings: 32
  degrade_to_job: {lanes: [batch, background], when: [circuit_open, queue_full]}
  segments:
    small: {below_usd: 0.5, concurrency: 9}
    large: {}
  keep: {jobs: 1d, files: 2d, dead: 3d}
  dead_letters: {max_bytes: 1MiB, samples: 2, lines: never}
  dedupe_for: 1h
"""

    assert load_rules(tmp_path, text) == JobRules(
        attempts=7,
        deadline_s=7200,
        backoff=Backoff(base_s=1, factor=3, max_s=60),
        by_cost=(CostRule(1, above_usd=1),),
        segments=(SegmentRules("small", 0.5, 9), SegmentRules("large")),
        keep_jobs_s=86_400,
        keep_files_s=172_800,
        keep_dead_s=259_200,
        dead_letters=DeadLetterRules(1024**2, 2, "never"),
        dedupe_for_s=3600,
        batches=BatchRules("flex", 7200, 10, MIB, False, 3, 2, 5, 4, frozenset({"auth"}), 0, 32),
        degrade=DegradeRules(frozenset({"batch", "background"}), frozenset({"circuit_open", "queue_full"})),
    )


def test_attempts_of_ones_own_hold_whatever_a_job_costs(tmp_path: Path) -> None:
    """Unless `by_cost` is there, too."""
    assert load_rules(tmp_path, "default: {attempts: 3}").by_cost == ()
    assert load_rules(tmp_path, "default: {attempts: 3, by_cost: [{above_usd: 1, attempts: 1}]}").by_cost
    assert load_rules(tmp_path, "default: {deadline: 1h}").by_cost == JobRules().by_cost


def test_a_model_picks_a_set(tmp_path: Path) -> None:
    """By its name."""
    config = with_policies(tmp_path, jobs="patient: {attempts: 50}")

    picked = load_text(tmp_path, config.replace("gpt-4o]}", "gpt-4o], jobs: patient}"))

    assert JOB_RULES.of(picked.models["gpt-4o"]).attempts == 50
    assert problems_of(tmp_path, config.replace("gpt-4o]}", "gpt-4o], jobs: patent}")) == [
        'config.yaml:5: models.gpt-4o.jobs: no set "patent"; did you mean "patient"?'
    ]


OF_ALL = "concerns all jobs at once: only the set `default` can say it"
LAST = "the last segment takes all other jobs: leave it out there"
TAKES_ALL = "needs below_usd: without it this segment takes all jobs, and those behind it none"
NOT_MORE = "must be more than that of the segment before, which has these jobs"


def test_half_price_is_read_and_who_gets_nothing_is_told(tmp_path: Path) -> None:
    """Such as a provider that there is not."""
    native = "{min_lines: 9, part_lines: 8, take_back_after: 12.5%, price_factor: 0.4, split: {openai: 2, opnai: 1}}"
    text = f"default: &set {{batches: {{run: native, native: {native}}}}}\nother: *set\n"
    snapshot = load_text(tmp_path, with_policies(tmp_path, jobs=text))

    assert JOBS.of(snapshot).default.batches.native == NativeRules(9, 8, 0.125, 0.4, {"openai": 2, "opnai": 1})
    assert [one for one in snapshot.notices if "native" in one] == [
        'no lines of batches go to opnai, which native.split names: it is no provider; did you mean "openai"?'
    ]


def test_whose_batch_api_is_not_called_is_told(tmp_path: Path) -> None:
    """Providers of other dialects, and accounts that are no key."""
    split = "native: {split: {gem: 1, cloud: 1, keyless: 1}}"
    config = with_policies(tmp_path, jobs=f"default: {{batches: {{run: native, {split}}}}}")
    more = """providers:
  gem: {dialect: gemini, api_key: AIzaSy-0123456789}
  cloud: {dialect: openai, base_url: 'https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1', auth: aws}
  keyless: {dialect: openai, base_url: 'https://x'}
"""
    notices = load_text(tmp_path, config.replace("providers:\n", more, 1)).notices

    assert [one.removeprefix("no lines of batches go to ") for one in notices if "native.split" in one] == [
        "gem, which native.split names: the gateway knows no Batch API of dialect gemini",
        "cloud, which native.split names: it has no api_key: its Batch API is not called with `auth`",
        "keyless, which native.split names: it has no api_key",
    ]


def test_half_price_where_no_provider_has_it_is_told(tmp_path: Path) -> None:
    """An error for a model that asks for it itself, and a word for those that only have it from `default`."""
    text = "default: &set {batches: {run: native}}\nhalf: *set\n"
    config = with_policies(tmp_path, jobs=text)
    config = config.replace("providers:\n", "providers:\n  gem: {dialect: gemini, api_key: AIza-0123456789abcdef}\n")
    config = config.replace("models:\n", "models:\n  flash: {targets: [gem/gemini-2.5-flash]}\n")

    (notice,) = [one for one in load_text(tmp_path, config).notices if "run: native" in one]
    assert notice.startswith("batches of flash run here, at the usual price")
    (problem,) = problems_of(tmp_path, config.replace("gemini-2.5-flash]", "gemini-2.5-flash], jobs: half"))
    assert (
        "no provider of the model has a Batch API that is known here (gem: gemini): pick a set with `run: here`"
        in problem
    )


@rows(
    ("text", "said"),
    [
        ("attempts: 0", ".attempts: must be at least 1, for the first attempt is one of them"),
        ("deadline: 5", ".deadline: 5 has no unit: write for example 300ms, 30s, 5m, 6h or 1d"),
        ("backoff: {base: 1h}", ".backoff: max must not be less than base"),
        ("backoff: {jitter: none}", '.backoff.jitter: "none" is not one of full'),
        ("by_cost: {}", ".by_cost: expected a list, not a mapping"),
        (
            "by_cost: [{attempts: 2}]",
            ".by_cost[0]: needs above_usd or below_usd; attempts for every call stand beside by_cost",
        ),
        ("segments: 5", ".segments: expected a mapping, not a number"),
        (
            "segments: {'webhooks:a': {}}",
            '.segments."webhooks:a": names that begin with webhooks: are those of webhooks',
        ),
        ("segments: {a: {below_usd: 1}}", f".segments.a.below_usd: {LAST}"),
        ("segments: {a: {}, b: {}}", f".segments.a: {TAKES_ALL}"),
        ("segments: {a: {below_usd: 2}, b: {below_usd: 1}, c: }", f".segments.b.below_usd: {NOT_MORE}"),
        ("segments: {a: {concurrency: 0}}", ".segments.a.concurrency: must be at least 1"),
        ("keep: {jobs: 0s}", '.keep.jobs: "0s" must be longer than nothing'),
        (
            "batches: {native: {take_back_after: 0.5}}",
            ".batches.native.take_back_after: must be a percentage above 0, such as 50%",
        ),
        ("batches: {native: {split: {a: 0}}}", ".batches.native.split.a: must be at least 1"),
        ("batches: {windows: 1}", '.batches.windows: unknown field; did you mean "window"?'),
        (
            "batches: {brake: {classes: [authh]}}",
            '.batches.brake.classes[0]: unknown class of errors; did you mean "auth"?',
        ),
        ("degrade_to_job: {lanes: [bach]}", '.degrade_to_job.lanes[0]: unknown lane; did you mean "batch"?'),
        ("degrade_to_job: {when: [queuefull]}", '.degrade_to_job.when[0]: unknown refusal; did you mean "queue_full"?'),
    ],
)
def test_a_mistake_in_the_rules_is_said_once(tmp_path: Path, text: str, said: str) -> None:
    """With its line and what to do."""
    assert problems_of(tmp_path, with_policies(tmp_path, jobs=f"default: {{{text}}}")) == [
        f"rules/jobs.yaml:1: default{said}"
    ]


@pytest.mark.parametrize("text", ["segments: {a: }", "keep: {jobs: 1d}", "dedupe_for: 1h", "dead_letters: {}"])
def test_what_concerns_all_jobs_is_for_the_default(tmp_path: Path, text: str) -> None:
    """No model can pick it."""
    assert problems_of(tmp_path, with_policies(tmp_path, jobs=f"other: {{{text}}}")) == [
        f"rules/jobs.yaml:1: other.{text.partition(':')[0]}: {OF_ALL}"
    ]
