"""The arguments of `gateway pipelines`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from gateway.products.jobs.cli_arguments import add_caller_or_own


def add_pipelines(command: argparse.ArgumentParser, add_config: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds what `gateway pipelines` takes; `add_config` adds what each command needs that reads a config."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("check", help="check all pipelines of a config: prints every problem at once")
    add_config(action)
    action.set_defaults(command="gateway.products.pipelines.cli:check")

    action = actions.add_parser(
        "explain",
        help="the steps of a pipeline in order, whom they ask, and how often",
        description="Show a pipeline's steps in the order in which they can run, what each waits for, the models that it asks,"
        " how many calls it makes, and what its failure means. Nothing is sent.",
    )
    action.add_argument("name", metavar="NAME", help="the name of its file, or pipelines/NAME")
    add_config(action)
    action.add_argument("--json", action="store_true", help="print it as JSON")
    action.set_defaults(command="gateway.products.pipelines.cli:explain")

    action = actions.add_parser(
        "run",
        help="run a pipeline once, and print what it comes to",
        description="Run a pipeline on an input, wait for its end, and print its answer. The run goes on if this command is"
        " stopped. Where no gateway runs, this process is one as long as it takes. Exit code: 0 if it has succeeded, 1 if"
        " not, 2 if the input does not fit.",
    )
    action.add_argument("name", metavar="NAME", help="the name of its file, or pipelines/NAME; or the id of a run")
    action.add_argument("--input", type=Path, metavar="FILE", help="the input, JSON or text; - reads standard input")
    add_caller_or_own(action)
    action.set_defaults(command="gateway.products.pipelines.cli:run")
