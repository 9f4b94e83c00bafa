"""`gateway cache` and `gateway stats`: what they ask, what they print, and how they say that they cannot."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.operate import LONGEST_NAME, AdminRefused, cache_table, purged, question, size, stats_table, story
from gateway.core.types import StoreBounds
from gateway.features.reuse.http import show_cache, show_savings
from gateway.features.reuse.savings import PROVIDER, Savings
from tests.admin.cacheadmin import KEY, FakeCache, hit, miss, saved, serving
from tests.e2e.harness import ADMIN_KEY, WEB_KEY, chat
from tests.rows import rows

BOUNDS = StoreBounds({"default": 2**28, "big": 2**30}, 2**26, 50_000)


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's admin key is in the environment."""
    monkeypatch.delenv("GATEWAY_ADMIN_KEY", raising=False)


@pytest.fixture
def cache() -> FakeCache:
    """A cache with something in it."""
    return FakeCache(replay=hit())


@pytest.fixture
async def url(tmp_path: Path, cache: FakeCache) -> AsyncIterator[str]:
    """Where a gateway listens that has spared one call of two."""
    async with serving(tmp_path, cache, saved(hit(), miss())) as address:
        yield address


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; the gateway goes on in this loop meanwhile."""
    code = await asyncio.to_thread(main, arguments)
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    return code, output, errors


def admin(url: str) -> tuple[str, ...]:
    """Where, and by whose leave."""
    return ("--url", url, "--admin-key", ADMIN_KEY)


async def test_what_was_saved_is_a_table(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """A layer a line, numbers below each other, all calls at the end."""
    code, output, errors = await run(capsys, "stats", *admin(url))

    assert (code, errors) == (0, "")
    assert output.splitlines() == [
        "layer          calls  hits   rate  tokens saved  money saved",
        "single_flight      2     0   0.0%             0        $0.00",
        "exact              2     1  50.0%         1,200        $0.25",
        "provider           1     -      -             -            -",
        "total              2     1  50.0%         1,200        $0.25",
    ]


@pytest.mark.parametrize(("by", "name"), [("model", "m"), ("key", "web")])
async def test_what_was_saved_is_told_by_model_or_key(
    capsys: pytest.CaptureFixture[str], url: str, by: str, name: str
) -> None:
    """Each with the calls that could have been spared, and those that were."""
    _, output, _ = await run(capsys, "stats", "--by", by, *admin(url))

    assert [line.split() for line in output.splitlines()[1:]] == [
        [name, "2", "1", "50.0%", "1,200", "$0.25"],
        ["total", "2", "1", "50.0%", "1,200", "$0.25"],
    ]


async def test_what_is_kept_is_a_table(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """And one sentence on what came of it."""
    code, output, _ = await run(capsys, "cache", "show", *admin(url))

    heading, answers, sentence = output.splitlines()
    assert (code, heading.split()) == (0, ["entries", "size", "at", "most"])
    assert answers.split()[:4] == ["answers", "3", "2.9", "KiB"]
    assert sentence == "since the start 1 of 2 calls (50.0%) were spared their provider: 1,200 tokens, $0.25"


async def test_answers_are_printed_as_they_came_for_machines(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """With --json, from every command; the key may come from the environment."""
    for arguments in (("stats",), ("cache", "show"), ("cache", "why", "req_1"), ("cache", "purge", "--all")):
        code, output, _ = await run(capsys, *arguments, "--json", *admin(url))
        assert code == 0
        assert isinstance(orjson.loads(output), dict)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("--key", KEY.hex()), (KEY, None, None)),
        (("--model", "gpt-4o"), (None, "gpt-4o", None)),
        (("--model", "gpt-4o", "--tenant", "web"), (None, "gpt-4o", "web")),
        (("--all",), (None, None, None)),
    ],
)
async def test_what_is_named_is_forgotten(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    cache: FakeCache,
    arguments: tuple[str, ...],
    meant: tuple[bytes | None, str | None, str | None],
) -> None:
    """And how much that was is said."""
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN_KEY)

    code, output, _ = await run(capsys, "cache", "purge", *arguments, "--url", url)

    assert (code, output, cache.purged) == (0, "3 answers forgotten\n", [meant])


async def test_a_call_is_explained_by_its_id(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """All that is known of it, a fact a line."""
    code, output, _ = await run(capsys, "cache", "why", "req_1", *admin(url))

    assert code == 0
    assert output.splitlines() == [
        "call    req_1 (chat, m, key web, tenant web)",
        "cache   hit, by exact",
        "asked   single_flight: miss, exact: hit",
        f"key     {KEY.hex()}",
        "source  req_0 at main/gpt-4o, 12.3 s before",
        "saved   1,000 input and 200 output tokens, $0.25",
        "why     temperature is 0",
    ]


async def test_a_request_is_explained_from_a_file(
    capsys: pytest.CaptureFixture[str], url: str, cache: FakeCache, tmp_path: Path
) -> None:
    """A file that is there is no call's id; whose request it is may be said."""
    path = tmp_path / "request"
    path.write_bytes(orjson.dumps(chat()))

    code, output, _ = await run(
        capsys, "cache", "why", str(path), "--tenant", "web", "--endpoint", "responses", *admin(url)
    )

    assert (code, cache.asked) == (0, [("responses", chat(), "web")])
    assert output.startswith("request  responses, tenant web\n")


async def test_a_request_is_explained_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str, cache: FakeCache
) -> None:
    """As `-`."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"model": "m"}'))

    code, _, _ = await run(capsys, "cache", "why", "-", "--tenant", "web", *admin(url))

    assert (code, cache.asked) == (0, [("chat", {"model": "m"}, "web")])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("stats", "--admin-key", WEB_KEY), 2, "does not take this key"),
        (("cache", "show"), 2, "no admin key: set GATEWAY_ADMIN_KEY or give --admin-key"),
        (("cache", "purge", "--admin-key", ADMIN_KEY), 2, "purge what? --key HEX, --model NAME, --tenant NAME, or"),
        (("cache", "purge", "--all", "--model", "m", "--admin-key", ADMIN_KEY), 2, "'all' means everything"),
        (("cache", "purge", "--key", "abc", "--admin-key", ADMIN_KEY), 2, "the 64 hex digits"),
        (("cache", "why", "req_9", "--admin-key", ADMIN_KEY), 2, "only the last 1,000"),
        (("cache", "why", "x" * (LONGEST_NAME + 1), "--admin-key", ADMIN_KEY), 2, "only the last 1,000"),
        (("cache", "why", "gone.json", "--admin-key", ADMIN_KEY), 1, "gone.json: No such file or directory"),
        (("cache", "why", "-", "--admin-key", ADMIN_KEY), 2, "- is no JSON object; give the body of a request, or"),
        (("cache", "why", __file__, "--admin-key", ADMIN_KEY), 2, "is no JSON object"),
        (("stats", "--admin-key", ADMIN_KEY, "--url", "http://127.0.0.1:1"), 1, "no gateway answers at"),
    ],
)
async def test_what_cannot_be_done_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    cache: FakeCache,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    """On standard error: 2 for what was asked, 1 for what is not there; and nothing is done."""
    monkeypatch.setattr("sys.stdin", io.StringIO("[]"))
    where = () if "--url" in arguments else ("--url", url)

    found, output, errors = await run(capsys, *arguments, *where)

    assert (found, output) == (code, "")
    assert errors.startswith("gateway: ")
    assert said in errors
    assert (cache.purged, cache.asked) == ([], [])


@pytest.mark.parametrize("text", ["", "{", '"x"', "[" * 100_000])
def test_what_is_no_request_is_not_asked_about(text: str) -> None:
    """However deep it is."""
    with pytest.raises(AdminRefused, match="is no JSON object"):
        question("-", io.StringIO(text))


def test_text_in_no_encoding_is_no_request(tmp_path: Path) -> None:
    """Such as a picture that was named by mistake."""
    path = tmp_path / "picture"
    path.write_bytes(b"\x89PNG\xff")

    with pytest.raises(AdminRefused, match="is no JSON object"):
        question(str(path), io.StringIO())


def test_every_kind_has_its_bound_beside_it() -> None:
    """A dash for a kind that this version does not know."""
    sizes = {kind: {"entries": 1234, "bytes": 5 * 2**20} for kind in ("answers", "records", "vectors", "\x1b[2Jfuture")}
    text = cache_table(show_cache(sizes, BOUNDS, Savings().totals()))

    assert "\x1b" not in text
    assert [line.split() for line in text.splitlines()[1:4]] == [
        ["answers", "1,234", "5.0", "MiB", "256", "MiB", "(default),", "1.0", "GiB", "(big)"],
        ["records", "1,234", "5.0", "MiB", "64.0", "MiB"],
        ["vectors", "1,234", "5.0", "MiB", "50,000", "per", "partition"],
    ]
    assert text.splitlines()[4].endswith("  -")
    assert text.endswith("\nno call that could be spared its provider has ended since the start")


@rows(
    ("usd", "shown"),
    [
        ([None], "1 not priced"),
        ([0.0], "$0.00"),
        ([0.25, None, None], "$0.25 + 2 not priced"),
        ([1234.5], "$1,234.50"),
        ([0.000123456], "$0.000123"),
    ],
)
def test_an_unknown_price_is_not_shown_as_nothing(usd: list[float | None], shown: str) -> None:
    """What has no price was not free."""
    table = stats_table(show_savings(saved(*(hit(saved_usd=one) for one in usd)).totals()), "layer")

    assert table.splitlines()[-1].endswith(f"  {shown}")


def answer_of(**changes: Any) -> dict[str, Any]:
    """The story of a call of which nothing is known."""
    nothing = dict.fromkeys(("layer", "cache_key", "source", "source_target", "age_s", "similarity", "saved"))
    return {"endpoint": "chat", "tenant": "web", "result": "miss", "tried": [], "why": [], **nothing, **changes}


@rows(
    ("changes", "lines"),
    [
        ({}, ["request  chat, tenant web", "cache    miss", "asked    no layer"]),
        ({"why": ["one", "two"]}, ["why      one", "         two"]),
        ({"similarity": 0.91}, ["similarity  0.91"]),
        ({"source": "req_0"}, ["source   req_0"]),
        (
            {"saved": {"input_tokens": 1, "output_tokens": 2, "usd": None}},
            ["saved    1 input and 2 output tokens, at a price not known"],
        ),
    ],
)
def test_a_story_has_a_line_for_what_is_known(changes: dict[str, Any], lines: list[str]) -> None:
    """And none for what is not."""
    told = story(answer_of(**changes)).splitlines()

    assert told[-len(lines) :] == lines


def test_nothing_that_a_client_named_commands_the_terminal() -> None:
    """Neither a model's name, nor an id, nor a word of a question."""
    answer = answer_of(request="\x1b[2J", model="\x1b[2J", key="web", why=["\x1b[2J"])

    assert "\x1b" not in story(answer)


@rows(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KiB"),
        (150 * 2**10, "150 KiB"),
        (2**30, "1.0 GiB"),
        (5000 * 2**30, "5,000 GiB"),
    ],
)
def test_sizes_are_short(count: int, shown: str) -> None:
    """In the unit that fits."""
    assert size(count) == shown


@pytest.mark.parametrize(
    ("count", "said"), [(0, "nothing matched"), (1, "1 answer forgotten"), (2000, "2,000 answers forgotten")]
)
def test_what_was_forgotten_is_a_sentence(count: int, said: str) -> None:
    """Nothing is worth a word, too: the name may have been misspelt."""
    assert purged({"forgotten": count}) == said


def test_the_provider_has_one_name() -> None:
    """The terminal's end knows it by heart."""
    table = stats_table(show_savings(saved(miss()).totals()), "layer")

    assert f"\n{PROVIDER} " in table
    assert table.splitlines()[-2].split() == [PROVIDER, "1", "-", "-", "-", "-"]
