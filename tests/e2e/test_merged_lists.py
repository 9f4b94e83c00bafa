"""Files and batches of a tenant here and at the provider of `passthrough`: one list, by the pager of the official SDK."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from tests.e2e.batches import CHAT, input_of, line
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import NIGHTLY, WEB, ask, with_jobs
from tests.e2e.harness import NIGHTLY_KEY, WEB_KEY, post
from tests.e2e.objects_provider import ObjectsProvider

KEYS = [{"name": "web", "key": WEB_KEY}, {"name": "nightly", "key": NIGHTLY_KEY}]


async def made_there(url: str) -> Mapping[str, list[str]]:
    """The files and batches of the first tenant, newest first, among those of another's that a gateway makes there."""
    made: dict[str, list[str]] = {"files": [], "batches": []}
    for number in range(7):
        for kind, ids in made.items():
            answer = await ask(url, post(f"/v1/{kind}", {"n": number}, WEB if number % 2 else NIGHTLY))
            assert answer.status == 200, answer.raw
            if number % 2:
                ids.insert(0, orjson.loads(answer.body)["id"])
    return made


async def listed(sdk: AsyncOpenAI, kind: str, limit: int) -> list[str]:
    lists: Any = sdk.files if kind == "files" else sdk.batches
    return [one.id async for one in lists.list(limit=limit)]


async def test_the_pager_of_the_sdk_walks_over_the_seam(start: StartGateway, tmp_path: Path) -> None:
    """Ours first, then what the provider has of this tenant, each once, whatever the size of a page."""
    config: dict[str, Any] = {"state": f"sqlite:///{tmp_path}/state.db", "passthrough": "main", "keys": KEYS}
    async with ObjectsProvider() as provider:
        before = await start(lambda _: with_jobs(tmp_path, jobs="off", **config)(provider.url))
        theirs = await made_there(before.url)
        await before.stop()
        gateway = await start(lambda _: with_jobs(tmp_path, **config)(provider.url))
        async with gateway.sdk(api_key=WEB_KEY) as sdk, gateway.sdk(api_key=NIGHTLY_KEY) as other:
            file = await sdk.files.create(file=("in.jsonl", input_of([line("a")])), purpose="batch")
            ours = {"files": [file.id], "batches": list[str]()}
            for _ in range(3):
                made = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
                ours["batches"].insert(0, made.id)
            for kind in ("files", "batches"):
                for limit in (1, 2, 3, 4, 100):
                    found = await listed(sdk, kind, limit)
                    assert len(found) == len({*found})
                    # batches make files of their own meanwhile
                    seen = [one for one in found if one == file.id or not one.startswith("file-gw")]
                    assert seen == [*ours[kind], *theirs[kind]]
            assert len(await listed(other, "batches", 2)) == 4
            assert not {*await listed(other, "batches", 2)} & {*ours["batches"], *theirs["batches"]}
            assert (await sdk.batches.retrieve(theirs["batches"][0])).id == theirs["batches"][0]


async def test_what_is_not_ours_is_made_at_the_provider(start: StartGateway, tmp_path: Path) -> None:
    """Files of other purposes, wherever in the form the purpose stands, and batches of them: by the SDK, and by tenant."""
    config: dict[str, Any] = {"state": f"sqlite:///{tmp_path}/state.db", "passthrough": "main", "keys": KEYS}
    async with ObjectsProvider() as provider:
        gateway = await start(lambda _: with_jobs(tmp_path, **config)(provider.url))
        async with gateway.sdk(api_key=WEB_KEY) as sdk, gateway.sdk(api_key=NIGHTLY_KEY) as other:
            file = await sdk.files.create(file=("a.jsonl", b"x" * 2_000_000), purpose="assistants")
            batch = await sdk.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            assert (await sdk.files.retrieve(file.id)).id == file.id
            assert (await sdk.batches.retrieve(batch.id)).id == batch.id
            for read in (other.files.retrieve(file.id), other.batches.retrieve(batch.id)):
                with pytest.raises(openai.NotFoundError):
                    await read
            with pytest.raises(openai.NotFoundError):
                await other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        made = [body for method, path, _, body in provider.seen if (method, path) == ("POST", "/v1/files")]
        assert [body.count(b"x" * 2_000_000) for body in made] == [1]
        await gateway.stop()
