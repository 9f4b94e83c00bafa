"""Responses that the provider finishes when it has answered: charged as reserved, and corrected by what they tell."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.render import OPENAI
from gateway.core.snapshot import Key, Rates
from gateway.core.types import Endpoint
from gateway.dialects.endpoints import RESPONSES
from gateway.features import background_charges
from gateway.features.background_charges import Deferred, response_in_path
from tests.support.flow import Bench, Script, ScriptedUpstream, streamed, whole

PER_TOKEN = Rates(0.0, 1e-5, 0.0)
ANSWER_TOKENS = 700
CALL_USD = ANSWER_TOKENS * 1e-5
PASSED = Endpoint("passthrough", "", OPENAI, answer="binary", request="any")
LATER = b'{"model":"m","background":true,"input":"hello"}'
USED = {"input_tokens": 10, "output_tokens": ANSWER_TOKENS, "output_tokens_details": {"reasoning_tokens": 1}}
RESERVED_USD = 2000 * 1e-5


def response(status: str, usage: Any = None, id: str = "resp_1") -> bytes:
    return orjson.dumps({"id": id, "object": "response", "status": status, "usage": usage, "output": []})


def asked_for(id: str = "resp_1", **changes: Any) -> dict[str, Any]:
    """What a call is that asks for the response later."""
    return {"endpoint": PASSED, "method": "GET", "path": f"/responses/{id}", "body": b"", **changes}


def team() -> Key:
    return Key("team", "team", b"", budget_usd_per_day=1.0)


def later(**changes: Any) -> dict[str, Any]:
    return {"endpoint": RESPONSES, "path": "/responses", "body": LATER, "max_tokens": 2000, **changes}


async def spent_after(
    *steps: tuple[dict[str, Any], Script | bytes], key: Key | None = None, rates: Rates = PER_TOKEN
) -> list[float]:
    """What the key has spent after each of these calls."""
    key = key or team()
    scripts = [whole(answer) if isinstance(answer, bytes) else answer for _, answer in steps]
    bench = Bench([ScriptedUpstream(*scripts)], rates=rates, keys=[key])
    spent = []
    for changes, _ in steps:
        await bench.serve(key=key, tenant="team", **changes)
        spent.append(bench.admission.budgets._spent("team"))
    assert not bench.admission.budgets._flying
    return spent


@pytest.mark.parametrize("status", ["queued", "in_progress"])
@pytest.mark.parametrize("usage", [None, {"input_tokens": 0, "output_tokens": 0}])
async def test_what_goes_on_in_the_background_is_charged_as_reserved_until_its_usage_is_shown(
    status: str, usage: Any
) -> None:
    """By whichever answer shows it first, and once."""
    spent = await spent_after(
        (later(), response(status, usage)),
        (asked_for(), response("in_progress")),
        (asked_for("resp_2"), response("completed", USED, "resp_2")),
        (asked_for(), response("completed", USED)),
        (asked_for(), response("completed", USED)),
        (asked_for(method="POST", path="/responses/resp_1/cancel"), response("completed", USED)),
    )

    assert spent == pytest.approx([RESERVED_USD] * 3 + [CALL_USD] * 3)


async def test_what_has_used_more_than_was_reserved_is_charged_more() -> None:
    spent = await spent_after(
        (later(), response("queued")), (asked_for(), response("incomplete", {**USED, "output_tokens": 5000}))
    )

    assert spent == pytest.approx([RESERVED_USD, 5000 * 1e-5])


async def test_the_tier_that_the_response_names_later_is_billed() -> None:
    flex = orjson.dumps(orjson.loads(response("completed", USED)) | {"service_tier": "flex"})
    rates = replace(PER_TOKEN, by_tier={"flex": replace(PER_TOKEN, output_usd=PER_TOKEN.output_usd / 2)})

    spent = await spent_after((later(), response("queued")), (asked_for(), flex), rates=rates)

    assert spent == pytest.approx([RESERVED_USD, CALL_USD / 2])


async def test_the_usage_is_also_read_where_the_response_is_asked_for_as_a_stream() -> None:
    event = b'event: response.completed\ndata: {"type":"response.completed","response":%b}\n\n'
    told = event % response("completed", USED)
    spent = await spent_after(
        (later(), response("queued")),
        (asked_for(query=b"stream=true"), streamed(b'data: {"type":"response.created"}\n\n' + told[:40], told[40:])),
    )

    assert spent == pytest.approx([RESERVED_USD, CALL_USD])


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"[]",
        response("completed"),
        response("completed", {"input_tokens": "many"}),
        response("completed", USED, "resp_2"),
        b'{"output":[{"usage":{"input_tokens":1,"output_tokens":1}}]}',
    ],
)
async def test_an_answer_that_does_not_tell_the_usage_of_that_response_changes_nothing(answer: bytes) -> None:
    told = (asked_for(), Script(200, ((b"content-type", b"application/json"),), [answer]))
    spent = await spent_after((later(), response("queued")), told, (asked_for(), response("completed", USED)))

    assert spent == pytest.approx([RESERVED_USD, RESERVED_USD, CALL_USD])


async def test_what_was_charged_yesterday_gives_nothing_back_today() -> None:
    """What has used more is charged on the day on which that is known."""
    bench = Bench([ScriptedUpstream()], rates=PER_TOKEN, keys=[team()])
    for id, tokens in (("resp_1", 100), ("resp_2", 2500)):
        bench.upstreams[0].scripts.append(whole(response("queued", id=id)))
        await bench.serve(key=team(), **later())
        bench.clock.advance(86_400)
        told = response("completed", {**USED, "output_tokens": tokens}, id)
        bench.upstreams[0].scripts.append(whole(told))
        await bench.serve(key=team(), **asked_for(id))

    assert bench.admission.budgets._spent("team") == pytest.approx(500 * 1e-5)


@pytest.mark.parametrize(("body", "is_charged"), [(LATER, True), (b'{"model":"m","input":"background"}', False)])
async def test_a_stream_that_goes_on_without_its_client_is_charged_as_reserved(body: bytes, is_charged: bool) -> None:
    """One of the usual kind ends with its client, and is charged what was written."""
    began = b'data: {"type":"response.output_text.delta","delta":"hi"}\n\n'
    bench = Bench([ScriptedUpstream(streamed(began, asyncio.Event()))], rates=PER_TOKEN, keys=[team()])
    call = bench.call(key=team(), stream=True, **later(body=body))
    reply = await bench.pipeline.handle(call)
    assert reply.chunks is not None
    async for _ in reply.chunks:
        break
    await reply.close()

    spent_usd = bench.admission.budgets._spent("team")
    assert spent_usd == (pytest.approx(RESERVED_USD) if is_charged else pytest.approx(0.0, abs=1e-4))


@pytest.mark.parametrize("told", [True, False])
async def test_a_stream_that_goes_on_without_its_client_costs_what_its_response_tells_later(told: bool) -> None:
    """To whoever asks for it by the id that the stream began with; without one nobody can."""
    created = b'data: {"type":"response.created","response":{"id":"resp_1","status":"queued"}}\n\n' if told else b""
    began = b'data: {"type":"response.output_text.delta","delta":"hi"}\n\n'
    scripts = streamed(created + began, asyncio.Event()), whole(response("completed", USED))
    bench = Bench([ScriptedUpstream(*scripts)], rates=PER_TOKEN, keys=[team()])
    call = bench.call(key=team(), stream=True, tenant="team", **later())
    reply = await bench.pipeline.handle(call)
    assert reply.chunks is not None
    await anext(reply.chunks)
    await reply.close()
    assert bench.admission.budgets._spent("team") == pytest.approx(RESERVED_USD)

    await bench.serve(key=team(), tenant="team", **asked_for())

    assert bench.admission.budgets._spent("team") == pytest.approx(CALL_USD if told else RESERVED_USD)


async def test_of_very_many_the_oldest_stay_as_they_were_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_charges, "MOST", 2)
    made = [(later(), response("queued", id=f"resp_{number}")) for number in range(3)]
    shown = [(asked_for(f"resp_{number}"), response("completed", USED, f"resp_{number}")) for number in range(3)]

    *_, spent_usd = await spent_after(*made, *shown)

    assert spent_usd == pytest.approx(RESERVED_USD + 2 * CALL_USD)


async def test_a_response_in_the_background_stays_charged_with_what_was_reserved() -> None:
    """Until an answer tells what it can have used."""
    key = Key("team", "team", b"", budget_usd_per_day=1000.0)
    begun = b'{"id":"resp_1","object":"response","status":"queued","usage":null}'
    stage = Bench([ScriptedUpstream(whole(begun))], keys=[key])
    call = stage.call(
        endpoint=RESPONSES, path="/responses", key=key, body=b'{"model":"m","background":true}', max_tokens=100
    )
    await stage.pipeline.handle(call)
    spent = stage.admission.budgets._spent
    reserved_usd = spent("team")
    assert reserved_usd > 0

    for output, usd in ((2**31, reserved_usd), (16_000_000, reserved_usd), (50, 10 * 2e-6 + 50 * 8e-6)):
        shown = begun.replace(b"queued", b"completed").replace(
            b"null", b'{"input_tokens":10,"output_tokens":%d}' % output
        )
        retrieval = replace(call.request, method="GET", path="/responses/resp_1")
        stage.product(Deferred).shown(replace(call, request=retrieval), shown)
        assert spent("team") == pytest.approx(usd)


@given(
    id=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/%"), min_size=1, max_size=20),
    verb=st.sampled_from(["", "/cancel", "/", "/Cancel/"]),
    times=st.integers(0, 3),
)
def test_a_path_names_the_response_however_it_is_escaped(id: str, verb: str, times: int) -> None:
    """Up to the number of times that a provider may undo it."""
    path = f"/Responses/{id}{verb}"
    for _ in range(times):
        path = quote(path, safe="/")

    assert response_in_path(path) == id


@pytest.mark.parametrize(
    "path",
    ["", "/", "/responses", "/responses/", "/responses/resp_1/input_items", "/files/file-1", "/v1/responses/resp_1"],
)
def test_other_paths_name_none(path: str) -> None:
    assert response_in_path(path) is None
