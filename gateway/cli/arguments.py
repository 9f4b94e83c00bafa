"""The arguments of every command: their names, help, checks and defaults."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NoReturn

from gateway import __version__
from gateway.admin.http import ACTIONS
from gateway.cli.values import DEFAULT_URL, Actions, between, port_number
from gateway.core.config.admission import KINDS
from gateway.installed import is_installed
from gateway.settings import MOST_WORKERS

# The commands of a product that is not here are none.
if is_installed("gateway.products.batches"):
    from gateway.products.batches.cli_arguments import add_batch
if is_installed("gateway.products.jobs"):
    from gateway.products.jobs.cli_arguments import add_dead_letters, add_jobs, add_webhooks
if is_installed("gateway.products.pipelines"):
    from gateway.products.pipelines.cli_arguments import add_pipelines
if is_installed("gateway.features.runs"):
    from gateway.features.runs.cli_arguments import add_runs, add_workflows


class _Parser(argparse.ArgumentParser):
    """Names the choice that a wrong one is most like, and where all are listed to who makes none."""

    def error(self, message: str) -> NoReturn:
        wrong, *choices = _QUOTED.findall(message) if "invalid choice" in message else [""]
        if message.endswith((": COMMAND", ": ACTION")):
            super().error(f"{message}; '{self.prog} --help' lists them")
        # A target's name is like no command.
        suggestions = [] if "/" in wrong else get_close_matches(wrong, choices, 1)
        super().error(f"{message}; did you mean '{suggestions[0]}'?" if suggestions else message)


_QUOTED: Final = re.compile(r"'([^']+)'")


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the command line; `command` of what it parses names the function that carries it out.

    It takes the arguments of all commands; where `only` is given, another command may lack those that are known to the
    modules that carry it out, and which need not be imported then.
    """
    parser = _Parser(
        prog="gateway",
        description="An OpenAI-compatible LLM gateway that runs as a sidecar.",
        epilog="First steps: gateway serve --config config.example.yaml, then point an OpenAI client's base_url at it.",
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "serve", help="run the gateway", description="Run the gateway until SIGTERM or Ctrl-C."
    )
    _add_config(command)
    _add_listen(command, "server.host", "server.port")
    command.add_argument(
        "--workers", type=between(1, MOST_WORKERS), help="so many processes; they need state: redis://… (default: 1)"
    )
    _add_log(command)
    command.set_defaults(command="gateway.cli.serve:run_gateway")

    if is_installed("gateway.products.jobs"):
        command = commands.add_parser(
            "work",
            help="run jobs, and take no calls",
            description="Run the jobs that gateways have taken into the Redis that they share, until SIGTERM or Ctrl-C. It"
            " takes no calls: only health, metrics and admin are served, at admin.listen, or at server.host and server.port.",
        )
        _add_config(command)
        _add_listen(command, "admin.listen or server.host", "that port")
        _add_log(command)
        command.set_defaults(command="gateway.products.jobs.cli:run_worker")

    command = commands.add_parser("check", help="check a config: prints every problem at once")
    _add_config(command)
    command.add_argument("--workers", type=between(1, MOST_WORKERS), help="whether so many processes can serve it")
    command.add_argument("--show", action="store_true", help="print what the config compiles to, without its secrets")
    command.set_defaults(command="gateway.cli.check:check")

    command = commands.add_parser(
        "explain",
        help="what would happen to a request; what an error means",
        description="Shows key, model, plan with targets and limits, and the policies in force for a request. Nothing is sent.",
    )
    _add_config(command)
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "request",
        type=Path,
        nargs="?",
        help="a file with the JSON body, or the code of an error of the gateway; - reads standard input",
    )
    what.add_argument(
        "--error",
        nargs=2,
        metavar=("STATUS", "BODY"),
        help="what an error of a provider means, and by which rule; BODY is a file, - or the text itself",
    )
    command.add_argument(
        "--header", action="append", default=[], help="of that error: 'retry-after: 20'; may be repeated"
    )
    whose = command.add_mutually_exclusive_group()
    whose.add_argument("--provider", help="whose error it is: a provider of the config")
    whose.add_argument("--kind", choices=KINDS, help="whose error it is, where no config is at hand")
    command.add_argument("--key", help="the name of the key that calls (default: the anonymous or the only key)")
    command.add_argument("--path", default="/v1/chat/completions", help="default: %(default)s")
    command.add_argument(
        "--show-upstream", action="store_true", help="also the bodies that targets of another language are sent"
    )
    command.set_defaults(command="gateway.cli.check:explain_call")

    command = commands.add_parser(
        "targets",
        help="how a running gateway's targets are doing; open, close or drain one",
        description="Ask a running gateway how its targets and accounts are doing, or open, close, drain or reset one by hand:"
        " a drained one gets no new calls, an open one none either, until it is closed (or reset) again.",
    )
    command.add_argument("action", nargs="?", choices=ACTIONS, help="what to do; absent: show them all")
    command.add_argument("name", nargs="?", help="of a target (openai/gpt-4o) or an account (openai)")
    _add_admin(command, key_flag="--key")
    command.set_defaults(command="gateway.cli.operate:targets")

    if is_installed("gateway.features.reuse"):
        command = commands.add_parser("stats", help="what a running gateway has saved, in calls, tokens and money")
        command.add_argument("--by", choices=("layer", "model", "key"), default="layer", help="default: %(default)s")
        _add_admin(command)
        command.set_defaults(command="gateway.cli.operate:stats")

    command = commands.add_parser("costs", help="what calls of a running gateway have cost, and how much is estimated")
    command.add_argument("--by", choices=("key", "model"), default="key", help="default: %(default)s")
    _add_admin(command)
    command.set_defaults(command="gateway.cli.operate:costs")

    if is_installed("gateway.features.reuse"):
        _add_cache(
            commands.add_parser(
                "cache", help="what a running gateway keeps; forget it; why an answer was, or was not, in it"
            )
        )

    _add_state(commands.add_parser("state", help="back up the state file of a running gateway"))
    if is_installed("gateway.features.ownership"):
        _add_objects(commands.add_parser("objects", help="whose the files, responses and the like at providers are"))

    if is_installed("gateway.products.jobs"):
        _add_jobs(commands)
    if is_installed("gateway.features.runs"):
        add_workflows(commands.add_parser("workflows", help="what runs come to, from attempts to use"), _add_admin)
        add_runs(commands.add_parser("runs", help="runs of workflows: list, show"), _add_admin)
    if is_installed("gateway.products.batches"):
        add_batch(commands.add_parser("batch", help="run a file of requests as a batch, and fetch its answers"))
    if is_installed("gateway.products.pipelines"):
        add_pipelines(commands.add_parser("pipelines", help="declared pipelines: check them, explain one"), _add_config)

    command = commands.add_parser(
        "demo",
        help="see it work: a storm of calls, an outage, workflows, with and without the gateway, or a batch that is killed; no"
        " key needed",
        description="Fire the same storm of calls twice, straight at an emulated provider and through a gateway, and compare."
        " Or, with --outage, let the provider die, crawl, flap, throttle and err while traffic runs both ways. Or, with"
        " --batch, run a batch while the gateway is killed, and hold its results against the provider's ledger. Or, with"
        " --workflow, take runs of ten steps to their ends both ways, while the program and the gateway are killed.",
    )
    if only in (None, "demo"):
        _add_demo(command)

    command = commands.add_parser(
        "emulate",
        help="run the emulator: a provider with limits, latency and faults, no key needed",
        description="Run a scripted provider. Everything can be changed while it runs: POST /__emulator/config.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if only in (None, "emulate"):
        _add_emulator(command)

    command = commands.add_parser("version", help="print the version")
    command.set_defaults(command="gateway.cli.main:version")
    return parser


MOST_KILLS = 20
"""The most kills of the demo's gateway."""
_COUNT = between(1, 5000)
EMULATOR_FLAGS = {
    "--ttft": "time to the first token, seconds",
    "--tokens-per-second": "pace of the output",
    "--jitter": "sigma of the lognormal factor on both",
    "--output-tokens": "median length of an answer",
    "--rpm": "requests per minute, per key and model",
    "--burst": "so many of them at once (default: all of a minute)",
    "--tpm": "tokens per minute, per key and model",
    "--max-concurrency": "calls in flight, per key and model",
    "--seed": "seed of everything random",
    "--models": "comma-separated; others get 404 (default: any name)",
    "--api-key": "the only key that is let in (default: any)",
    "--context-window": "tokens; longer requests get context_length_exceeded",
}


def _add_demo(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `gateway demo`; no other command needs to import the demo and what it is made of."""
    from gateway.demo.batch import BatchDemo  # only `gateway demo` needs it

    # only `gateway demo` needs it
    from gateway.demo.storm import Outage, Storm
    from gateway.demo.workflow import WorkflowDemo  # only `gateway demo` needs it

    storm, outage, batch, workflow = Storm(), Outage(), BatchDemo(), WorkflowDemo()
    command.add_argument("--calls", type=_COUNT, default=storm.calls, help="made at once (default: %(default)s)")
    command.add_argument(
        "--rpm", type=_COUNT, help=f"the provider's limit (default: {storm.rpm}; of a batch {batch.rpm})"
    )
    command.add_argument(
        "--burst", type=_COUNT, help=f"how many of it at once (default: {storm.burst}; of a batch {batch.burst})"
    )
    which = command.add_mutually_exclusive_group()
    which.add_argument("--outage", action="store_true", help="show an outage; --calls, --rpm and --burst do not apply")
    command.add_argument(
        "--seconds", type=_COUNT, default=round(outage.seconds), help="of an outage (default: %(default)s)"
    )
    command.add_argument(
        "--rate",
        type=_COUNT,
        default=round(outage.rate_per_s),
        help="calls a second, of an outage (default: %(default)s)",
    )
    which.add_argument("--batch", action="store_true", help="show a batch whose gateway is killed with -9 on the way")
    command.add_argument("--lines", type=_COUNT, default=batch.lines, help="of a batch (default: %(default)s)")
    command.add_argument(
        "--kills",
        type=between(0, MOST_KILLS),
        default=batch.kills,
        help="of a batch's gateway; of workflows' program and of their gateway (default: %(default)s)",
    )
    which.add_argument(
        "--workflow", action="store_true", help="show runs of ten steps whose program and gateway are killed on the way"
    )
    command.add_argument("--runs", type=_COUNT, default=workflow.runs, help="of workflows (default: %(default)s)")
    command.add_argument(
        "--seed",
        type=int,
        default=batch.seed,
        help="of kills and faults of a batch, of workflows (default: %(default)s)",
    )
    command.add_argument(
        "--chart", type=Path, help="the picture (default: demo.svg, outage.svg, batch.svg or workflow.svg)"
    )
    command.add_argument("--json", action="store_true", help="print the figures as JSON; progress to standard error")
    command.set_defaults(command="gateway.cli.play:demo")


def _add_emulator(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `gateway emulate`; no other command needs to import the emulator."""
    # only `gateway emulate` needs it
    from gateway.emulator.config import DIALECTS, FAULTS

    command.epilog = "faults:\n" + "\n".join(f"  {name:<18}{text}" for name, text in FAULTS.items())
    command.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    command.add_argument("--port", type=port_number, default=9000, help="default: %(default)s; 0 takes a free one")
    command.add_argument("--demo", action="store_true", help="the pace of a hosted model (0.3 s, then 60 tokens/s)")
    for flag, text in EMULATOR_FLAGS.items():
        command.add_argument(flag, help=text)
    command.add_argument(
        "--dialect", choices=DIALECTS, help="whose limits and errors OpenAI's paths have (default: openai)"
    )
    command.add_argument("--fault", action="append", metavar="FAULT=PROBABILITY", help="e.g. e500=0.1; may be repeated")
    command.add_argument("--no-limit-headers", dest="limit_headers", action="store_const", const="false")
    command.set_defaults(command="gateway.cli.play:emulate")


def _add_cache(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("show", help="how much is kept, how much may be, and what it has saved")
    _add_admin(action)
    action.set_defaults(command="gateway.cli.operate:cache_show")

    action = actions.add_parser(
        "purge",
        help="forget answers",
        description="Forget the answers that match all that is given. Nothing is asked back: it is done at once.",
    )
    action.add_argument("--key", metavar="HEX", help="of one answer: its header x-gateway-cache-key")
    action.add_argument("--model", help="as clients ask for it")
    action.add_argument("--tenant", help="of the key that called")
    action.add_argument("--all", action="store_true", help="everything of everybody")
    _add_admin(action)
    action.set_defaults(command="gateway.cli.operate:cache_purge")

    action = actions.add_parser(
        "why",
        help="why a call was, or was not, spared its provider",
        description="Tell how one of the last calls fared, or how a request would fare now. It may have to be embedded.",
    )
    action.add_argument(
        "request", help="a call's id (its x-request-id); or a file with a request's JSON body, - for standard input"
    )
    action.add_argument("--endpoint", help="of that body: chat, responses, embeddings … (default: chat)")
    action.add_argument("--tenant", help="whose request it is (default: the only one of the config)")
    _add_admin(action)
    action.set_defaults(command="gateway.cli.operate:cache_why")


def _add_jobs(commands: Actions[_Parser]) -> None:
    """Adds the commands that ask for jobs, their dead letters, and webhooks."""
    jobs = add_jobs(
        commands.add_parser(
            "jobs", help="a running gateway's durable jobs: list, show, cancel, pause, retry; back them up"
        )
    )
    _add_backup(jobs, "jobs", "jobs.store")
    for name, does in (("pause", "have jobs and batches stand still"), ("resume", "let them go on")):
        action = jobs.add_parser(name, help=f"{does}, whosever they are")
        action.add_argument("ids", nargs="+", metavar="ID", help="job_gw… or batch_gw…")
        _add_admin(action)
        action.set_defaults(command="gateway.cli.operate:flag_jobs", flag=name)
    action = jobs.add_parser(
        "retry",
        help="try jobs again that failed for good, and the dead lines of batches",
        description="Run jobs again that are dead letters, and lines of batches that are; each becomes a job of its own. What"
        " failed by its own request is no dead letter: that has to be mended by who sent it, and sent again.",
    )
    action.add_argument("ids", nargs="+", metavar="ID", help="job_gw… or batch_gw…")
    _add_admin(action)
    action.set_defaults(command="gateway.cli.operate:retry_jobs")
    add_dead_letters(
        commands.add_parser("dlq", help="what has failed for good: look, run again, throw away"), _add_admin
    )
    if is_installed("gateway.products.jobs.webhooks"):
        add_webhooks(
            commands.add_parser("webhooks", help="who is told of the ends of jobs; tell again, test"), _add_admin
        )


def _add_state(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    _add_backup(actions, "state", "state: sqlite:///…")


def _add_backup(actions: Actions[argparse.ArgumentParser], name: str, setting: str) -> None:
    action = actions.add_parser(
        "backup",
        help=f"copy the {name} file while the gateway runs",
        description=f"Copy the {name} file ({setting}) of a running gateway, and check the copy. Calls go on meanwhile.",
    )
    action.add_argument("file", type=Path, help="where the copy goes; it must not exist")
    _add_admin(action)
    action.set_defaults(command=f"gateway.cli.operate:{name}_backup")


def _add_objects(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")
    action = actions.add_parser(
        "claim",
        help="give objects that were there before to their tenant",
        description="Objects that were not created through the gateway, or that it has forgotten, are 404 for every tenant of"
        " several that share an account, until they are claimed for one.",
    )
    action.add_argument("tenant", help="of the config's keys")
    action.add_argument(
        "ids", nargs="+", metavar="ID", help="file-..., vs_..., resp_...; - reads them from standard input"
    )
    action.add_argument("--provider", help="where they are (default: that of passthrough, or the only one)")
    action.add_argument("--move", action="store_true", help="also those that are another tenant's")
    _add_admin(action)
    action.set_defaults(command="gateway.cli.operate:claim")


def _add_admin(command: argparse.ArgumentParser, key_flag: str = "--admin-key") -> None:
    """Adds what every command needs that asks a running gateway."""
    flags = dict.fromkeys((key_flag, "--admin-key"))
    command.add_argument("--url", help=f"the gateway's address (default: that of the config, else {DEFAULT_URL})")
    command.add_argument(
        *flags, dest="admin_key", help="the admin key (default: $GATEWAY_ADMIN_KEY, else the config's)"
    )
    _add_config(command)
    command.add_argument("--json", action="store_true", help="print the answer as it came")
    command.set_defaults(key_flag=key_flag)


def _add_listen(command: argparse.ArgumentParser, host: str, port: str) -> None:
    command.add_argument("--host", help=f"listen here instead of {host}")
    command.add_argument("--port", type=port_number, help=f"listen here instead of {port}; 0 takes a free one")


def _add_log(command: argparse.ArgumentParser) -> None:
    command.add_argument("--log-format", choices=("json", "text"), help="form of the call log (default: json)")
    command.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-c", "--config", type=Path, help="the config file (default: $GATEWAY_CONFIG, else config.yaml in this folder)"
    )
