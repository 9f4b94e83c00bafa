"""`gateway batch run`: from a file of requests to the files of their answers.

The batch is the gateway's: it goes on whatever becomes of this process, and this command prints how to find it again.
Where no gateway runs, this process is one until the batch has ended.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from gateway.cli.main import FAILED, INTERRUPTED, OK, UNUSABLE, fail
from gateway.cli.operate import AdminRefused, safe, save
from gateway.products.jobs import cli as caller
from gateway.products.jobs.cli import CallerAnswer, CallerClient, ProgressLine, caller_for, patiently

ENDS = frozenset({"completed", "failed", "cancelled", "expired"})
POLL_S = 5.0
"""Where the gateway does not say when to ask again."""
_BATCH_ID = re.compile(r"batch_\w+")


def run(options: argparse.Namespace) -> int:
    """Runs a file as a batch, and writes its answers."""
    if not options.file.name:
        return fail(f"{options.file} is no file", UNUSABLE)
    stem = options.file.with_suffix("") if options.file.suffix == ".jsonl" else options.file
    output = options.output or stem.with_name(f"{stem.name}.output.jsonl")
    errors = options.errors or stem.with_name(f"{stem.name}.errors.jsonl")
    if output == errors:
        return fail("--output and --errors are one file; name two", UNUSABLE)
    for place, flag in ((output, "--output"), (errors, "--errors")):
        if place.exists():
            return fail(f"{place} is there already; name another file by {flag}", UNUSABLE)
    progress = ProgressLine(sys.stderr)
    try:
        if not _is_batch(options.file):
            caller.check_input(options.file)
        with caller_for(options, progress) as (client, is_own):
            batch = _begin(client, options, progress)
            return FollowedBatch(client, batch["id"], progress, options, is_own=is_own).to_its_end(output, errors)
    except AdminRefused as error:
        progress.clear()
        return fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    except KeyboardInterrupt:
        progress.clear()
        return fail("interrupted before the batch was known to be made; gateway jobs ls shows if it is", INTERRUPTED)


def _begin(client: CallerClient, options: argparse.Namespace, progress: ProgressLine) -> dict[str, Any]:
    """Uploads the file, and makes the batch; one that is named instead of a file is gone on with."""
    if _is_batch(options.file):
        return patiently(lambda: client.request("GET", f"batches/{options.file}").fields, progress)
    progress.show(f"uploading {safe(options.file)}")
    file = client.upload(options.file)
    body = {"input_file_id": file["id"], "endpoint": options.endpoint, "completion_window": options.window}
    once = {"idempotency-key": str(uuid.uuid4())}  # asked again, it is the same batch
    return patiently(lambda: client.request("POST", "batches", body, once).fields, progress)


def _is_batch(file: Path) -> bool:
    """Returns whether the id of a batch was named in the place of a file."""
    return _BATCH_ID.fullmatch(str(file)) is not None and not file.exists()


class FollowedBatch:
    """A batch that somebody waits for."""

    def __init__(
        self,
        client: CallerClient,
        batch_id: str,
        progress: ProgressLine,
        options: argparse.Namespace,
        *,
        is_own: bool,
    ) -> None:
        self._client = client
        self._id = batch_id
        self._progress = progress
        self._cancels = options.cancel_on_interrupt
        self._prints_json = options.json
        self._where = "".join(f" --{name} {given}" for name in ("url", "config") if (given := getattr(options, name)))
        self._is_own = is_own

    def to_its_end(self, output: Path, errors: Path) -> int:
        """Waits for the end, writes the files, and returns the exit code."""
        is_interrupted = False
        try:
            try:
                batch = self._end()
            except KeyboardInterrupt:
                if not self._cancels:
                    raise
                is_interrupted = True
                self._cancel()
                batch = self._end()
            return self._finish(batch, output, errors, is_interrupted=is_interrupted)
        except KeyboardInterrupt:
            self._progress.clear()
            if self._is_own:
                return fail(f"{self._id} is kept in the jobs file; {self._ways_on()}", INTERRUPTED)
            how = "is stopping" if is_interrupted else "goes on"
            return fail(f"{self._id} {how} at the gateway; {self._ways_on()}", INTERRUPTED)
        except (AdminRefused, OSError) as error:
            self._progress.clear()
            return fail(f"{_sentence_of(error)}; {self._id} is kept at the gateway; {self._ways_on()}", FAILED)

    def _end(self) -> dict[str, Any]:
        while True:
            answer = patiently(self._look, self._progress)
            batch = answer.fields
            self._progress.show(caller.batch_progress(batch, answer.paused))
            if batch["status"] in ENDS:
                return batch
            time.sleep(POLL_S if answer.poll_after_s is None else answer.poll_after_s)

    def _look(self) -> CallerAnswer:
        return self._client.request("GET", f"batches/{self._id}")

    def _cancel(self) -> None:
        try:
            patiently(lambda: self._client.request("POST", f"batches/{self._id}/cancel"), self._progress)
        except AdminRefused as error:
            if not error.is_misuse:  # else it has ended meanwhile, as the next look tells
                raise

    def _finish(self, batch: dict[str, Any], output: Path, errors: Path, *, is_interrupted: bool) -> int:
        """Writes the files that there are, says how it ended, and returns the exit code."""
        written = [
            self._fetch(batch[field], place) for field, place in (("output_file_id", output), ("error_file_id", errors))
        ]
        self._progress.clear()
        if self._prints_json:
            print(json.dumps(batch, indent=2))
        if batch["status"] == "failed":
            return fail(caller.batch_problems(batch), UNUSABLE)
        if not self._prints_json:
            print(caller.batch_end(batch, *written))
        if is_interrupted:
            return INTERRUPTED
        return OK if batch["status"] == "completed" and not batch["request_counts"]["failed"] else FAILED

    def _fetch(self, file_id: str | None, place: Path) -> str | None:
        """Writes a file of the batch, whole or not at all, and returns its path; None: there is none."""
        if file_id is None:
            return None
        patiently(lambda: save(self._client.content(file_id), place, lambda _: None), self._progress)
        return safe(place)

    def _ways_on(self) -> str:
        if self._is_own:
            again = f"'gateway batch run {self._id}{self._where}'"
            return f"{again} goes on with it, and so does a gateway that starts by this config"
        return (
            f"'gateway jobs show {self._id}{self._where}' tells how far it is and where its answers are, "
            f"'gateway jobs cancel {self._id}{self._where}' stops it"
        )


def _sentence_of(error: AdminRefused | OSError) -> str:
    if isinstance(error, AdminRefused):
        return error.message
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
