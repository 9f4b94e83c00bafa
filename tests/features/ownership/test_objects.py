"""Which requests are about objects of a provider, which ids they name, and what their answers say."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.features.ownership.rules.objects import (
    MESSAGES,
    RESPONSES,
    ObjectAccess,
    ObjectPath,
    ids_in_path,
    key_of,
    read_path,
    scope_of,
)
from gateway.features.ownership.rules.rules import FIELDS, TREE_BYTES, ObjectRules, ids_in_body, may_name
from gateway.features.ownership.service import Announcements, Filling, Page, ids_in_answer, read_page
from tests.rows import rows

JSON = b"application/json"


def named(body: bytes, content_type: bytes = JSON) -> set[str]:
    assert may_name(body, content_type)
    return {one[0] for one in ids_in_body(body, None, content_type) if one is not None}


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


@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "type", "tools", "x_id"]), inner)
        ),
        max_leaves=12,
    ),
    field=st.sampled_from(sorted(FIELDS)),
    as_list=st.booleans(),
    upper=st.booleans(),
)
def test_whatever_stands_around_it_an_id_is_found(body: Any, field: str, as_list: bool, upper: bool) -> None:
    """In a tree, and where the same body is so large that it is only searched."""
    value = ["id-1", "id-2"] if as_list else "id-1"
    tree = {"before": body, "deep": [{"deeper": {field.upper() if upper else field: value, "after": body}}]}
    expected = {"id-1", "id-2"} if as_list else {"id-1"}

    assert named(orjson.dumps(tree)) >= expected
    assert named(orjson.dumps(tree, option=orjson.OPT_INDENT_2)) >= expected
    assert named(orjson.dumps({**tree, "padding": "x" * TREE_BYTES})) >= expected


@given(text=st.text(max_size=40))
def test_words_in_a_text_are_no_ids(text: str) -> None:
    body = orjson.dumps({"input": f'"file_id": "no" {text} "vector_store_ids": ["no"]', "padding": "x" * TREE_BYTES})

    assert named(body) == set()


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


def items_named(body: bytes, parsed: dict[str, Any] | None = None) -> set[str]:
    return {one[0] for one in ids_in_body(body, parsed, JSON, has_items=True) if one is not None}


def sent_as(how: str, item: Any, id: str, field: str = "input") -> set[str]:
    other = {"id": "rs_other", "type": "reasoning", "summary": [], "encrypted_content": "g"}
    tree = orjson.loads(orjson.dumps({"model": "m", field: [other, item, other]}).replace(b"ID", id.encode()))
    if how.startswith("large"):
        tree["padding"] = "x" * TREE_BYTES
    body = orjson.dumps(tree, option=orjson.OPT_INDENT_2 if how == "spaced" else None)
    return items_named(body, tree if how == "large, parsed" else None)


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


@rows("padding", [b"", b"x" * TREE_BYTES])
@rows(
    "item",
    [
        b'{"type":"item_reference","id":"ID","id":"own"}',
        b'{"type":"item_reference","id":"own","id":"ID"}',
        b'{"type":"message","id":"ID","type":"item_reference"}',
        b'{"type":"item_reference","type":"message","id":"ID"}',
        b'{"Type":"Item_Reference","ID":"ID"}',
        b'{"type":"item_\\u0072eference","id":"ID"}',
        b'{"\\u0074ype":"item_reference","id":"ID"}',
        b'{"type":"item_reference","x":{},"id":"ID"}',
        b'{"x":{"id":"own"},"id":"ID","type":"item_reference"}',
        b'{"id":"ID","x":{"id":"own"},"type":"item_reference"}',
        b'{"type" \n:    \t                        "item_reference","id":"ID"}',
        b'{"type":' + b" " * 9_000 + b'"item_reference","id":"ID"}',
        b'{"type"' + b" " * 9_000 + b':"item_reference","id":"ID"}',
        b'{"type":"reasoning","id":"rs_ID","summary":[]},{"encrypted_content":"g","type":"reasoning","id":"rs_2"}',
        b'{"type":"reasoning","id":"rs_ID","id":"rs_2","encrypted_content":"g"}',
    ],
)
def test_no_spelling_of_an_item_leads_around(item: bytes, padding: bytes) -> None:
    """It is found, or it is refused."""
    body = b'{"model":"m","input":[%b],"p":"%b"}' % (item, padding)
    try:
        found = items_named(body)
    except InvalidRequest:
        return
    assert any(id.endswith("ID") for id in found)


def test_an_input_that_is_written_twice_is_read_twice() -> None:
    body = b'{"input":[{"type":"item_reference","id":"ID"}],"input":"hello"}'

    assert items_named(body) == {"ID"}
    assert items_named(body[:-1] + b',"p":"' + b"x" * TREE_BYTES + b'"}', {"input": "hello", "p": ""}) >= {"ID"}


def test_what_is_no_item_is_not_looked_at() -> None:
    """A stored prompt, metadata, words; an eval's references are to its own data."""
    body = orjson.dumps({
        "prompt": {"id": "pmpt_1"}, "metadata": {"id": "7"}, "tools": [{"id": "x", "type": "y"}],
        "input": [{"role": "user", "content": [{"type": "input_text", "text": '{"type":"item_reference","id":"no"}'}]}],
    })  # fmt: skip

    assert items_named(body) == set()
    assert items_named(body[:-1] + b',"p":"' + b"x" * TREE_BYTES + b'"}') == set()
    assert set(ids_in_body(b'{"input":[{"type":"item_reference","id":"x"}]}', None, JSON)) == set()


@pytest.mark.parametrize("size", [0, TREE_BYTES])
def test_very_many_are_refused(size: int) -> None:
    body = orjson.dumps([{"file_id": str(number)} for number in range(6000)] + [{"x": "x" * TREE_BYTES}])

    with pytest.raises(InvalidRequest):
        named(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"file_id"' + b" " * 300_000 + b': "x"}',
        b'{"file_id":' + b" " * 300_000 + b'"x"}',
        b'{"f\\u0069le_id": "x", "p": "' + b"x" * 300_000 + b'"}',
        b'{"file_ids": ["' + b"x" * 600_000 + b'"]}',
    ],
)
def test_what_hides_an_id_in_a_large_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        named(body)


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
    assert [*ids_in_body(b'{"thread":{"previous_message_id":"msg_1"}}', None, b"")] == [
        ("msg_1", "previous_message_id")
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
