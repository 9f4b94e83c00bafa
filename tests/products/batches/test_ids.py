"""Ids of files, batches and jobs, and how a batch is divided."""

from __future__ import annotations

import re
from random import Random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.products.batches.input import lines_of, plan_chunks
from gateway.products.jobs.model import (
    BATCH,
    FILE,
    JOB,
    RUN,
    Mark,
    batches_of_file,
    derived_child_id,
    derived_file_id,
    is_ours,
    line_id,
    new_id,
)
from gateway.products.jobs.rules import BatchRules

MARKS: tuple[Mark, ...] = (FILE, BATCH, JOB, RUN)


@given(st.sampled_from(MARKS), st.binary(min_size=16, max_size=32))
def test_an_id_is_known_as_ours_and_as_nothing_else(mark: Mark, draw: bytes) -> None:
    """22 letters and digits behind its mark."""
    id = new_id(mark, draw)

    assert re.fullmatch(mark + "[0-9A-Za-z]{22}", id)
    assert [other for other in MARKS if is_ours(other, id)] == [mark]


def test_a_providers_id_passes_for_ours_by_no_chance_to_speak_of() -> None:
    """OpenAI's files have 24 letters and digits, too, and one in four thousand begins with our mark."""
    draw = Random(7)

    assert not any(is_ours(FILE, FILE + "".join(draw.choices(ascii_letters + digits, k=22))) for _ in range(5000))


def test_the_children_of_runs_have_ids_of_their_own() -> None:
    """Always the same, by run, step and attempt; a step's name may look like the others' parts."""
    asked = [("run_gw1", "a", 1), ("run_gw1", "a", 11), ("run_gw1", "a1", 1), ("run_gw2", "a", 1), ("run_gw1", "b", 1)]
    ids = [derived_child_id(JOB, *one) for one in asked]

    assert all(is_ours(JOB, id) for id in ids)
    assert len(set(ids)) == len(ids)
    assert ids == [derived_child_id(JOB, *one) for one in asked]
    assert is_ours(BATCH, derived_child_id(BATCH, *asked[0]))


def test_ids_of_other_forms_are_not_ours() -> None:
    """Shorter, longer, with a line end, or none at all."""
    good = new_id(FILE, bytes(16))

    assert not any(is_ours(FILE, id) for id in ("", "file-abc", good[:-1], good + "0", good + "\n", " " + good))


def test_the_files_of_a_batch_have_the_same_ids_always() -> None:
    """So that finalising twice makes no second file."""
    batch = new_id(BATCH, bytes(16))
    other = new_id(BATCH, bytes(15) + b"\1")

    ids = [derived_file_id(one, role) for one in (batch, other) for role in ("output", "errors")]

    assert ids == [derived_file_id(one, role) for one in (batch, other) for role in ("output", "errors")]
    assert len({*ids}) == 4
    assert all(is_ours(FILE, id) for id in ids)


def test_the_ids_of_a_batchs_files_are_those_that_earlier_versions_gave_them() -> None:
    """A batch that was begun before an update ends after it."""
    batch = "batch_gwnqiv8iOlFFDhJJRoEV6sdR"

    assert derived_file_id(batch, "output") == "file-gwjWAVTtLcP71JccIooYinja"
    assert derived_file_id(batch, "errors") == "file-gwnu577XrO7hbR8oM6xz14wY"


@given(st.binary(min_size=16, max_size=16))
def test_a_batch_is_known_by_the_ids_of_its_files(draw: bytes) -> None:
    """Before there are any; other ids lead to batches that nobody has, and none to itself."""
    batch = new_id(BATCH, draw)

    for role in ("output", "errors"):
        found = batches_of_file(derived_file_id(batch, role))
        assert (batch, role) in found
        assert len(found) == 2
        assert all(is_ours(BATCH, one) for one, _ in found)
    assert not any(one == batch for one, _ in batches_of_file(new_id(FILE, draw)))
    assert [*batches_of_file(batch), *batches_of_file("file-abc")] == []
    with pytest.raises(ValueError, match="batch_gw"):
        derived_file_id("batch_1", "output")


def test_ids_of_lines_sort_like_the_lines() -> None:
    """And begin with the batch's own."""
    batch = new_id(BATCH, b"x" * 16)

    assert sorted(line_id(batch, line) for line in (49_999, 0, 7, 123)) == [
        line_id(batch, line) for line in (0, 7, 123, 49_999)
    ]
    assert line_id(batch, 0).startswith("batch_req_" + batch.removeprefix(BATCH))


@given(st.integers(1, 100_000), st.integers(1, 8))
def test_chunks_hold_every_line_once(total: int, parallel: int) -> None:
    """Each but the last has clamp(total / 64, 16, 256) lines, rounded up."""
    plan = plan_chunks(total, BatchRules(parallel_chunks=parallel))

    lines = [line for chunk in range(plan.chunks) for line in lines_of(plan, chunk)]

    assert lines == list(range(total))
    assert plan.lines_per_chunk == min(max(-(-total // 64), 16), 256)
    assert all(len(lines_of(plan, chunk)) == plan.lines_per_chunk for chunk in range(plan.chunks - 1))
    assert plan.parallel == parallel


@given(st.integers(0, 2**128 - 1))
def test_the_letters_of_an_id_are_the_lowest_digits_of_its_number(number: int) -> None:
    """The lowest first; so ids that follow from others are those of earlier versions."""
    alphabet = digits + ascii_uppercase + ascii_lowercase

    body = new_id(BATCH, number.to_bytes(16)).removeprefix(BATCH)[:19]

    assert body == "".join(alphabet[number // 62**place % 62] for place in range(19))
