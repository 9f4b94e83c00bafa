"""Which requests are about objects of a provider, which ids they name, and what their answers say."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import GatewayError, InvalidRequest
from gateway.dialects.openai.lists import Page, read_page
from gateway.features.ownership.objects import (
    MESSAGES,
    RESPONSES,
    ObjectAccess,
    ObjectPath,
    ids_in_path,
    key_of,
    read_path,
    scope_of,
)
from gateway.features.ownership.rules import FIELDS, KNOWN, NamedId, ObjectRules, ids_in_body, ids_in_line, may_name
from gateway.features.ownership.service import Announcements, Filling, ids_in_answer
from tests.rows import rows

JSON = b"application/json"


def found(body: bytes, endpoint: str, parsed: dict[str, Any] | None = None) -> list[NamedId]:
    assert may_name(body, JSON) or (endpoint in ("responses", "conversations") and b'"id"' in body.lower())
    return walked(body, endpoint, parsed)


def walked(
    body: bytes, endpoint: str, parsed: dict[str, Any] | None = None, content_type: bytes = JSON
) -> list[NamedId]:
    return [one for one in ids_in_body(body, parsed, content_type, endpoint) if one is not None]


def named(body: bytes, endpoint: str, parsed: dict[str, Any] | None = None) -> set[str]:
    """The ids at known places."""
    return {one.id for one in found(body, endpoint, parsed) if one.is_known_place}


@rows(
    ("path", "place"),
    [
        ("/files", ObjectPath("files")),
        ("/files/", ObjectPath("files")),
        ("/files/file-1", ObjectPath("files", "file-1")),
        ("/files/file-1/content", ObjectPath("files", "file-1", "content")),
        ("/FILES/file-A", ObjectPath("files", "file-A")),
        ("/%66iles/%66ile-1", ObjectPath("files", "file-1")),
        ("/fine_tuning/jobs/ftjob-1/events", ObjectPath("fine_tuning/jobs", "ftjob-1", "events")),
        ("/fine_tuning/alpha/graders/run", None),
        ("/chat/completions/chatcmpl-1/messages", ObjectPath("chat/completions", "chatcmpl-1", "messages")),
        ("/threads/runs", ObjectPath("threads", verb="runs")),
        ("/threads/thread_1/runs/run_1", ObjectPath("threads", "thread_1", "runs/run_1")),
        ("/responses/compact", ObjectPath("responses", verb="compact")),
        ("/videos/characters/char_1", ObjectPath("videos/characters", "char_1")),
        ("/vector_stores/vs_1/files/file-1", ObjectPath("vector_stores", "vs_1", "files/file-1")),
        ("/audio/translations", None),
        ("/filesystem", None),
        ("/", None),
    ],
)
def test_a_path_is_about_objects_or_not(path: str, place: ObjectPath | None) -> None:
    assert read_path(path) == place


PLACES = sorted((endpoint, path) for endpoint, paths in KNOWN.items() for path in paths.split())
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "type", "tools", "x_id", "metadata"]), inner)
    ),
    max_leaves=12,
)


def put(path: str, value: Any, beside: Any, *, in_lists: bool) -> Any:
    """A tree with a value where the path leads."""
    for name in reversed(path.split(".")):
        value = {"beside": beside, ("f" if name == "*" else name): value}
        value = [beside, value] if in_lists else value
    return value[1] if in_lists else value


@given(
    where=st.sampled_from(PLACES), beside=ANYTHING, in_lists=st.booleans(), as_list=st.booleans(), upper=st.booleans(),
    padding=st.sampled_from(["", "x" * 300_000]), spaced=st.booleans(),
)  # fmt: skip
def test_an_id_at_a_known_place_is_found(
    where: tuple[str, str], beside: Any, in_lists: bool, as_list: bool, upper: bool, padding: str, spaced: bool
) -> None:
    """Whatever stands beside it, in small bodies and in large ones, and however its name is written."""
    endpoint, path = where
    tree = put(path, ["id-1", "id-2"] if as_list else "id-1", beside, in_lists=in_lists)
    body = orjson.dumps({**tree, "padding": padding}, option=orjson.OPT_INDENT_2 if spaced else None)
    if upper:
        name = path.split(".")[-1]
        body = body.replace(f'"{name}"'.encode(), f'"{name.upper()}"'.encode())

    assert named(body, endpoint) >= ({"id-1", "id-2"} if as_list else {"id-1"})


INERT_PLACES = [
    ("responses", "metadata.file_id"),
    ("responses", "client_metadata.thread_id"),
    ("responses", "text.format.schema.properties.file_id"),
    ("responses", "tools.parameters.properties.container.file_id"),
    ("responses", "input.action.file_id"),
    ("chat", "messages.tool_calls.function.arguments.file_id"),
    ("chat", "tools.function.parameters.default.thread_id"),
    ("messages", "messages.content.input.thread_id"),
    ("messages", "messages.content.input.deep.file_ids"),
    ("messages", "tools.input_schema.properties.container"),
    ("messages", "metadata.conversation.id"),
    ("generate", "contents.parts.functionCall.args.file_id"),
    ("generate", "contents.parts.functionResponse.response.thread_id"),
    ("batches", "metadata.input_file_id"),
]


@given(where=st.sampled_from(INERT_PLACES), in_lists=st.booleans(), padding=st.sampled_from(["", "x" * 300_000]))
def test_what_callers_models_and_tools_write_names_nothing(
    where: tuple[str, str], in_lists: bool, padding: str
) -> None:
    endpoint, path = where
    body = orjson.dumps({**put(path, "id-1", None, in_lists=in_lists), "padding": padding})

    assert walked(body, endpoint) == []


@given(
    endpoint=st.sampled_from([*KNOWN, "generate", "embeddings", "audio", ""]),
    path=st.lists(st.sampled_from(["a", "b", "data"]), max_size=3),
    field=st.sampled_from([*sorted(FIELDS - {"video", "conversation", "container"}), "new_file_id", "session_files"]),
)
def test_a_field_that_no_table_knows_names_what_is_another_tenants_only(
    endpoint: str, path: list[str], field: str
) -> None:
    """What a provider adds tomorrow opens nothing, and what a client invents is no reason to refuse its call."""
    body = orjson.dumps(put(".".join([*path, "unknown", field]), "id-1", None, in_lists=False))

    assert found(body, endpoint) == [NamedId("id-1", field, is_known_place=False)]


@given(text=st.text(max_size=40), endpoint=st.sampled_from(sorted(KNOWN)))
def test_words_in_a_text_are_no_ids(text: str, endpoint: str) -> None:
    body = orjson.dumps({"input": f'"file_id": "no" {text} "vector_store_ids": ["no"]', "file_id": None})

    assert walked(body, endpoint) == []


@rows("endpoint", ["responses", "chat", "messages", "threads"])
def test_a_text_may_hold_such_words_as_often_as_it_likes(endpoint: str) -> None:
    """A log of pods, of more than a body may name."""
    text = '"container":"web","file_id":"f","container_name":"web"\n' * 6_000
    body = orjson.dumps({"messages": [{"role": "user", "content": text}], "input": text, "container_names": [text]})

    assert not may_name(body, JSON)
    assert walked(body, endpoint) == []


@given(name=st.text(min_size=1, max_size=12) | st.sampled_from(sorted(FIELDS)), value=st.text(max_size=5))
def test_the_cheap_look_misses_nothing(name: str, value: str) -> None:
    """Whatever the walk would find, the look at the bytes has found a reason to walk."""
    for body in (orjson.dumps({name: value}), json.dumps({"a": [{name: value}]}).encode()):
        if walked(body, "threads"):
            assert may_name(body, JSON)


REFERENCES: dict[str, Any] = {
    "reference": {"type": "item_reference", "id": "ID"},
    "bare": {"id": "ID"},
    "no type": {"type": None, "id": "ID"},
    "reasoning": {"id": "ID", "type": "reasoning", "summary": [], "encrypted_content": None},
    "summary": {"id": "ID", "type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}], "content": []},
    "picture": {"type": "image_generation_call", "id": "ID"},
    "no bytes": {"id": "ID", "result": None, "status": "completed", "type": "image_generation_call"},
}
BROUGHT: dict[str, Any] = {
    "message": {"id": "ID", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    "easy message": {"id": "ID", "role": "user", "content": "hello"},
    "call": {"id": "ID", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    "reasoning": {"id": "ID", "summary": [{"type": "summary_text", "text": "}"}], "type": "reasoning",
                  "encrypted_content": "g"},
    "open reasoning": {"id": "ID", "type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
    "picture": {"id": "ID", "result": "iVBO", "status": "completed", "type": "image_generation_call"},
}  # fmt: skip
SENT = ["small", "spaced", "large", "large, parsed"]


def sent_as(how: str, item: Any, id: str, field: str = "input") -> set[str]:
    other = {"id": "rs_other", "type": "reasoning", "summary": [], "encrypted_content": "g"}
    tree = orjson.loads(orjson.dumps({"model": "m", field: [other, item, other]}).replace(b"ID", id.encode()))
    if how.startswith("large"):
        tree["padding"] = "x" * 300_000
    body = orjson.dumps(tree, option=orjson.OPT_INDENT_2 if how == "spaced" else None)
    return named(body, "responses", tree if how == "large, parsed" else None)


@rows("how", SENT)
@rows("name", REFERENCES)
def test_an_item_that_is_named_is_found(name: str, how: str) -> None:
    id = {"reasoning": "rs_1", "summary": "rs_1", "picture": "ig_1", "no bytes": "ig_1"}.get(name, "msg_1")

    assert sent_as(how, REFERENCES[name], id) == {id}


@rows("how", SENT)
@rows("name", BROUGHT)
def test_an_item_that_is_brought_is_not(name: str, how: str) -> None:
    """Whatever its id is: agents send what they have got, and not all of it was stored."""
    id = {"picture": "ig_1", "call": "fc_1", "message": "msg_1", "easy message": "msg_1"}.get(name, "rs_1")

    assert sent_as(how, BROUGHT[name], id) == set()


@rows("padding", [b"", b"x" * 300_000])
@rows(
    "item",
    [
        b'{"type":"item_reference","id":"ID","id":"own"}',
        b'{"type":"item_reference","id":"own","id":"ID"}',
        b'{"type":"message","id":"ID","type":"item_reference"}',
        b'{"type":"item_reference","type":"message","id":"ID"}',
        b'{"Type":"Item_Reference","ID":"ID"}',
        b'{"type":"message","Type":"item_reference","id":"ID"}',
        b'{"type":"item_\\u0072eference","id":"ID"}',
        b'{"\\u0074ype":"item_reference","id":"ID"}',
        b'{"type":"item_reference","x":{},"id":"ID"}',
        b'{"x":{"id":"own"},"id":"ID","type":"item_reference"}',
        b'{"type" \n:    \t                        "item_reference","id":"ID"}',
        b'{"type"' + b" " * 9_000 + b':"item_reference","id":"ID"}',
        b'{"type":"reasoning","id":"ID","summary":[]},{"encrypted_content":"g","type":"reasoning","id":"rs_2"}',
        b'{"type":"reasoning","id":"ID","id":"rs_2"}',
    ],
)
def test_no_spelling_of_an_item_leads_around(item: bytes, padding: bytes) -> None:
    assert "ID" in named(b'{"model":"m","input":[%b],"p":"%b"}' % (item, padding), "responses")


@rows(
    "body",
    [
        b'{"input":[{"type":"item_reference","id":"ID"}],"input":"hello"}',
        b'{"previous_response_id":"ID","previous_response_id":null}',
        b'{"previous_response_id":null,"Previous_Response_ID":"ID"}',
        b'{"previous_response_\\u0069d":"ID"}',
        b' {"tools":[{"vector_store_ids":[\n"ID"\t]}]}',
        b'{"tools":[[{"container":{"file_ids":[["ID"]]}}]]}',
    ],
)
def test_no_spelling_of_a_field_leads_around(body: bytes) -> None:
    assert named(body, "responses") == {"ID"}
    assert named(body[:-1] + b',"p":"' + b"x" * 300_000 + b'"}', "responses") == {"ID"}


@rows("odd", [b',"x":1e999}', b',"x":NaN}', b',"x":"\\ud800"}', b"}"])
@rows(
    ("named", "endpoint"),
    [
        (b'{"items":[{"type":"item_reference","id":"ID"}]', "conversations"),
        (b'{"items":[{"type":"item_reference","\\u0069d":"ID"}]', "conversations"),
        (b'{"\\u0066ile_id":"ID"', "vector_stores"),
    ],
)
def test_json_that_others_read_and_we_do_not_may_name_nothing(named: bytes, endpoint: str, odd: bytes) -> None:
    mark = b"\xef\xbb\xbf" if odd == b"}" else b""

    with pytest.raises(InvalidRequest) as caught:
        found(mark + named + odd, endpoint)
    assert caught.value.code == "invalid_json"


@rows(
    "body",
    [
        b"{" + b",".join(b'"file_id":"%d"' % number for number in range(3_000)) + b"}",
        orjson.dumps({
            "".join(c.upper() if bits >> at & 1 else c for at, c in enumerate("conversation")): str(bits)
            for bits in range(3_000)
        }),
    ],
)  # fmt: skip
def test_a_field_may_be_written_often(body: bytes) -> None:
    assert len({one.id for one in found(body, "vector_stores")}) == 3_000


def test_what_is_no_item_is_not_looked_at() -> None:
    """A stored prompt, metadata, words; an eval's references are to its own data."""
    body = orjson.dumps({
        "prompt": {"id": "pmpt_1"}, "metadata": {"id": "7"}, "tools": [{"id": "x", "type": "y"}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": '{"type":"item_reference","id":"no"}'}]}],
    })  # fmt: skip

    assert found(body, "responses") == []
    assert walked(b'{"input":[{"type":"item_reference","id":"x"}]}', "evals") == []


@rows(
    "body",
    [
        b"[" + b'{"file_id":"x"},' * 60_000 + b"1]",
        b'{"file_id":"x","file_id":"y","data":[' + b"1," * 30_000 + b"1]}",
    ],
)
def test_a_body_that_takes_long_to_read_may_name_nothing(body: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        found(body, "threads")
    assert caught.value.code in ("body_too_complex", "duplicate_field")


def test_lines_of_a_batch_name_ids_each_by_its_endpoint() -> None:
    lines = [
        {"url": "/v1/responses", "body": {"previous_response_id": "1", "metadata": {"file_id": "no"}}},
        {
            "url": "/v1/chat/completions",
            "body": {"messages": [{"content": [{"file": {"file_id": "2"}}]}], "thread_id": "soft"},
        },
        {"custom_id": "a", "file_id": "not in the body", "url": "/v1/responses", "body": {"input": [{"id": "3"}]}},
    ]
    text = b"\n".join(
        [orjson.dumps(line) for line in lines]
        + [b"", b"no JSON", b'{"Body":{"conversation":"4"},"URL":"/v1/responses"}']
    )
    form = (
        b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n' + text + b"\r\n--b--\r\n"
    )

    ids = walked(form, "files", content_type=b"multipart/form-data; boundary=b")

    assert {one.id for one in ids if one.is_known_place} == {"1", "2", "3", "4"}
    assert {one.id for one in ids if not one.is_known_place} == {"soft"}


@rows("break_", [b"\r", b" \r ", b"\x1e"])
def test_no_break_of_a_line_leads_around(break_: bytes) -> None:
    """Another reader may take it for the end of a line, or for white space."""
    line = b'{"url":"/v1/responses","body":' + break_ + b'{"conversation":"ID"}}'
    two = b'{"url":"/v1/responses","body":{}}' + break_ + b'{"url":"/v1/responses","body":{"conversation":"ID"}}'
    for text in (line, two):
        try:
            ids = [one for one in ids_in_line(text) if one is not None]
        except InvalidRequest:
            continue
        assert [one.id for one in ids] == ["ID"]


def test_a_cursor_is_an_id_as_well() -> None:
    found = [*ids_in_path(ObjectAccess(ObjectPath("files"), "GET"), b"limit=2&after=file-1&before=file-2&order=asc")]

    assert found == ["file-1", "file-2"]


def test_ids_of_two_providers_are_two() -> None:
    one, two = scope_of("https://api.openai.com/v1"), scope_of("http://vllm:8000/v1")

    assert key_of(one, "x") != key_of(two, "x")
    assert scope_of("https://API.openai.com/v1/") == one


def test_tenants_below_one_that_names_others_are_known() -> None:
    rules = ObjectRules({}, tenants=frozenset(("a", "team/x")), named=frozenset(("team/x",)))

    assert [rules.knows(name) for name in ("a", "team/x", "team/x/bob", "team", "a/bob")] == [
        True,
        True,
        True,
        False,
        False,
    ]


# --- answers ---


@rows(
    ("place", "method", "answer", "ids"),
    [
        (ObjectPath("files"), "POST", {"id": "f"}, ["f"]),
        (ObjectPath("files", "f"), "GET", {"id": "f", "output_file_id": "g"}, []),
        (ObjectPath("batches", "b"), "GET", {"id": "b", "output_file_id": "o", "error_file_id": None}, ["o"]),
        (ObjectPath("batches", "b", "cancel"), "POST", {"id": "b", "error_file_id": "e"}, ["e"]),
        (ObjectPath("threads", verb="runs"), "POST", {"id": "run", "thread_id": "t"}, ["t"]),
        (ObjectPath("threads", "t", "messages"), "POST", {"id": "msg"}, []),
        (ObjectPath("uploads", "u", "complete"), "POST", {"id": "u", "file": {"id": "f"}}, ["f"]),
        (ObjectPath("videos", "v", "remix"), "POST", {"id": "w"}, ["w"]),
        (
            ObjectPath("threads"),
            "POST",
            {"id": "t", "tool_resources": {"file_search": {"vector_store_ids": ["vs"]}}},
            ["t", "vs"],
        ),
        (
            ObjectPath("responses", "r"),
            "GET",
            {"output": [{"type": "code_interpreter_call", "container_id": "c"}]},
            ["c"],
        ),
        (ObjectPath("responses", "r"), "GET", {"output": [{"type": "message", "container_id": "c"}, None, 1]}, []),
        (ObjectPath("files"), "POST", {"id": {"x": 1}}, []),
        (
            ObjectPath("responses"),
            "POST",
            {"id": "r", "output": [{"id": "rs_1", "type": "reasoning"}, {"id": "msg_1", "content": [{"id": "x"}]}]},
            ["r", "rs_1", "msg_1"],
        ),
        (ObjectPath("responses", "r", "input_items"), "GET", {"data": [{"id": "msg_1"}]}, []),
        (MESSAGES, "POST", {"id": "msg_1", "container": {"id": "no"}}, ["msg_1"]),
    ],
)
def test_answers_name_what_becomes_the_tenants(
    place: ObjectPath, method: str, answer: dict[str, Any], ids: list[str]
) -> None:
    assert ids_in_answer(ObjectAccess(place, method), answer) == ids


@given(data=st.data())
def test_a_stream_names_its_response_however_it_is_cut(data: st.DataObject) -> None:
    """Before the cut behind the event, for whoever has all of the event has the id."""
    event = orjson.dumps(
        {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "x": "y" * 30}}
    )
    later = orjson.dumps({"type": "x", "response": {"id": "resp_2"}})
    stream = b"event: response.created\ndata: " + event + b"\n\nevent: x\ndata: " + later + b"\n\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    announced, found = Announcements(ObjectAccess(RESPONSES)), list[str]()

    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += announced.read(stream[start:end])
        if end > stream.index(b"\n\n") + 1:
            assert found == ["resp_1"]

    assert found == ["resp_1"]


def test_a_stream_names_the_message_from_which_a_thread_goes_on() -> None:
    event = b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_1","type":"message"}}\n\n'

    assert Announcements(ObjectAccess(MESSAGES)).read(event) == ["msg_1"]
    assert walked(b'{"thread":{"previous_message_id":"msg_1"}}', "messages") == [
        NamedId("msg_1", "previous_message_id", is_known_place=True)
    ]


def test_a_stream_names_each_of_its_items_once() -> None:
    """When it is added, or in whichever event it comes first."""
    item = {"id": "msg_1", "type": "message", "content": []}
    events = [
        {"type": "response.created", "response": {"id": "resp_1", "output": []}},
        {"type": "response.output_item.added", "item": item},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": '"item": {"id": "no"}'},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "output": [item, {"id": "rs_1"}]}},
    ]
    for concern, own in (
        (ObjectAccess(RESPONSES), ["resp_1"]),
        (ObjectAccess(ObjectPath("responses", "resp_1"), "GET"), []),
    ):
        announced = Announcements(concern)
        found = [announced.read(b"data: %b\n\n" % orjson.dumps(event)) for event in events]

        assert found == [own, ["msg_1"], [], [], ["rs_1"]]


@given(
    owned=st.lists(st.booleans(), max_size=260),
    limit=st.integers(1, 30),
    size=st.integers(1, 30),
)
def test_pages_of_ones_own_are_complete_and_true(owned: list[bool], limit: int, size: int) -> None:
    """From page to page each of one's own is shown once, in order, and `has_more` says so, unless ten were in vain."""
    everything = [{"id": f"{number}", "own": own} for number, own in enumerate(owned)]
    shown, after, in_vain = list[str](), None, False
    for _ in range(len(owned) + 2):
        query = f"limit={limit}" + ("" if after is None else f"&after={after}")
        said, pages = walk(everything, query, size)
        assert pages <= 10
        assert len(said["data"]) <= limit
        shown += [one["id"] for one in said["data"]]
        assert (said["first_id"], said["last_id"]) == (
            (said["data"][0]["id"], said["data"][-1]["id"]) if said["data"] else (None, None)
        )
        in_vain = said["has_more"] and not said["data"]
        if not said["has_more"] or in_vain:
            break
        after = said["last_id"]

    own = [one["id"] for one in everything if one["own"]]
    assert shown == (own[: len(shown)] if in_vain else own)


def walk(everything: list[dict[str, Any]], query: str, size: int) -> tuple[dict[str, Any], int]:
    """One page of one's own, from a provider whose pages have `size` at most."""
    filling, asked = Filling(query.encode()), query.encode()
    while True:
        fields = dict(pair.split("=") for pair in asked.decode().split("&"))
        start = int(fields["after"]) + 1 if "after" in fields else 0
        count = min(int(fields["limit"]), size)
        items = everything[start : start + count]
        told = {"data": items, "has_more": start + count < len(everything), "first_id": 0, "last_id": 0}
        page = read_page(orjson.dumps(told))
        assert isinstance(page, Page)
        filling.add(page, [one["own"] for one in page.items])
        following = filling.next_query
        if following is None:
            said: dict[str, Any] = orjson.loads(filling.body())
            return said, filling.pages
        asked = following
