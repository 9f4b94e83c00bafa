"""Where a batch remembers what its pieces need of each other: the names in its `about` and `marks`, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.policy.jobs.job import ChunkPlan, Job

INPUT_FILE: Final = "input_file_id"
"""In `about`: as the caller named it."""
INPUT: Final = "input"
"""In `about`: the blob of the input file."""
ENDPOINT: Final = "endpoint"
"""In `about`: such as `/v1/chat/completions`."""
INDEX: Final = "index"
"""In `marks`, once checked: the blob that says where each line is."""
LINES_PER_CHUNK: Final = "lines_per_chunk"
PARALLEL: Final = "parallel_chunks"
MODELS: Final = "models"
"""In `marks`, once checked: the models of its lines, numbered as the index does."""


def plan_of(job: Job) -> ChunkPlan:
    """Returns the division of a checked batch."""
    return ChunkPlan(job.tally.total, job.marks[LINES_PER_CHUNK], job.marks.get(PARALLEL, 1))


def models_of(job: Job) -> Sequence[str]:
    """Returns the models of a checked batch."""
    models: Sequence[str] = job.marks.get(MODELS, ())
    return models


def chunk_blob(job_id: str, chunk: int, fence: int, kind: str) -> str:
    """Returns the name of a chunk's blob, `kind` being output or errors; each claim of a chunk writes blobs of its own."""
    return f"batch/{job_id}/{chunk:06d}.{fence}.{kind}"
