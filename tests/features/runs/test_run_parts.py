"""Which part of which run a call is: headers, then baggage, then metadata; what is no id is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.features.runs.rules import WorkflowRules
from gateway.features.runs.step import is_id, outcome_in, part_of, run_words, task_of_step, without_own_members
from tests.rows import rows

INVOICE = WorkflowRules("invoice", ("extract", "check"))


@rows(
    ("headers", "metadata", "words"),
    [
        ({"run": "2026-11-22/4711"}, None, ("", "2026-11-22/4711", "")),
        ({"workflow": "invoice", "run": "r", "task": "t"}, None, ("invoice", "r", "t")),
        ({"run": "r", "step": "summarise[3]"}, None, ("", "r", "summarise")),
        ({"run": "r", "step": "a[1][2]"}, None, ("", "r", "a[1]")),
        ({"run": "r", "step": "[3]"}, None, ("", "r", "[3]")),
        ({"run": "r", "step": "summarise[3]", "task": "t"}, None, ("", "r", "t")),
        ({}, {"workflow": "w", "run": "r", "task": "t", "other": 1}, ("w", "r", "t")),
        ({"run": "h"}, {"workflow": "w", "run": "r"}, ("w", "h", "")),
        ({}, {"run": "two words", "task": 7, "workflow": ["w"]}, ("", "", "")),
        ({}, "run", ("", "", "")),
        ({"baggage": "a=b,x-gateway-run=2026%2F47;ttl=1 , X-Gateway-Task = t"}, {"run": "m"}, ("", "2026/47", "t")),
        ({"baggage": "x-gateway-step=s%5B1%5D", "run": "h"}, None, ("", "h", "s")),
        ({"baggage": "run=r,userId=1"}, None, ("", "", "")),
    ],
)
def test_the_nearest_word_holds(headers: dict[str, str], metadata: Any, words: tuple[str, str, str]) -> None:
    index = {(name if name == "baggage" else f"x-gateway-{name}").encode(): v.encode() for name, v in headers.items()}
    assert run_words(index, metadata) == words


@pytest.mark.parametrize("name", ["workflow", "run", "task", "step"])
@pytest.mark.parametrize("bad", [b"", b"a b", b"x" * 129, b"caf\xc3\xa9", b"a\x00", b"{r}"])
def test_what_is_no_id_is_refused_by_the_name_of_its_header(name: str, bad: bytes) -> None:
    header = f"x-gateway-{name}"
    with pytest.raises(InvalidRequest, match=header) as refused:
        run_words({header.encode(): bad})
    assert refused.value.param == header
    with pytest.raises(InvalidRequest, match="baggage"):
        run_words({b"baggage": header.encode() + b"=a%20b"})


@given(st.text())
def test_an_id_is_a_header_a_path_and_a_task(text: str) -> None:
    if is_id(text):
        assert run_words({b"x-gateway-run": text.encode()}).run == text
        assert is_id(task_of_step(text))


def test_only_declared_names_are_labels() -> None:
    declared = {"invoice": INVOICE}
    for said, labels in {
        ("invoice", "extract"): ("invoice", "extract"),
        ("invoice", "nope"): ("invoice", "other"),
        ("invoice", ""): ("invoice", "other"),
        ("nope", "extract"): ("other", "other"),
        ("", "extract"): ("other", "other"),
    }.items():
        part = part_of(run_words({b"x-gateway-run": b"r"})._replace(workflow=said[0], task=said[1]), declared)
        assert part is not None
        assert part.labels == labels
    assert part_of(run_words({}), declared) is None
    fixed = part_of(run_words({b"x-gateway-workflow": b"nope"}), declared, "invoice")
    assert fixed is not None
    assert fixed.rules is INVOICE


def test_a_last_call_tells_an_outcome_of_a_run_that_it_names() -> None:
    part = part_of(run_words({b"x-gateway-run": b"r"}), {})
    assert outcome_in({b"x-gateway-run-outcome": b"failed"}, part) == "failed"
    for index, of in (({b"x-gateway-run-outcome": b"done"}, part), ({b"x-gateway-run-outcome": b"failed"}, None)):
        with pytest.raises(InvalidRequest, match="x-gateway-run-outcome"):
            outcome_in(index, of)


def test_what_is_meant_for_the_gateway_goes_no_further() -> None:
    assert without_own_members(b"a=b, x-gateway-run=r;p=1 ,X-Gateway-Workflow=w,c=d;e") == b"a=b,c=d;e"
    assert without_own_members(b"x-gateway-run=r") == b""
