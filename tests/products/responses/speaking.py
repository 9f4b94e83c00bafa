"""Processes that run responses in the background, and a provider whose every answer tells of itself which one it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.call import Call, Reply
from gateway.core.openai.sse import event_json, split_events
from gateway.core.types import Usage
from gateway.products.jobs.calls import CallServer
from gateway.products.jobs.model import ECHO, REQUESTED, JobKind
from gateway.products.jobs.worker import RunningWork
from gateway.products.responses.log import EventBuffers, EventReading
from gateway.products.responses.rules import PREVIOUS, STORES, STREAMS
from gateway.products.responses.runner import ResponseJobs
from tests.support.town import Process

WORDS = 12
"""Of an answer, one event for each."""
EVERY_S = 0.04
RESPONSE = "resp_1"
Json = dict[str, Any]


def sse(kind: str, number: int, **fields: Any) -> bytes:
    """An event of the provider's."""
    event = {"type": kind, "sequence_number": number, **fields}
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps(event))


@dataclass
class Speaker(Process):
    """A gateway that runs responses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lives = EventBuffers()
        server = CallServer(self.make_call, self.serve, self.clock)
        self.responses = ResponseJobs(
            self.store, server, self.clock, self._rules_of, lambda: 0.0, self.lives, lambda _id, _until: None
        )
        self.reading = EventReading(self.clock, self.lives, self._final, lambda: self.is_dead)

    async def run_piece(self, running: RunningWork) -> None:
        """Runs responses as the gateway does."""
        if running.work.job.kind is JobKind.RESPONSE:
            await self.responses.run(running)
        else:
            await super().run_piece(running)

    async def serve(self, call: Call) -> Reply:
        """A stream that says of each word which try it is of; what the script says may come instead."""
        await self.view._live()
        seen: Any = call
        number = len(self.tries)
        self.tries.append(seen.id)
        said = self.script(seen.request, number)
        if isinstance(said, Exception):
            raise said
        status = said if isinstance(said, int) else 200
        if status != 200:
            seen.outcome = self.class_of.get(status, "unknown")
            return Reply(status, [], b'{"error":{"message":"no","code":"x"}}', shared=[])
        taken: list[Callable[[bytes], bool]] = []
        return Reply(200, [], chunks=self._answer(seen, number, taken, breaks=said == 0.0), pass_on=taken.append)

    async def _answer(
        self, seen: Any, number: int, taken: list[Callable[[bytes], bool]], *, breaks: bool
    ) -> AsyncGenerator[bytes, None]:
        response: Json = {"id": f"resp_p{number}", "object": "response", "status": "in_progress", "output": []}
        yield sse("response.created", 0, response=response)
        yield sse("response.in_progress", 1, response=response)
        words = [f"{number}.{at} " for at in range(WORDS)]
        for at, word in enumerate(words):
            await asyncio.sleep(EVERY_S)
            await self.view._live()
            if breaks and at == WORDS // 2:
                seen.outcome = "connect_error"
                return
            event = sse("response.output_text.delta", 2 + at, output_index=0, delta=word)
            if not taken[0](event):
                yield event
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "".join(words)}]}
        yield sse("response.output_item.done", 2 + WORDS, output_index=0, item=item)
        seen.outcome, seen.usage = "ok", Usage(3, 2)
        yield sse("response.completed", 3 + WORDS, response={**response, "status": "completed", "output": [item]})

    async def respond(self, id: str = RESPONSE, **changes: Any) -> None:
        """Takes a response that is streamed."""
        asked = {STREAMS: True, STORES: False, PREVIOUS: "", ECHO: {}}
        about = {"endpoint": "/v1/responses", "headers": [], REQUESTED: asked}
        new = self.new_job(id, kind=JobKind.RESPONSE, about=about, **changes)
        await self.store.accept([new])

    async def read(
        self,
        after: int = -1,
        most: int = 10_000,
        id: str = RESPONSE,
        busy: Callable[[], bool] | None = None,
        into: list[Json] | None = None,
    ) -> list[Json]:
        """The events behind one, to the end, or as many; also those that come in passing, unless `busy` says not now.

        They are added to `into` as they come.
        """
        job = await self.store.find(id, None)
        assert job is not None
        events: list[Json] = [] if into is None else into
        following = self.reading.follow(self.store, job, after)

        def give(event: bytes) -> bool:
            if busy is None or busy():
                return False
            events.append(event_json(event) or {})
            return True

        following.pass_on(give)
        async for block in following.blocks:
            for frame in split_events(block or b""):
                event = event_json(frame)
                assert event is not None
                events.append(event)
                if len(events) == most:
                    return events
        return events

    async def kept(self, id: str = RESPONSE) -> Json:
        """The response at its end."""
        found = await self.store.responses.find(id, "t")
        assert found is not None
        kept: Json = orjson.loads(found.body)
        return kept

    async def _final(self, id: str, tenant: str) -> bytes | None:
        found = await self.store.responses.find(id, tenant)
        return None if found is None else found.body


def tries_in(events: list[Json]) -> set[str]:
    """Which answers of the provider's the words are of."""
    return {event["delta"].split(".")[0] for event in events if "delta" in event}


def text_of(response: Json) -> str:
    """What a response says."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])
