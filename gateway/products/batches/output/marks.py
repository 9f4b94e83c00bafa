"""Where a batch remembers what its pieces need of each other: the names in its `about` and `marks`, in one place."""

from __future__ import annotations

from typing import Any, Final

from gateway.products.jobs.model.job import Job
from gateway.products.jobs.model.lines import ChunkPlan

INPUT_FILE: Final = "input_file_id"
"""In `about`: as the caller named it."""
INPUT: Final = "input"
"""In `about`: the blob of the input file."""
ENDPOINT: Final = "endpoint"
"""In `about`: such as `/v1/chat/completions`."""
WINDOW: Final = "completion_window"
"""In `about`: as the caller wrote it."""
METADATA: Final = "metadata"
OUTPUT_LASTS_S: Final = "output_lasts_s"
"""In `about`: for how long the output files are kept, where the caller says so."""
BROUGHT_CREDENTIAL: Final = "brought_credential"
"""In `about`: the caller had a credential of its own, which is not stored."""
INDEX: Final = "index"
"""In `marks`, once checked: the blob that says where each line is."""
LINES_PER_CHUNK: Final = "lines_per_chunk"
PARALLEL: Final = "parallel_chunks"
MODELS: Final = "models"
"""In `marks`, once checked: the models of its lines, numbered as the index does."""
ERRORS: Final = "errors"
"""In `marks`: what is wrong with the input, as a batch shows it."""
OUTPUT_FILE: Final = "output_file_id"
ERROR_FILE: Final = "error_file_id"
IN_PROGRESS_AT: Final = "in_progress_at"
FINALIZING_AT: Final = "finalizing_at"
BRAKED_BY: Final = "braked_by"
"""In `marks`: the class of errors for which only single lines are tried; absent: nothing keeps it."""
NATIVE: Final = "native"
"""In `marks`: its chunks may go to a provider's own Batch API, each as a part; `native.N` says how far chunk N has come."""
CANCELLING_AT: Final = "cancelling_at"
"""In `marks`: when it was asked to stop, as the store notes it."""


def plan_of(job: Job) -> ChunkPlan:
    """Returns the division of a checked batch."""
    return ChunkPlan(job.tally.total, job.marks[LINES_PER_CHUNK], job.marks.get(PARALLEL, 1))


def batch_folder(job_id: str) -> str:
    """Returns what the names of all blobs begin with that a batch needs on its way."""
    return f"batch/{job_id}"


def batch_of_blob(name: str) -> str:
    """Returns the batch that needs a blob on its way; empty: it is no batch's."""
    kind, _, rest = name.partition("/")
    return rest.partition("/")[0] if kind == "batch" else ""


def index_blob(job_id: str) -> str:
    """Returns the name of the blob that says where each line of a batch's input is."""
    return f"{batch_folder(job_id)}/index"


def part_mark(chunk: int) -> str:
    """Returns the name of the mark that says how far a chunk has come at a provider."""
    return f"{NATIVE}.{chunk}"


def parts_of(job: Job) -> dict[int, dict[str, Any]]:
    """Returns the marks of all chunks that have been on the way to a provider."""
    begin = f"{NATIVE}."
    return {int(name.removeprefix(begin)): mark for name, mark in job.marks.items() if name.startswith(begin)}


def part_blob(job_id: str, chunk: int) -> str:
    """Returns the name of the blob with a chunk's lines as a provider gets them."""
    return f"{batch_folder(job_id)}/{chunk:06d}.part.jsonl"


def chunk_blob(job_id: str, chunk: int, fence: int, kind: str) -> str:
    """Returns the name of a chunk's blob, `kind` being output or errors; each claim of a chunk writes blobs of its own."""
    return f"{batch_folder(job_id)}/{chunk:06d}.{fence}.{kind}"
