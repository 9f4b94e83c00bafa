"""The arguments of `gateway batch`."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.products.jobs.cli_arguments import add_caller_or_own


def add_batch(command: argparse.ArgumentParser) -> None:
    """Adds what `gateway batch` takes."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser(
        "run",
        help="upload a file of requests, wait for its end, fetch the answers",
        description="Upload a file of requests, make a batch of it, wait for its end, and write its answers beside it."
        " The batch goes on if this command is stopped. Where no gateway runs, this process is one as long as it takes."
        " Exit code: 0 if every line is answered, 1 if not, 2 if FILE is wrong.",
    )
    action.add_argument("file", type=Path, metavar="FILE", help="a .jsonl with a request a line, or the id of a batch")
    action.add_argument("--endpoint", default="/v1/chat/completions", help="of its lines (default: %(default)s)")
    action.add_argument("--window", default="24h", help="it has so long: 10m to 7d (default: %(default)s)")
    action.add_argument(
        "--output", type=Path, metavar="PATH", help="of the answers (default: FILE's name.output.jsonl)"
    )
    action.add_argument(
        "--errors", type=Path, metavar="PATH", help="of failed lines (default: FILE's name.errors.jsonl)"
    )
    action.add_argument("--cancel-on-interrupt", action="store_true", help="Ctrl-C stops the batch, too")
    add_caller_or_own(action)
    action.set_defaults(command="gateway.products.batches.cli:run")
