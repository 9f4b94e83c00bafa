"""Tenants that share a provider's account: each sees and uses what it has created itself, and nothing else."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import openai
import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.operate import AdminClient, AdminRefused
from gateway.features.ownership.rules import OBJECTS
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, Response, Running, chat, config_of, connect, get, post
from tests.e2e.objects_provider import NOT_FOUND, PREFIXES, ObjectsProvider
from tests.rows import rows
from tests.sweeps import sampled

A_KEY, B_KEY, B2_KEY = "tenant-a-canary-0123456789", "tenant-b-canary-0123456789", "tenant-b-second-0123456789"
KEYS = [
    {"name": "a", "key": A_KEY},
    {"name": "b", "key": B_KEY},
    {"name": "b2", "key": B2_KEY, "tenant": "b"},
]
A, B = f"authorization: Bearer {A_KEY}", f"authorization: Bearer {B_KEY}"
UNKNOWN = "file-nobody-has-this"


@pytest.fixture
async def provider() -> AsyncIterator[ObjectsProvider]:
    async with ObjectsProvider() as provider:
        yield provider


@pytest.fixture
async def gateway(start: StartGateway, provider: ObjectsProvider) -> Running:
    return await start(lambda _: config(provider))


def config(provider: ObjectsProvider, **sections: Any) -> dict[str, Any]:
    found = {"keys": KEYS, "passthrough": "main", "admin": {"key": ADMIN_KEY}, **sections}
    return config_of(provider.url, **found)


async def ask(gateway: Running, *requests: bytes) -> list[Response]:
    async with connect(gateway.url) as peer:
        return [await peer.exchange(request) for request in requests]


async def create(gateway: Running, kind: str, key: str = A, body: dict[str, Any] | None = None) -> str:
    """A new object of the key's tenant."""
    sent = {"model": "gpt-4o", "messages": [], "store": True} if kind == "chat/completions" else {"model": "gpt-4o"}
    (made,) = await ask(gateway, post(f"/v1/{kind}", orjson.dumps(body or sent), key))
    assert made.status == 200, made.body
    id: str = orjson.loads(made.body)["id"]
    return id


def is_nothing(answer: Response) -> bool:
    return answer.status == 404 and answer.error["code"] == "object_not_found"


# --- paths ---


@pytest.mark.parametrize("kind", PREFIXES)
async def test_what_one_tenant_creates_no_other_can_see_or_delete(
    gateway: Running, provider: ObjectsProvider, kind: str
) -> None:
    """The answer is the same, byte for byte, as that to an id which nobody has; the provider is not asked."""
    id, unknown = await create(gateway, kind), f"{PREFIXES[kind]}nobodys"
    before = len(provider.seen)

    for method in ("GET", "POST", "DELETE"):
        for rest in ("", "/cancel", "/content", "/a/b"):
            theirs, nobodys = await ask(
                gateway, get(f"/v1/{kind}/{id}{rest}", B, method=method), get(f"/v1/{kind}/{unknown}{rest}", B, method=method)
            )  # fmt: skip
            assert is_nothing(theirs)
            assert (theirs.status, theirs.body) == (nobodys.status, nobodys.body)
            assert {name for name, _ in theirs.headers} == {name for name, _ in nobodys.headers}
    assert len(provider.seen) == before
    shown, deleted, gone = await ask(
        gateway, get(f"/v1/{kind}/{id}", A), get(f"/v1/{kind}/{id}", A, method="DELETE"), get(f"/{kind}/{id}", A)
    )
    assert (shown.status, deleted.status) == (200, 200)
    assert is_nothing(gone)


async def test_the_keys_of_one_tenant_share_its_objects(gateway: Running) -> None:
    id = await create(gateway, "files", B)

    (shown,) = await ask(gateway, get(f"/v1/files/{id}", f"authorization: Bearer {B2_KEY}"))

    assert shown.status == 200


@pytest.mark.parametrize(
    "spelling",
    ["/v1/%66iles/{id}", "/v1/%2566iles/{id}", "/v1/Files/{id}", "/files/{id}", "/v1/files/{id}/", "/v1/files/%66{tail}",
     "/v1/files/{id}?x=1", "/v1/FILES/{id}/content", "/v1/fi%6Ces/{id}"],
)  # fmt: skip
async def test_no_spelling_of_a_path_leads_around(gateway: Running, provider: ObjectsProvider, spelling: str) -> None:
    id = await create(gateway, "files")
    before = len(provider.seen)

    (answer,) = await ask(gateway, get(spelling.format(id=id, tail=id[1:]), B))

    assert answer.status == 404
    assert len(provider.seen) == before


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "HEAD"])
async def test_all_objects_of_a_kind_at_once_are_nobodys(
    gateway: Running, provider: ObjectsProvider, method: str
) -> None:
    async with connect(gateway.url) as peer:
        peer.send(get("/v1/files", A, method=method))
        assert (await peer.response(head=method == "HEAD")).status == 404

    assert provider.seen == []


async def test_a_fine_tuned_model_is_deleted_by_its_tenant_only(gateway: Running, provider: ObjectsProvider) -> None:
    provider.extra["fine_tuning/jobs"] = {"fine_tuned_model": "ft:gpt-4o:x", "result_files": ["file-results"]}
    job = await create(gateway, "fine_tuning/jobs")
    await ask(gateway, get(f"/v1/fine_tuning/jobs/{job}", A))

    theirs, own = await ask(gateway, *(get("/v1/models/ft:gpt-4o:x", key, method="DELETE") for key in (B, A)))
    refused, results = await ask(gateway, *(get("/v1/files/file-results", key) for key in (B, A)))

    assert is_nothing(theirs)
    assert own.status == 200
    assert is_nothing(refused)
    assert (results.status, results.body) == (404, NOT_FOUND)  # the provider's own word: it was asked


async def test_paths_that_are_no_objects_are_relayed_as_ever(gateway: Running) -> None:
    """Audio and the like; verbs that stand where an id would."""
    for request in (
        post("/v1/audio/translations", b'{"x": 1}', A),
        post("/v1/threads/runs", b'{"thread": {}}', A),
        get("/v1/anything/else", A),
    ):
        (answer,) = await ask(gateway, request)
        assert answer.status == 200


# --- ids that others bring forth ---


async def test_what_a_batch_writes_becomes_its_tenants_when_seen(gateway: Running, provider: ObjectsProvider) -> None:
    output, errors = provider.make("files"), provider.make("files")
    provider.extra["batches"] = {"output_file_id": output, "error_file_id": errors}
    batch = await create(gateway, "batches", A, {"input_file_id": await create(gateway, "files")})
    provider.objects["batches"][batch] |= {"output_file_id": output}

    await ask(gateway, get(f"/v1/batches/{batch}", B), get(f"/v1/batches/{batch}", A))
    found = await ask(gateway, *(get(f"/v1/files/{id}", key) for id in (output, errors) for key in (A, B)))

    assert [answer.status for answer in found] == [200, 404, 200, 404]


async def test_a_batch_in_a_list_is_seen_as_well(gateway: Running, provider: ObjectsProvider) -> None:
    batch, output = await create(gateway, "batches"), provider.make("files")
    provider.objects["batches"][batch] |= {"output_file_id": output}

    await ask(gateway, get("/v1/batches", B))
    (before,) = await ask(gateway, get(f"/v1/files/{output}", A))
    await ask(gateway, get("/v1/batches", A))
    after, theirs = await ask(gateway, get(f"/v1/files/{output}", A), get(f"/v1/files/{output}", B))

    assert (before.status, after.status, theirs.status) == (404, 200, 404)


async def test_a_completed_upload_and_a_thread_made_by_its_run_are_the_tenants(gateway: Running) -> None:
    upload = await create(gateway, "uploads")
    done, run = await ask(
        gateway, post(f"/v1/uploads/{upload}/complete", b'{"part_ids": []}', A), post("/v1/threads/runs", b"{}", A)
    )
    file, thread = orjson.loads(done.body)["file"]["id"], orjson.loads(run.body)["thread_id"]

    found = await ask(gateway, *(get(path, key) for path in (f"/files/{file}", f"/threads/{thread}") for key in (A, B)))

    assert [answer.status for answer in found] == [200, 404, 200, 404]


async def test_nobody_owns_what_it_only_repeats(gateway: Running, provider: ObjectsProvider) -> None:
    """An id that a caller writes into metadata comes back in the answer, where it proves nothing."""
    before = provider.make("files")
    provider.extra["batches"] = {"metadata": {"output_file_id": before, "id": before}}

    await create(gateway, "batches", B)
    (answer,) = await ask(gateway, get(f"/v1/files/{before}", B))

    assert is_nothing(answer)


# --- bodies ---

BODIES: dict[str, tuple[str, str, Any]] = {
    "previous_response_id": (
        "/v1/responses",
        "responses",
        lambda id: {"model": "m", "input": "x", "previous_response_id": id},
    ),
    "conversation": ("/v1/responses", "conversations", lambda id: {"model": "m", "input": "x", "conversation": id}),
    "conversation_object": ("/v1/responses", "conversations", lambda id: {"model": "m", "conversation": {"id": id}}),
    "vector_store_ids": (
        "/responses",
        "vector_stores",
        lambda id: {"model": "m", "tools": [{"type": "file_search", "vector_store_ids": ["vs_own", id]}]},
    ),
    "container": (
        "/v1/responses",
        "containers",
        lambda id: {"model": "m", "tools": [{"type": "code_interpreter", "container": id}]},
    ),
    "container_file_ids": (
        "/v1/responses",
        "files",
        lambda id: {
            "model": "m",
            "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": [id]}}],
        },
    ),
    "container_id": ("/v1/responses", "containers", lambda id: {"model": "m", "input": [{"container_id": id}]}),
    "input_file": (
        "/v1/responses",
        "files",
        lambda id: {"model": "m", "input": [{"content": [{"type": "input_file", "file_id": id}]}]},
    ),
    "prompt_variable": (
        "/v1/responses",
        "files",
        lambda id: {
            "model": "m",
            "prompt": {"id": "pmpt_1", "variables": {"f": {"type": "input_file", "file_id": id}}},
        },
    ),
    "chat_file": (
        "/v1/chat/completions",
        "files",
        lambda id: {
            "model": "m",
            "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": id}}]}],
        },
    ),
    "training_file": ("/v1/fine_tuning/jobs", "files", lambda id: {"model": "m", "training_file": id}),
    "validation_file": ("/v1/fine_tuning/jobs", "files", lambda id: {"model": "m", "validation_file": id}),
    "input_file_id": ("/batches", "files", lambda id: {"input_file_id": id, "endpoint": "/v1/responses"}),
    "assistant": ("/v1/threads/runs", "assistants", lambda id: {"assistant_id": id}),
    "eval": (
        "/v1/evals",
        "files",
        lambda id: {"data_source": {"source": {"type": "file_id", "id": id}}},
    ),
    "any_case": ("/v1/assistants", "files", lambda id: {"tool_resources": {"code_interpreter": {"File_IDs": [id]}}}),
    "image": ("/v1/images/edits", "files", lambda id: {"images": [{"file_id": id}]}),
    "video": ("/v1/videos/edits", "videos", lambda id: {"video": {"id": id}}),
}


@rows("name, size", product(BODIES, (0, 400_000)))
async def test_an_id_in_a_body_has_to_be_the_tenants(
    gateway: Running, provider: ObjectsProvider, name: str, size: int
) -> None:
    """Wherever a provider would look, in small bodies and in those that are only searched."""
    path, kind, body = BODIES[name]
    id, own = await create(gateway, kind, A), await create(gateway, "vector_stores", B)
    before = len(provider.seen)

    def written(id: str) -> bytes:
        return orjson.dumps({**body(id), "padding": "x" * size}).replace(b"vs_own", own.encode())

    theirs, nobodys = await ask(gateway, *(post(path, written(one), B) for one in (id, "nobodys_1")))

    assert is_nothing(theirs)
    assert theirs.body == nobodys.body
    assert len(provider.seen) == before
    await ask(gateway, post(path, written(id), A))
    assert len(provider.seen) == before + (name != "vector_store_ids")  # which names another's as well


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m", "input": "x", "previous_response_id": "ID", "previous_response_id": null}',
        b'{"model": "m", "input": "x", "previous_response_id": null, "previous_response_id": "ID"}',
        b'{"model": "m", "input": "x", "previous_response_\\u0069d": "ID"}',
        b'{"model": "m", "input": [{"file_id": "ID", "file_id": 1}]}',
        b'{"model": "m", "input": [{"\\u0066ile_id": "ID"}], "padding": "' + b"x" * 400_000 + b'"}',
        b'{"model": "m", "tools": [{"vector_store_ids": [\n"ID"\t]}], "padding": "' + b"x" * 400_000 + b'"}',
    ],
)
async def test_no_spelling_of_a_body_leads_around(gateway: Running, provider: ObjectsProvider, body: bytes) -> None:
    id = await create(gateway, "responses")
    before = len(provider.seen)

    (answer,) = await ask(gateway, post("/v1/responses", body.replace(b"ID", id.encode()), B))

    assert answer.status in (400, 404)
    assert len(provider.seen) == before


@pytest.mark.parametrize(
    ("how", "size"),
    sampled(
        product(["whole", "stream", "later"], [0, 400_000, 4_200_000]),
        # How an item became known and how large the body is that names it have nothing to do with each other.
        lambda how, size: how == "whole" or size == 0,
    ),
)
async def test_an_item_of_a_stored_response_is_for_its_tenant(
    gateway: Running, provider: ObjectsProvider, how: str, size: int
) -> None:
    """Named in an input of another response; whether it came with its response, in a stream, or was seen later."""
    output: list[dict[str, Any]] = [
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "msg_1", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    ]
    provider.extra["output"] = [] if how == "later" else output
    if how == "later":
        id = await create(gateway, "responses")
        provider.objects["responses"][id] |= {"output": output}
        await ask(gateway, get(f"/v1/responses/{id}", A))
    else:
        body = orjson.dumps({"model": "m", "input": "x", "stream": how == "stream"})
        async with connect(gateway.url) as peer:
            peer.send(post("/v1/responses", body, A))
            assert (await peer.response()).status == 200
    before = len(provider.seen)

    def written(item: Any) -> bytes:
        return orjson.dumps({"model": "m", "store": False, "input": [item], "metadata": {"p": "x" * size}})

    items: list[dict[str, Any]] = [
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_1"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ]
    theirs = [await ask(gateway, post("/v1/responses", written(item), B)) for item in items]
    nobodys = await ask(gateway, post("/v1/responses", written({"type": "item_reference", "id": "msg_no"}), B))

    assert all(is_nothing(answer) for (answer,) in theirs)
    assert {answer.body for (answer,) in theirs} == {nobodys[0].body}
    assert len(provider.seen) == before
    own = [await ask(gateway, post("/v1/responses", written(item), A)) for item in items]
    brought = await ask(gateway, post("/v1/responses", written({**output[1], "id": "msg_2"}), B))
    assert [answer.status for (answer,) in [*own, brought]] == [200] * 4


async def test_what_is_not_an_id_is_left_alone(gateway: Running) -> None:
    """A caller's own metadata, the schema of a function, words in a text, a stored prompt."""
    body = {
        "model": "gpt-4o",
        "input": 'the field "file_id": "file-1" of the "conversation": "x"',
        "metadata": {"file_id": "mine", "conversation": "7", "container": "blue"},
        "prompt": {"id": "pmpt_1", "version": "2"},
        "tools": [
            {
                "type": "function",
                "name": "f",
                "parameters": {"properties": {"file_id": {"type": "string"}}, "examples": [{"file_id": "x"}]},
            },
            {"type": "code_interpreter", "container": {"type": "auto"}},
        ],
    }

    (answer,) = await ask(gateway, post("/v1/responses", orjson.dumps(body), B))

    assert answer.status == 200


async def test_agents_may_name_their_threads_and_tools_their_files(gateway: Running) -> None:
    """Codex says its thread in `client_metadata`, and tools of mail and drives have parameters named like ids."""
    question = {"role": "user", "content": "x"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"thread_id": "x", "file_id": "y"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "z"}
    turns = [question, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    codex, claude = await ask(
        gateway,
        post("/v1/responses", b'{"model":"m","input":"hi","client_metadata":{"thread_id":"01a2"}}', B),
        post("/v1/messages", orjson.dumps({"model": "m", "max_tokens": 9, "messages": turns}), B),
    )

    assert codex.status == 200
    assert not is_nothing(claude)


async def test_an_unknown_field_opens_nothing_of_another_tenants(gateway: Running, provider: ObjectsProvider) -> None:
    id = await create(gateway, "files", A)

    def written(id: str) -> bytes:
        return orjson.dumps({"model": "m", "input": "x", "tomorrow": {"source_file_id": id}})

    theirs, nobodys = await ask(gateway, *(post("/v1/responses", written(one), B) for one in (id, "file-nobodys")))

    assert is_nothing(theirs)
    assert nobodys.status == 200


@pytest.mark.parametrize("field", ["file_id", "file_ids[]", "image[file_id]"])
async def test_a_form_may_name_ids_as_well(gateway: Running, provider: ObjectsProvider, field: str) -> None:
    id, box = await create(gateway, "files"), await create(gateway, "containers", B)
    before = len(provider.seen)

    (answer,) = await ask(gateway, form(f"/v1/containers/{box}/files", {field: id}, B))

    assert is_nothing(answer)
    assert len(provider.seen) == before


async def test_the_calls_in_a_file_for_a_batch_are_held_to_it_as_well(gateway: Running) -> None:
    """What a batch does later, it does with the account's rights."""
    id = await create(gateway, "responses")
    line = orjson.dumps({"url": "/v1/responses", "body": {"previous_response_id": id}}).decode()

    theirs, own, text = await ask(
        gateway,
        form("/v1/files", {"purpose": "batch", "file": line}, B),
        form("/v1/files", {"purpose": "batch", "file": line}, A),
        form("/v1/files", {"purpose": "user_data", "file": line}, B),
    )

    assert is_nothing(theirs)
    assert (own.status, text.status) == (200, 200)


@pytest.mark.parametrize(
    "body",
    [
        b"file_id=file-0",
        b"pad=" + b"x" * 300_000 + b"&file_id=file-0",
        '{"file_id": "file-0"}'.encode("utf-16"),
        ('{"file_id": "file-0", "pad": "' + "x" * 300_000 + '"}').encode("utf-16-le"),
    ],
)
async def test_what_another_parser_could_read_is_refused(
    gateway: Running, provider: ObjectsProvider, body: bytes
) -> None:
    (answer,) = await ask(gateway, post("/v1/vector_stores", body, B))

    assert (answer.status, answer.error["code"]) == (400, "invalid_json")
    assert provider.seen == []


async def test_an_eval_cannot_ask_for_all_that_the_account_has_stored(gateway: Running) -> None:
    body = {"data_source": {"source": {"type": "stored_completions", "model": "gpt-4o"}}}

    (answer,) = await ask(gateway, post("/v1/evals", orjson.dumps(body), B))

    assert is_nothing(answer)


# --- hot endpoints ---


async def test_a_stored_response_is_its_tenants(gateway: Running) -> None:
    """Without a word: OpenAI stores responses unless it is told not to."""
    async with gateway.sdk(A_KEY) as a, gateway.sdk(B_KEY) as b:
        made = await a.responses.create(model="gpt-4o", input="x")
        with pytest.raises(openai.NotFoundError):
            await b.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await b.responses.create(model="gpt-4o", input="x", previous_response_id=made.id)
        assert (await a.responses.retrieve(made.id)).id == made.id
        assert (await a.responses.create(model="gpt-4o", input="x", previous_response_id=made.id)).id != made.id


async def test_a_streamed_response_is_its_tenants_before_the_client_knows_it(gateway: Running) -> None:
    """It may ask for it as soon as it has heard of it."""
    async with gateway.sdk(A_KEY) as a, gateway.sdk(B_KEY) as b:
        stream = await a.responses.create(model="gpt-4o", input="x", stream=True)
        async for event in stream:
            if event.type == "response.created":
                assert (await a.responses.retrieve(event.response.id)).id == event.response.id
                with pytest.raises(openai.NotFoundError):
                    await b.responses.retrieve(event.response.id)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_container_that_a_response_has_made_is_the_tenants(
    gateway: Running, provider: ObjectsProvider, stream: bool
) -> None:
    box = provider.make("containers")
    provider.extra["output"] = [{"type": "code_interpreter_call", "id": "ci_1", "container_id": box}]
    sent = {"model": "gpt-4o", "input": "x", "stream": stream, "tools": [{"type": "code_interpreter"}]}

    await ask(gateway, post("/v1/responses", orjson.dumps(sent), A))
    own, theirs = await ask(gateway, get(f"/v1/containers/{box}", A), get(f"/v1/containers/{box}", B))

    assert own.status == 200
    assert is_nothing(theirs)


async def test_a_chat_completion_is_remembered_only_when_it_is_stored(
    gateway: Running, provider: ObjectsProvider
) -> None:
    stored = await create(gateway, "chat/completions")
    (plain,) = await ask(gateway, post("/v1/chat/completions", chat(), A))
    other = orjson.loads(plain.body)["id"]

    found = await ask(gateway, *(get(f"/v1/chat/completions/{id}", key) for id in (stored, other) for key in (A, B)))

    assert [answer.status for answer in found] == [200, 404, 404, 404]
    objects = gateway.gateway._opened.objects
    assert objects is not None
    assert objects.entries == 1


# --- lists ---


async def test_a_list_shows_the_tenants_own_only(gateway: Running, provider: ObjectsProvider) -> None:
    provider.make("files")
    own = [await create(gateway, "files", A) for _ in range(3)]
    await create(gateway, "files", B)

    (listed,) = await ask(gateway, get("/v1/files", A))

    said = orjson.loads(listed.body)
    assert [one["id"] for one in said["data"]] == own[::-1]
    assert (said["first_id"], said["last_id"], said["has_more"]) == (own[2], own[0], False)


async def test_the_sdk_pages_through_what_is_its_own(gateway: Running, provider: ObjectsProvider) -> None:
    """Far apart among another's; each page is filled from several of the provider's."""
    own = []
    for number in range(300):
        if number % 25 == 0:
            own.append(await create(gateway, "files", A))
        else:
            provider.make("files")

    async with gateway.sdk(A_KEY) as sdk:
        found = [one.id async for one in sdk.files.list(limit=5)]

    assert found == own[::-1]


async def test_a_page_is_filled_from_ten_at_most_and_says_that_there_is_more(
    gateway: Running, provider: ObjectsProvider
) -> None:
    first = await create(gateway, "files", A)
    for _ in range(1500):
        provider.make("files")
    before = len(provider.seen)

    (listed,) = await ask(gateway, get("/v1/files?limit=20", A))
    (near,) = await ask(gateway, get("/v1/files?limit=2000", A))

    assert len(provider.seen) == before + 10 + 1
    said, found = orjson.loads(listed.body), orjson.loads(near.body)
    assert (said["data"], said["last_id"], said["has_more"]) == ([], None, True)
    assert ([one["id"] for one in found["data"]], found["has_more"]) == ([first], False)


@pytest.mark.parametrize("own", [19, 20, 21])
async def test_there_is_more_only_where_there_is(gateway: Running, provider: ObjectsProvider, own: int) -> None:
    """Of the tenant's own, not of the provider's."""
    provider.make("files")
    ids = [await create(gateway, "files", A) for _ in range(own)]
    for _ in range(30):
        provider.make("files")

    (listed,) = await ask(gateway, get("/v1/files?limit=20", A))

    said = orjson.loads(listed.body)
    assert ([one["id"] for one in said["data"]], said["has_more"]) == (ids[::-1][:20], own > 20)
    assert said["last_id"] == said["data"][-1]["id"]


async def test_a_cursor_has_to_be_the_tenants(gateway: Running, provider: ObjectsProvider) -> None:
    theirs = await create(gateway, "files", A)

    found = await ask(gateway, get(f"/v1/files?after={theirs}", B), get("/v1/files?after=file-none", B))

    assert [is_nothing(answer) for answer in found] == [True, True]


async def test_a_list_that_cannot_be_told_apart_is_not_shown(start: StartGateway) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 X\r\ncontent-type: text/plain\r\ncontent-length: 9\r\nconnection: close\r\n\r\nsecret-id"
        )
        writer.close()

    server = await asyncio.start_server(odd, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    gateway = await start(lambda _: config_of(url, keys=KEYS, passthrough="main"))

    (answer,) = await ask(gateway, get("/v1/files", A))
    server.close()

    assert answer.status == 502
    assert b"secret-id" not in answer.body


async def test_packed_answers_are_read_as_well(gateway: Running, provider: ObjectsProvider) -> None:
    provider.is_packing = True
    provider.make("files")
    own = await create(gateway, "files", A)

    (listed,) = await ask(gateway, get("/v1/files", A))

    assert [one["id"] for one in orjson.loads(listed.body)["data"]] == [own]


# --- what opens it, and what costs nothing ---


@pytest.mark.parametrize("keys", [None, [KEYS[1], KEYS[2]]])
async def test_one_tenant_alone_is_not_asked(start: StartGateway, provider: ObjectsProvider, keys: Any) -> None:
    """No rules, nothing kept, an answer is relayed as it comes."""
    gateway = await start(lambda _: config(provider, keys=keys))
    id = provider.make("files")

    listed, shown = await ask(gateway, get("/v1/files", B), get(f"/v1/files/{id}", B))

    assert OBJECTS.of(gateway.gateway.policy) is None
    assert (orjson.loads(listed.body)["data"][0]["id"], shown.status) == (id, 200)
    objects = gateway.gateway._opened.objects
    assert objects is not None
    assert objects.entries == 0


async def test_objects_can_be_shared_by_all(start: StartGateway, provider: ObjectsProvider) -> None:
    gateway = await start(lambda _: config(provider, objects="shared"))
    id = await create(gateway, "files", A)

    (shown,) = await ask(gateway, get(f"/v1/files/{id}", B))

    assert shown.status == 200
    assert gateway.gateway.policy.notices


async def test_some_objects_can_be_shared_by_all(start: StartGateway, provider: ObjectsProvider) -> None:
    """By id, or by how they begin."""
    common, team, other = provider.make("files"), provider.make("vector_stores"), provider.make("files")
    gateway = await start(lambda _: config(provider, objects={"shared": [common, "vs_*"]}))

    found = await ask(
        gateway, *(get(path, B) for path in (f"/files/{common}", f"/vector_stores/{team}", f"/files/{other}"))
    )
    (listed,) = await ask(gateway, get("/files", A))

    assert [answer.status for answer in found] == [200, 200, 404]
    assert [one["id"] for one in orjson.loads(listed.body)["data"]] == [common]


async def test_a_callers_own_account_is_its_own(start: StartGateway, provider: ObjectsProvider) -> None:
    """Who brings a credential sees what the provider shows him; only what is known to be another's is not."""
    providers = {"main": {"dialect": "openai", "base_url": provider.url}}
    gateway = await start(lambda _: config(provider, providers=providers))
    own = provider.make("files")
    keyed = [f"x-api-key: {B_KEY}", "authorization: Bearer sk-my-own"]
    theirs = await create(gateway, "files", A)

    shown, hidden, listed = await ask(
        gateway, get(f"/v1/files/{own}", *keyed), get(f"/v1/files/{theirs}", *keyed), get("/v1/files", *keyed)
    )

    assert shown.status == 200
    assert is_nothing(hidden)
    assert own in [one["id"] for one in orjson.loads(listed.body)["data"]]


# --- idempotency keys ---


async def test_two_tenants_never_share_an_idempotency_key_upstream(gateway: Running, provider: ObjectsProvider) -> None:
    """Under one account the second would get the first one's answer."""
    line = "idempotency-key: order-1"

    await ask(gateway, *(post("/v1/files", b"{}", key, line) for key in (A, A, B)))

    sent = [headers["idempotency-key"] for _, _, headers, _ in provider.seen]
    assert sent[0] == sent[1] != sent[2]
    assert all("order-1" not in key for key in sent)


async def test_a_tenant_alone_sends_its_idempotency_key_as_it_is(
    start: StartGateway, provider: ObjectsProvider
) -> None:
    gateway = await start(lambda _: config(provider, keys=KEYS[:1]))

    await ask(gateway, post("/v1/files", b"{}", A, "idempotency-key: order-1"))

    assert provider.seen[0][2]["idempotency-key"] == "order-1"


# --- operators ---


async def test_what_was_there_before_can_be_claimed(gateway: Running, provider: ObjectsProvider) -> None:
    old, taken = provider.make("files"), await create(gateway, "files", A)
    client = AdminClient(gateway.url, ADMIN_KEY)

    said = await asyncio.to_thread(client.post, "objects/claim", {"tenant": "b", "ids": [old, taken]})
    found = await ask(gateway, *(get(f"/v1/files/{id}", B) for id in (old, taken)))
    moved = await asyncio.to_thread(client.post, "objects/claim", {"tenant": "b", "ids": [taken], "move": True})
    (now_own,) = await ask(gateway, get(f"/v1/files/{taken}", B))

    assert (said["claimed"], said["others"], said["provider"]) == (1, {taken: "a"}, "main")
    assert [answer.status for answer in found] == [200, 404]
    assert (moved["claimed"], now_own.status) == (1, 200)


async def test_the_command_line_claims(
    gateway: Running, provider: ObjectsProvider, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids as arguments, or one a line on standard input."""
    ids, taken = [provider.make("files") for _ in range(2)], await create(gateway, "files", A)
    monkeypatch.setenv("GATEWAY_ADMIN_KEY", ADMIN_KEY)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(ids)))

    code = await asyncio.to_thread(main, ["objects", "claim", "b", "-", taken, "--url", gateway.url])
    (shown,) = await ask(gateway, get(f"/v1/files/{ids[1]}", B))

    assert (code, shown.status) == (0, 200)
    assert capsys.readouterr().out.splitlines() == [
        "2 objects at main now of b",
        f"{taken} is a's already; --move gives it all the same",
    ]


@pytest.mark.parametrize("fields", [["purpose=assistants", "purpose=batch"], ["purpose=batch", "purpose=assistants"]])
async def test_no_spelling_of_a_form_leads_around(
    gateway: Running, provider: ObjectsProvider, fields: list[str]
) -> None:
    """A field that is there twice counts twice, and names that some decode are refused."""
    id = await create(gateway, "responses")
    before = len(provider.seen)
    purposes = "".join(f'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n{one[8:]}\r\n' for one in fields)
    call = orjson.dumps({"url": "/v1/responses", "body": {"previous_response_id": id}}).decode()
    line = f'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n{call}\r\n--b--\r\n'
    hidden = f"--b\r\ncontent-disposition: form-data; name*=utf-8''file_id\r\n\r\n{id}\r\n--b--\r\n"
    kind = "content-type: multipart/form-data; boundary=b"

    twice, extended = await ask(
        gateway,
        post("/v1/files", (purposes + line).encode(), B, kind),
        post("/v1/vector_stores", hidden.encode(), B, kind),
    )

    assert is_nothing(twice)
    assert (extended.status, extended.error["code"]) == (400, "invalid_multipart")
    assert len(provider.seen) == before


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"tenant": "c", "ids": ["x"]}, "tenant"),
        ({"tenant": "a", "ids": []}, "ids"),
        ({"tenant": "a", "ids": ["x"], "provider": "nowhere"}, "provider"),
        ({"tenant": "a", "id": "x"}, "Unknown field"),
    ],
)
async def test_a_claim_that_makes_no_sense_is_refused(gateway: Running, asked: dict[str, Any], word: str) -> None:
    with pytest.raises(AdminRefused, match=word):
        await asyncio.to_thread(AdminClient(gateway.url, ADMIN_KEY).post, "objects/claim", asked)


async def test_ownership_survives_a_restart_with_a_file(
    start: StartGateway, provider: ObjectsProvider, tmp_path: Any
) -> None:
    state = f"sqlite:///{tmp_path}/state.db"
    first = await start(lambda _: config(provider, state=state))
    id = await create(first, "files", A)
    await first.stop()
    second = await start(lambda _: config(provider, state=state))

    own, theirs = await ask(second, get(f"/v1/files/{id}", A), get(f"/v1/files/{id}", B))

    assert (own.status, theirs.status) == (200, 404)
    assert not [notice for notice in second.gateway.policy.notices if "objects" in notice]


async def test_in_memory_it_is_said_that_ownership_ends_with_the_process(gateway: Running) -> None:
    assert [notice for notice in gateway.gateway.policy.notices if "state: memory" in notice]


async def test_metrics_tell_how_many_are_known(gateway: Running) -> None:
    await create(gateway, "files", A)

    (shown,) = await ask(gateway, get("/metrics"))

    assert b"gateway_objects 1.0" in shown.body
    assert b"gateway_objects_forgotten_total 0.0" in shown.body


def form(path: str, fields: dict[str, str], key: str) -> bytes:
    parts = "".join(
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()
    )
    return post(path, f"{parts}--b--\r\n".encode(), key, "content-type: multipart/form-data; boundary=b")
