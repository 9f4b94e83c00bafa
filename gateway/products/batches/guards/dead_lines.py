"""Lines of batches that become dead letters, as `dead_letters.lines` says: of what killed its processes, and of what failed for
now as often as it was tried. All others are their caller's, in the error file.
"""

from __future__ import annotations

from contextlib import suppress

import orjson

from gateway.products.batches.chunk.chunk_input.chunk_input import InputLine
from gateway.products.batches.input.lines import read_custom_id
from gateway.products.batches.output.marks import ENDPOINT, INPUT
from gateway.products.batches.output.output import LineIdentity, unanswered_line
from gateway.products.jobs.dead_letters.rules.jobs_dead_letters import POISON, DeadLetter, letter_of_line
from gateway.products.jobs.model.ids import line_id
from gateway.products.jobs.model.job import Job, JobError
from gateway.products.jobs.model.lines import LineResult

WHY = "The gateway died several times while it served this request; it is not tried again."


def given_up(job: Job, line: InputLine) -> LineResult:
    """Returns the result of a line that has killed its processes."""
    custom_id = ""
    with suppress(ValueError):
        custom_id = read_custom_id(line.text)
    return unanswered_line(LineIdentity(line.number, line_id(job.id, line.number), custom_id), POISON, WHY)


def deadly_letter(job: Job, line: InputLine, crashes: int, now: float) -> DeadLetter:
    """Returns the dead letter of a line that has killed so many processes."""
    return failed_letter(job, line, JobError(POISON, WHY, now), crashes)


def failed_letter(job: Job, line: InputLine, error: JobError, attempts: int) -> DeadLetter:
    """Returns the dead letter of a line that has failed so often."""
    model = ""
    with suppress(ValueError, KeyError, TypeError):
        model = str(orjson.loads(line.text)["body"]["model"])
    source = {
        "blob": job.about[INPUT],
        "offset": line.offset,
        "length": len(line.text),
        "endpoint": job.about[ENDPOINT],
        "key": job.key,
        "lane": job.lane,
        "segment": job.segment,
    }
    return letter_of_line(job, line.number, model, source, error, attempts)
