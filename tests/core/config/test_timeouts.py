"""timeouts.yaml: which clocks hold where."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import request_fields
from gateway.core.config import policies as timing
from gateway.core.config.policies import ENDPOINTS, Timeouts, TimeoutsSet, read_timeouts
from gateway.core.config.source import Document, Problem, read_document
from gateway.core.types import LANES, Clocks
from gateway.dialects.endpoints import COUNT_GENERATED, GENERATE
from gateway.dialects.endpoints import ENDPOINTS as ENDPOINTS_SERVED
from gateway.products.realtime.http import REALTIME
from tests.rows import rows
from tests.support.configs import ROOT

CHAT = Clocks(5, 60, 600, 300, 3600, 0.01, 300)


def read(folder: Path, text: str) -> tuple[dict[str, Timeouts], list[str]]:
    """The sets of this text, and what is wrong with it."""
    file = folder / "timeouts.yaml"
    file.write_text(text)
    problems: list[Problem] = []
    document = read_document(file, problems)
    return read_timeouts(document), [str(problem).replace(f"{folder}/", "") for problem in problems]


def clocks_of(timeouts: Timeouts, endpoint: str, lane: str) -> Clocks:
    """As the hot path looks them up."""
    return timeouts.by.get((endpoint, lane), timeouts.default)  # type: ignore[arg-type]  # a lane's name


def test_the_built_in_clocks_fit_language_models() -> None:
    """Minutes to think for chats, less for what cannot take long, more where nobody waits."""
    timeouts = read_timeouts(None)["default"]

    assert timeouts.default == clocks_of(timeouts, "chat", "interactive") == clocks_of(timeouts, "responses", "batch")
    assert timeouts.default == CHAT
    assert clocks_of(timeouts, "chat", "background").first_byte_s == 1800
    assert clocks_of(timeouts, "embeddings", "interactive") == Clocks(5, 60, 60, 60, 120, 0.01, 300)
    assert clocks_of(timeouts, "embeddings", "background").first_byte_s == 60
    assert clocks_of(timeouts, "moderations", "batch").total_s == 60
    assert clocks_of(timeouts, "realtime", "background").first_byte_s == 5


def test_only_what_differs_is_kept() -> None:
    """Most calls find nothing under their endpoint and lane."""
    timeouts = read_timeouts(None)["default"]

    assert ("chat", "interactive") not in timeouts.by
    assert CHAT not in timeouts.by.values()
    assert ("passthrough", "background") in timeouts.by


def test_the_shipped_file_says_what_is_built_in() -> None:
    """Every field is written out, and changes nothing."""
    file = ROOT / "policies" / "timeouts.yaml"
    problems: list[Problem] = []
    shipped = yaml.safe_load(file.read_text())["default"]

    sets = read_timeouts(read_document(file, problems))

    assert not problems
    assert sets == read_timeouts(None)
    assert set(shipped) == set(TimeoutsSet.model_fields)
    assert set(shipped["drip"]) == set(timing.DripEntry.model_fields)
    assert set(shipped["suspect"]) == set(timing.SuspectEntry.model_fields)


def test_the_endpoints_are_those_that_exist() -> None:
    """A new endpoint must be named here too."""
    served = (*ENDPOINTS_SERVED, GENERATE, COUNT_GENERATED, REALTIME, request_fields.OTHER)
    assert sorted(ENDPOINTS) == sorted(endpoint.name for endpoint in served)
    assert list(ENDPOINTS) == list(timing.CLOCK_ENDPOINTS.model_fields)
    assert list(LANES) == list(timing.CLOCK_LANES.model_fields)


def test_an_endpoint_goes_before_its_lane_and_that_before_the_set(tmp_path: Path) -> None:
    """Field by field, of what is written."""
    sets, problems = read(
        tmp_path,
        "default:\n"
        "  idle: 50s\n"
        "  lanes: {batch: {idle: 40s, total: 10m}}\n"
        "  endpoints: {chat: {idle: 30s, drip: {below_events_per_s: 2}}}\n",
    )

    found = sets["default"]

    assert not problems
    assert clocks_of(found, "chat", "batch") == Clocks(5, 60, 600, 30, 600, 2, 300)
    assert clocks_of(found, "responses", "batch") == Clocks(5, 60, 600, 40, 600, 0.01, 300)
    assert clocks_of(found, "chat", "interactive") == Clocks(5, 60, 600, 30, 3600, 2, 300)
    assert found.default == clocks_of(found, "responses", "interactive") == Clocks(5, 60, 600, 50, 3600, 0.01, 300)


def test_what_is_written_goes_before_what_is_built_in(tmp_path: Path) -> None:
    """Whoever writes one limit for all means all, also where a longer or shorter one is built in."""
    sets, _ = read(tmp_path, "short: {first_byte: 20s}\nfree: {lanes: {background: {total: 9h}}}\n")

    assert {clocks_of(sets["short"], endpoint, lane).first_byte_s for endpoint in ENDPOINTS for lane in LANES} == {20}
    assert clocks_of(sets["short"], "embeddings", "batch").total_s == 120
    assert clocks_of(sets["free"], "embeddings", "background").total_s == 9 * 3600
    assert clocks_of(sets["free"], "chat", "background").first_byte_s == 1800


def test_the_guard_against_dripping_can_be_put_off(tmp_path: Path) -> None:
    """Nothing is too slow then."""
    sets, problems = read(tmp_path, "default: {drip: {below_events_per_s: 0}}\n")

    assert not problems
    assert sets["default"].default.least_events_per_s == 0
    assert sets["default"].default.drip_window_s == 300


@rows(
    ("text", "problem"),
    [
        ("default: {lanes: {bakground: {}}}", 'default.lanes.bakground: unknown field; did you mean "background"?'),
        ("default: {endpoints: {chats: {}}}", 'default.endpoints.chats: unknown field; did you mean "chat"?'),
        (
            "default: {endpoints: {chat: {idel: 1s}}}",
            'default.endpoints.chat.idel: unknown field; did you mean "idle"?',
        ),
        ("default: {endpoints: {chat: 5s}}", "default.endpoints.chat: expected a mapping, not text"),
        ("default: {lanes: []}", "default.lanes: expected a mapping, not a list"),
        ("default: {drip: 5}", "default.drip: expected a mapping, not a number"),
        ("default: {drip: {over: 0s}}", 'default.drip.over: "0s" must be longer than nothing'),
        ("default: {drip: {below_events_per_s: -1}}", "default.drip.below_events_per_s: must be at least 0"),
        ("default: {endpoints: {chat: {drip: 1}}}", "default.endpoints.chat.drip: expected a mapping, not a number"),
    ],
)
def test_a_mistake_is_said_once_and_where_it_is(tmp_path: Path, text: str, problem: str) -> None:
    """With its path; the rest of the set still holds."""
    sets, problems = read(tmp_path, text)

    assert problems == [f"timeouts.yaml:1: {problem}"]
    assert sets["default"].default == CHAT


seconds = st.integers(1, 9).map(lambda s: f"{s}s")
clocks = st.dictionaries(st.sampled_from(["connect", "write", "first_byte", "idle", "total"]), seconds)


@settings(deadline=None)
@given(clocks, st.dictionaries(st.sampled_from(LANES), clocks), st.dictionaries(st.sampled_from(ENDPOINTS), clocks))
def test_every_clock_is_the_most_particular_one_written(
    own: dict[str, str], lanes: dict[str, dict[str, str]], endpoints: dict[str, dict[str, str]]
) -> None:
    """Else, the built-in one; for every endpoint, lane and field."""
    built_in = read_timeouts(None)["default"]
    data = {"default": {**own, "lanes": lanes, "endpoints": endpoints}}

    found = read_timeouts(Document("timeouts.yaml", data, {}, []))["default"]

    for endpoint in ENDPOINTS:
        for lane in LANES:
            here = clocks_of(found, endpoint, lane)
            for field in ("connect", "write", "first_byte", "idle", "total"):
                said = (place.get(field) for place in (endpoints.get(endpoint, {}), lanes.get(lane, {}), own))
                written = next((float(text[:-1]) for text in said if text), None)
                wanted = getattr(clocks_of(built_in, endpoint, lane), f"{field}_s") if written is None else written
                assert getattr(here, f"{field}_s") == wanted


def test_first_events_and_suspects(tmp_path: Path) -> None:
    """`auto` or a duration, by endpoint and lane as all clocks; suspects by set, or off."""
    sets, problems = read(
        tmp_path,
        "default: {}\n"
        "a: {first_event: 45s, lanes: {batch: {first_event: auto}}, suspect: {after: 2.5x}}\n"
        "b: {endpoints: {chat: {first_event: 90s}}, suspect: off}\n"
        "c: {suspect: {in_flight: 20}}\n",
    )

    assert not problems
    assert sets["default"].default == CHAT
    assert (sets["a"].default.first_event_s, sets["a"].default.suspect_factor) == (45, 2.5)
    assert clocks_of(sets["a"], "chat", "batch").first_event_s is None
    assert clocks_of(sets["b"], "chat", "batch").first_event_s == 90
    assert {clocks.suspect_in_flight for clocks in (sets["b"].default, *sets["b"].by.values())} == {0}
    assert (sets["c"].default.suspect_in_flight, sets["c"].default.suspect_factor) == (20, 4)


@rows(
    ("text", "problem"),
    [
        ("first_event: soon", "is not a duration"),
        ("first_event: 0s", "must be longer than nothing"),
        ("suspect: never", "is neither a mapping nor `off`"),
        ("suspect: {after: 4}", "is not so many times what is usual"),
        ("suspect: {after: 0.5x}", "is not so many times what is usual"),
        ("suspect: {in_flight: 1}", "suspect.in_flight"),
        ("suspect: {afer: 4x}", 'did you mean "after"'),
        ("lanes: {batch: {suspect: off}}", "unknown field"),
    ],
)
def test_what_is_wrong_with_them(tmp_path: Path, text: str, problem: str) -> None:
    """In words, with the place."""
    _, problems = read(tmp_path, f"default: {{{text}}}\n")

    assert len(problems) == 1
    assert problem in problems[0]
