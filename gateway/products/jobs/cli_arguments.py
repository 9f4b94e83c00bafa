"""The arguments of `gateway jobs`, `gateway webhooks` and `gateway dlq`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from gateway.cli.values import DEFAULT_URL, Actions, between, seconds

MOST_LISTED = 100


def add_jobs(command: argparse.ArgumentParser) -> Actions[argparse.ArgumentParser]:
    """Adds what callers may ask of `gateway jobs`; returns its actions, for those of operators."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("ls", help="the key's jobs and batches, newest first")
    action.add_argument(
        "--status", help="only those: queued, running, completed_with_failures …; several divided by commas"
    )
    action.add_argument(
        "--limit", type=between(1, MOST_LISTED), default=20, help=f"at most {MOST_LISTED} (default: %(default)s)"
    )
    action.add_argument("--after", metavar="ID", help="those that come after this one")
    _add_caller(action)
    action.set_defaults(command="gateway.products.jobs.cli:list_jobs")

    action = actions.add_parser("show", help="how far a job or a batch is, and what it has cost")
    action.add_argument("id", metavar="ID", help="job_gw… or batch_gw…")
    _add_caller(action)
    action.set_defaults(command="gateway.products.jobs.cli:show")

    action = actions.add_parser("cancel", help="stop a job or a batch; one that has ended stays as it is")
    action.add_argument("id", metavar="ID", help="job_gw… or batch_gw…")
    _add_caller(action)
    action.set_defaults(command="gateway.products.jobs.cli:cancel")
    return actions


def add_webhooks(command: argparse.ArgumentParser, add_admin: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds what `gateway webhooks` takes; `add_admin` adds what each command needs that asks the admin API."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("ls", help="how they are, what waits for them, and their last answers")
    add_admin(action)
    action.set_defaults(command="gateway.products.jobs.webhooks.cli:list_webhooks")

    action = actions.add_parser(
        "redeliver",
        help="make deliveries again: one by an id, or all that failed lately",
        description="Make one delivery again, delivered or not, or all that have failed since a while ago; once each, however"
        " often that is asked for. They keep their webhook-id, so receivers know them.",
    )
    action.add_argument("name", metavar="NAME", help="as in the config; '(requests)' for URLs of requests")
    action.add_argument("id", nargs="?", metavar="ID", help="job_gw…, batch_gw…, evt_gw… or msg_gw…")
    action.add_argument("--since", type=seconds, metavar="TIME", help="all that failed in so long: 90m, 24h, 7d")
    add_admin(action)
    action.set_defaults(command="gateway.products.jobs.webhooks.cli:redeliver")

    for name, help in (("disable", "it hears nothing; what is for it waits"), ("enable", "it hears of things again")):
        action = actions.add_parser(name, help=f"{help} (in this process, until it restarts or the entry changes)")
        action.add_argument("name", metavar="NAME", help="as in the config")
        add_admin(action)
        action.set_defaults(command="gateway.products.jobs.webhooks.cli:switch", action=name)

    action = actions.add_parser("test", help="send a signed event `test` now, and tell the answer's status")
    action.add_argument("name", metavar="NAME", help="as in the config")
    add_admin(action)
    action.set_defaults(command="gateway.products.jobs.webhooks.cli:test")

    action = actions.add_parser("rotate", help="print a new secret, and how to bring it in; asks nobody")
    action.add_argument("name", nargs="?", metavar="NAME", help="whose; only for the lines to be printed")
    action.add_argument("--json", action="store_true", help="print the secret as JSON")
    action.set_defaults(command="gateway.products.jobs.webhooks.cli:rotate")


def add_caller_or_own(command: argparse.ArgumentParser) -> None:
    """Adds what a command needs that calls a gateway as its clients do, and is one itself where none runs."""
    command.add_argument(
        "--config", type=Path, help="of the gateway that this process is where none runs (default: config.yaml)"
    )
    command.add_argument(
        "--url", help="the gateway's address (default: that of the config, or this process where none answers there)"
    )
    _add_key(command)


def _add_caller(command: argparse.ArgumentParser) -> None:
    """Adds what a command needs that calls a running gateway as its clients do."""
    command.add_argument("--url", help=f"the gateway's address (default: that of the config, else {DEFAULT_URL})")
    command.add_argument(
        "-c", "--config", type=Path, help="the config file (default: $GATEWAY_CONFIG, else config.yaml in this folder)"
    )
    _add_key(command)


def _add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument("--api-key", help="the key that calls (default: $OPENAI_API_KEY)")
    command.add_argument("--json", action="store_true", help="print the answer as it came")


# --- the arguments of `gateway dlq` ---


def add_dead_letters(command: argparse.ArgumentParser, add_admin: Callable[[argparse.ArgumentParser], None]) -> None:
    """Adds what operators may do; `add_admin` adds what each command needs that asks the admin API."""
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("ls", help="groups of letters that look the same, the largest first")
    action.add_argument("--group", metavar="ID", help="the letters of this one, the oldest first")
    action.add_argument("--limit", type=int, default=20, help="letters, at most 100 (default: %(default)s)")
    action.add_argument("--after", metavar="CURSOR", help="those that come after the page before")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli:list_letters")
    add_admin(action)

    action = actions.add_parser("show", help="a letter with every failed attempt; or how far a replay is")
    action.add_argument("id", metavar="ID", help="dl_gw…, or job_gw… of a replay")
    action.add_argument("--payload", action="store_true", help="with the request")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli:show")
    add_admin(action)

    action = actions.add_parser("replay", help="run letters again")
    _add_filter(action)
    action.add_argument("--rate", type=float, default=5.0, help="letters a second (default: %(default)s)")
    action.add_argument("--to-model", metavar="NAME", help="to this model instead of the one that they named")
    action.add_argument("--max", type=int, help="so many, at most")
    action.add_argument(
        "--dry-run", action="store_true", help="only say what would run: how many, for how much, how long"
    )
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli:redrive")
    add_admin(action)

    action = actions.add_parser("purge", help="throw letters away")
    _add_filter(action)
    action.add_argument("--yes", action="store_true", help="yes, that is meant")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli:purge")
    add_admin(action)

    action = actions.add_parser("stats", help="how many there are, and since when, by kind and class")
    action.set_defaults(command="gateway.products.jobs.dead_letters.cli:stats")
    add_admin(action)


def _add_filter(action: argparse.ArgumentParser) -> None:
    action.add_argument("--id", metavar="ID", help="this letter")
    action.add_argument("--group", metavar="ID", help="of this group")
    action.add_argument("--kind", choices=("call", "response", "run", "delivery", "line"), help="of this kind")
    action.add_argument("--class", dest="error_class", metavar="NAME", help="of this class of errors")
    action.add_argument("--model", metavar="NAME", help="that named this model")
    action.add_argument("--tenant", metavar="NAME", help="of this tenant")
    action.add_argument("--older-than", type=seconds, metavar="TIME", help="that are there for longer, such as 24h")
    action.add_argument("--all", action="store_true", help="every one")
