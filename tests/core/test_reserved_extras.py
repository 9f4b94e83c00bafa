"""What calls at once reserve of a budget for what they bring and ask for beside text: sound, pictures, searches, cache writes,
dearer fallbacks, another try.
"""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.ledger import usage_usd
from gateway.core.openai.bodies import BodyEdits, Large, Needs
from gateway.core.openai.media import NO_EXTRAS, Extras, find_extras
from gateway.core.request_fields import find_bound
from gateway.core.retry_budgets import dearest_usd
from gateway.core.snapshot import Key, Model, Rates
from gateway.core.types import Endpoint, ErrorClass, Phase, UpstreamFailed, Usage, UsageParts
from gateway.dialects.endpoints import MESSAGES
from tests.core.edge.test_media_budgets import wav
from tests.support.flow import CHAT, Script, whole
from tests.support.outage import City, Fate, Provider, fails
from tests.support.virtual import LoopClock, run

OTHERS = Key("others", "others", b"")


def base64(data: bytes) -> str:
    return b64encode(data).decode()


def png(width: int, height: int) -> str:
    """The beginning of a picture."""
    return base64(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + bytes(200))


def jpeg(width: int, height: int) -> str:
    """One with a preview in front of its size."""
    preview = b"\xff\xe1" + struct.pack(">H", 3000) + bytes(2998)
    return base64(b"\xff\xd8" + preview + b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height, width) + bytes(200))


def asks(*parts: dict[str, Any], **fields: Any) -> bytes:
    """A chat, or a message, with these parts."""
    return orjson.dumps({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": parts}], **fields})


def says(usage: dict[str, Any], endpoint: Endpoint = CHAT) -> Fate:
    """An answer with this usage."""
    choice = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}
    message = {"type": "message", "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"}

    async def fate() -> Script:
        await asyncio.sleep(0.5)
        return whole(orjson.dumps((message if endpoint is MESSAGES else choice) | {"usage": usage}))

    return fate


PDF = base64(bytes(300_000))
TEXT = {"type": "text", "text": "What is this? " + "word " * 4000}
MARKED = {**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
SOUND = {"type": "input_audio", "input_audio": {"format": "wav", "data": base64(wav(600))}}
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(2048, 2048)}"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
KINDS: dict[str, tuple[Endpoint, bytes, Rates, dict[str, Any]]] = {
    "cache writes": (
        MESSAGES,
        asks(MARKED),
        Rates(3e-6, 15e-6, 3e-7, cache_write_usd=3.75e-6, cache_write_1h_usd=6e-6),
        {
            "input_tokens": 5,
            "cache_creation_input_tokens": 5000,
            "cache_creation": {"ephemeral_1h_input_tokens": 5000},
            "output_tokens": 1,
        },
    ),
    "sound": (
        CHAT,
        asks({"type": "text", "text": "What is said?"}, SOUND),
        Rates(2.5e-6, 1e-5, 1.25e-6, audio_input_usd=4e-5),
        {"prompt_tokens": 6010, "completion_tokens": 1, "prompt_tokens_details": {"audio_tokens": 6000}},
    ),
    "pictures": (
        MESSAGES,
        asks(*[{"type": "image", "source": {"type": "base64", "data": jpeg(2500, 2500)}}] * 5),
        Rates(3e-6, 15e-6, 3e-7),
        {"input_tokens": 5 * 4784, "output_tokens": 1},
    ),
    "pictures with a price": (
        CHAT,
        asks(PICTURE, PICTURE),
        Rates(1e-6, 1e-6, 1e-6, image_input_usd=1e-5),
        {"prompt_tokens": 2 * 2500 + 5, "completion_tokens": 1, "prompt_tokens_details": {"image_tokens": 5000}},
    ),
    "searches": (
        MESSAGES,
        asks({"type": "text", "text": "What is new?"}, tools=[SEARCH]),
        Rates(3e-6, 15e-6, 3e-7, search_usd=0.01),
        {"input_tokens": 35_000, "output_tokens": 1, "server_tool_use": {"web_search_requests": 5}},
    ),
}
"""By what they bring: calls, prices, and what a provider reports."""


async def spend(city: City, key: Key, **changes: Any) -> float:
    """Twenty calls at once, and those that are told to come back do; returns the money that they have spent."""
    city.bench.meter.accounts.clear()
    waiting = 20
    for _ in range(8):
        told = await asyncio.gather(*[city.call(key=key, **changes) for _ in range(waiting)])
        waiting = sum(one.result == "budget_reserved" for one in told)
        await asyncio.sleep(2.0)
    await city.settle()
    return sum((one.cost_usd or 0.0) + one.retries_usd for one in city.bench.meter.accounts)


@pytest.mark.parametrize("before", [0, 20], ids=["cold", "warm"])
@pytest.mark.parametrize("kind", KINDS)
def test_calls_at_once_spend_the_budget_at_most(kind: str, before: int) -> None:
    """And some of it, whether the model has answered others before or not."""
    endpoint, body, rates, usage = KINDS[kind]

    async def story(clock: LoopClock) -> None:
        city = City([Provider(says(usage, endpoint))], clock, changes={"rates": rates})
        await city.call(key=OTHERS, body=body, endpoint=endpoint, max_tokens=10)
        (first,) = city.bench.meter.accounts
        assert first.cost_usd
        city = City([Provider(says({"input_tokens": 1, **usage}, endpoint))], clock, changes={"rates": rates})
        for _ in range(before):
            await city.call(key=OTHERS, body=asks(TEXT), endpoint=endpoint, max_tokens=10)
        key = Key("team", "team", b"", budget_usd_per_day=6.5 * first.cost_usd)

        spent_usd = await spend(city, key, body=body, endpoint=endpoint, max_tokens=10)

        assert first.cost_usd <= spent_usd <= 6.5 * first.cost_usd

    run(story)


# Where the money goes: to dearer targets, and to attempts that come to nothing.


ANSWER = {"prompt_tokens": 10, "completion_tokens": 100}
CHEAP, DEAR = Rates(0.0, 1e-6, 0.0), Rates(0.0, 1e-5, 0.0)


def with_prices(city: City, *rates: Rates) -> Model:
    """The city's model, whose targets have these prices."""
    model = city.bench.policy.models["m"]
    prices = [dict.fromkeys([one.model or ""], usd) for one, usd in zip(model.plan, rates, strict=True)]
    priced = [replace(one, find_rates=usd.get) for one, usd in zip(model.plan, prices, strict=True)]
    return replace(model, targets=tuple(priced[: len(model.targets)]), plan=tuple(priced))


@pytest.mark.parametrize("fallbacks", [0, 1])
def test_a_budget_holds_where_a_dearer_target_serves(fallbacks: int) -> None:
    """One of the model's own, or of its fallback."""

    async def story(clock: LoopClock) -> None:
        city = City([Provider(fails(500)), Provider(says(ANSWER))], clock, fallbacks=fallbacks)
        key = Key("team", "team", b"", budget_usd_per_day=6.5e-3)

        spent_usd = await spend(city, key, model=with_prices(city, CHEAP, DEAR), max_tokens=100)

        assert 1e-3 <= spent_usd <= 6.5e-3

    run(story)


def test_a_part_of_a_batch_is_not_charged_ahead_at_the_price_of_a_fallback() -> None:
    """It goes to none."""

    async def story(clock: LoopClock) -> float:
        city = City([Provider(says(ANSWER))] * 2, clock, fallbacks=1)
        call = city.bench.call(model=with_prices(city, CHEAP, DEAR), max_tokens=100)
        usd = city.admission.costs.usual_usd(call)
        await city.settle()
        return usd

    assert run(story) == pytest.approx(100 * CHEAP.output_usd)


def test_another_attempt_is_reserved_like_the_first() -> None:
    """With an answer as long as the caller allows, beside what the one that failed has cost."""
    answer = says({"prompt_tokens": 10, "completion_tokens": 2000})

    async def story(clock: LoopClock) -> None:
        tries = 0

        async def fate() -> Script:
            nonlocal tries
            tries += 1
            if tries <= 20:
                await asyncio.sleep(0.1)
                raise UpstreamFailed(ErrorClass.CONNECTION, Phase.SENT, "reset")
            return await answer()

        city = City([Provider(fate)], clock, changes={"rates": DEAR})
        key = Key("team", "team", b"", budget_usd_per_day=0.41)

        spent_usd = await spend(city, key, max_tokens=2000)

        assert 0.02 <= spent_usd <= 0.41

    run(story)


def test_a_call_that_is_left_costs_the_sound_and_the_documents_that_it_brought() -> None:
    """As a provider that goes on to the end bills them: ten minutes are 19,200 tokens, 300 kB are 25,000."""
    rates = Rates(0.0, 0.0, 0.0, audio_input_usd=1e-5)
    document = {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PDF}"}}

    async def story(clock: LoopClock) -> None:
        city = City([Provider(says(ANSWER))], clock, changes={"rates": rates})
        for body, came, usd in ((asks(SOUND), 19_200, 0.192), (asks(SOUND, document), 44_200, 0.192)):
            call = city.start(body=body, max_tokens=10)
            await asyncio.sleep(0.2)
            call.cancel()
            await asyncio.wait([call])
            account = city.bench.meter.accounts[-1]
            assert account.usage is not None
            assert account.usage.input == pytest.approx(came, abs=20)
            assert account.cost_usd == pytest.approx(usd, rel=0.01)
        await city.settle()

    run(story)


# What a request brings and asks for.


def found(**fields: Any) -> Extras:
    """The same whether the body was parsed before or not."""
    body = orjson.dumps(fields)
    extras = find_extras(body, None)
    assert extras == find_extras(body, fields)
    return extras


def part(**fields: Any) -> Extras:
    """What one part of a chat or a message is."""
    return found(messages=[{"role": "user", "content": [fields]}])


def blob(mime: str, data: str) -> Extras:
    return found(contents=[{"parts": [{"inlineData": {"mimeType": mime, "data": data}}]}])


URL = {"url": "https://example.com/1"}
MP3 = base64(bytes(30_000))
EXTRAS = {
    "text": (found(messages=[{"role": "user", "content": "hello"}]), NO_EXTRAS),
    "words": (found(messages=[{"role": "user", "content": '"image" "web_search" "cache_control"'}]), NO_EXTRAS),
    "chat's sound": (part(**SOUND), Extras(audio=19_200, estimated=765)),
    "sound of unknown length": (
        part(type="input_audio", input_audio={"format": "mp3", "data": MP3}),
        Extras(audio=240, estimated=765),
    ),
    "Gemini's sound": (blob("audio/wav", base64(wav(60))), Extras(audio=1920, estimated=765)),
    "Gemini's film": (blob("video/mp4", base64(bytes(300_000))), Extras(video=2950, estimated=765)),
    "Gemini's file": (
        found(contents=[{"parts": [{"fileData": {"mimeType": "video/mp4", "fileUri": "https://x"}}]}]),
        Extras(video=5000, estimated=765),
    ),
    "chat's picture": (part(**PICTURE), Extras(image=5000, estimated=765)),
    "a small one": (
        part(type="image_url", image_url={"url": f"data:image/png;base64,{png(64, 64)}"}),
        Extras(image=425, estimated=765),
    ),
    "of low detail": (
        part(type="image_url", image_url={"url": f"data:image/png;base64,{png(2000, 2000)}", "detail": "low"}),
        Extras(image=630, estimated=85),
    ),
    "behind a URL": (part(type="image_url", image_url=URL), Extras(image=5000, estimated=765)),
    "of full size": (
        found(input=[{"role": "user", "content": [{"type": "input_image", "file_id": "f", "detail": "original"}]}]),
        Extras(image=5000, estimated=765),
    ),
    "Responses' picture": (
        found(
            input=[{"content": [{"type": "input_image", "image_url": f"data:image/jpeg;base64,{jpeg(1024, 1024)}"}]}]
        ),
        Extras(image=2520, estimated=765),
    ),
    "Messages' picture in a tool's result": (
        part(
            type="tool_result",
            content=[
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(1024, 1024)}}
            ],
        ),
        Extras(image=2520, estimated=765),
    ),
    "a document": (
        part(type="document", source={"type": "base64", "media_type": "application/pdf", "data": PDF}),
        Extras(document=25_000, estimated=765),
    ),
    "a document of text": (part(type="document", source={"type": "text", "data": "x" * 9000}), NO_EXTRAS),
    "a file": (
        part(type="file", file={"file_data": f"data:application/pdf;base64,{base64(bytes(300))}"}),
        Extras(document=2500, estimated=765),
    ),
    "Anthropic's search": (found(messages=[], tools=[SEARCH]), Extras(searches=5)),
    "without a bound": (found(messages=[], tools=[{"type": "web_search_20250305"}]), Extras(searches=10)),
    "OpenAI's search": (found(input="x", tools=[{"type": "web_search"}], max_tool_calls=3), Extras(searches=3)),
    "Gemini's search": (found(contents=[], tools=[{"google_search": {}}]), Extras(searches=10)),
    "a chat's search": (found(messages=[], web_search_options={}), Extras(searches=10)),
    "a function": (found(messages=[], tools=[{"type": "function", "function": {"name": "web_search"}}]), NO_EXTRAS),
    "five minutes": (part(**{**TEXT, "cache_control": {"type": "ephemeral"}}), Extras(writes_cache=True)),
    "OpenAI's mark": (
        part(**TEXT, prompt_cache_breakpoint={"mode": "explicit"}),
        Extras(writes_cache=True, writes_cache_1h=True),
    ),
    "an hour": (part(**MARKED), Extras(writes_cache=True, writes_cache_1h=True)),
}


@pytest.mark.parametrize("what", EXTRAS)
def test_what_a_request_brings_is_found(what: str) -> None:
    """In every language, at any depth."""
    extras, right = EXTRAS[what]

    assert extras == right


def test_low_detail_counts_where_every_target_heeds_it() -> None:
    low = {"type": "image_url", "image_url": {**URL, "detail": "low"}}

    assert find_extras(asks(low), None).image == 630
    assert find_extras(asks(low), None, heeds_detail=False).image == 5000


def test_a_model_may_count_its_own_way() -> None:
    """gpt-4o-mini has 8,500 tokens for the smallest; OpenAI's ten for a second of sound; and Perplexity's searches unasked."""
    assert Extras(audio=32 * 60).at("gpt-audio-1.5").audio == 600
    assert Extras(audio=32 * 60).at("gemini-3-flash").audio == 32 * 60
    assert NO_EXTRAS.at("sonar-deep-research").searches == 30
    assert Extras(image=425).at("gpt-4o-mini-2024-07-18").image == 8500
    assert Extras(image=425).at("gpt-4o").image == 425


NAMES = st.sampled_from(["type", "source", "data", "image_url", "input_audio", "inlineData", "mimeType", "tools"])
VALUES = st.recursive(
    st.none() | st.text() | st.integers(-9, 9) | st.sampled_from(["image", "input_audio", "web_search"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.binary(max_size=64))
def test_every_request_can_be_read(content: Any, data: bytes) -> None:
    """However odd it is."""
    body = {"messages": [content, {"type": "image", "source": {"data": base64(b"\xff\xd8" + data)}}], "tools": content}

    assert find_extras(orjson.dumps(body), None).image >= 425


PARTS = st.integers(0, 10_000)


@given(
    PARTS,
    PARTS,
    PARTS,
    PARTS,
    st.integers(0, 20),
    st.booleans(),
    st.lists(st.floats(1e-7, 1e-4), min_size=8, max_size=8),
)
def test_no_usage_of_what_was_asked_for_costs_more_than_is_reserved(
    text: int, audio: int, image: int, output: int, searches: int, is_hour: bool, usd: list[float]
) -> None:
    """Whatever the prices are of, as long as reads from a cache are the cheapest."""
    rates = Rates(
        usd[0],
        usd[1],
        0.0,
        cache_write_usd=usd[2],
        cache_write_1h_usd=usd[3],
        audio_input_usd=usd[4],
        image_input_usd=usd[5],
        audio_output_usd=usd[6],
        search_usd=usd[7],
        request_usd=0.001,
    )
    extras = Extras(audio=audio, image=image, searches=searches, writes_cache=True, writes_cache_1h=is_hour)
    came = text + audio + image
    input_usd, output_usd = dearest_usd(rates, came, "", extras)

    for written, cached, spoken in ((0, 0, 0), (text, 0, 0), (0, text, output)):
        parts = UsageParts(audio_input=audio, image_input=image, audio_output=spoken, searches=searches)
        usage = Usage(came, output, cached, False, written, written if is_hour else 0, parts)
        assert (usage_usd(rates, usage) or 0.0) <= input_usd + output * output_usd + 1e-9


@pytest.mark.parametrize(
    ("shows_images", "rates", "most"),
    [
        (True, Rates(1.0, 0.0, 0.0), 3 * 5000),
        (False, Rates(1.0, 0.0, 0.0), 900_000 // 12),
        (False, Rates(1.0, 0.0, 0.0, audio_input_usd=2.0), 2 * 900_000 // 125),
    ],
    ids=["pictures", "documents", "sound"],
)
def test_a_body_that_is_not_parsed_reserves_by_its_files(shows_images: bool, rates: Rates, most: int) -> None:
    """Beside its text, which is estimated by the length of the rest."""

    async def story(clock: LoopClock) -> float:
        city = City([Provider(says(ANSWER))], clock, changes={"rates": rates})
        large = Large(tokens=3 * 765, data_bytes=1_200_000, data_strings=3, needs=Needs(images=shows_images))
        usd = city.admission.costs.price(city.bench.call(large=large, max_tokens=1), 100.0).worst
        await city.settle()
        return usd

    assert run(story) == pytest.approx(most)


# Bounds that the config sets.


@pytest.mark.parametrize(
    ("asked", "edits", "tokens"),
    [
        ({}, BodyEdits(set=(("max_tokens", b"50"),)), 50),
        ({"max_tokens": 5000}, BodyEdits(set=(("max_tokens", b"50"),)), 50),
        ({"max_tokens": 50}, BodyEdits(set=(("max_tokens", b"5000"),)), 5000),
        ({"max_tokens": 50}, BodyEdits(drop=("max_tokens",)), 4096),
        ({"max_tokens": 50}, BodyEdits(set=(("n", b"3"),)), 150),
        ({"max_tokens": 50, "n": 3}, BodyEdits(drop=("n",)), 50),
        ({"max_tokens": 50}, BodyEdits(set=(("temperature", b"0"),)), 50),
    ],
)
def test_a_bound_that_the_target_sets_is_what_is_reserved(asked: dict[str, Any], edits: BodyEdits, tokens: int) -> None:
    """`body: {set: …, drop: …}` goes before what the caller says."""

    async def story(clock: LoopClock) -> float:
        city = City([Provider(says(ANSWER))], clock)
        model = with_prices(city, Rates(0.0, 1.0, 0.0))
        model = replace(model, targets=(edited := tuple(replace(one, edits=edits) for one in model.plan)), plan=edited)
        body = orjson.dumps({"model": "m", "messages": [], **asked})
        bound = asked.get("max_tokens") and asked["max_tokens"] * asked.get("n", 1)
        usd = city.admission.costs.price(city.bench.call(model=model, body=body, max_tokens=bound), 1e6).most
        await city.settle()
        return usd

    assert run(story) == tokens


@pytest.mark.parametrize(
    ("edits", "searches"),
    [
        (BodyEdits(set=(("tools", orjson.dumps([SEARCH])),)), 5),
        (BodyEdits(set=(("web_search_options", b"{}"),)), 10),
        (BodyEdits(drop=("tools",)), 0),
        (None, 10),
    ],
)
def test_searches_that_the_target_asks_for_are_reserved(edits: BodyEdits | None, searches: int) -> None:
    """Or that it leaves out."""

    async def story(clock: LoopClock) -> float:
        city = City([Provider(says(ANSWER))], clock)
        model = with_prices(city, Rates(0.0, 0.0, 0.0, search_usd=1.0))
        model = replace(model, targets=(edited := tuple(replace(one, edits=edits) for one in model.plan)), plan=edited)
        body = asks(tools=[] if edits and edits.set else [{"type": "web_search_20250305"}])
        usd = city.admission.costs.price(city.bench.call(model=model, body=body), 1e6).most
        await city.settle()
        return usd

    assert run(story) == searches


def test_gemini_callers_are_bound_by_their_own_field() -> None:
    body = {"contents": [], "generationConfig": {"maxOutputTokens": 70, "candidateCount": 2}}

    assert find_bound(body) == 140
    assert find_bound({"contents": [], "generationConfig": None}) is None
