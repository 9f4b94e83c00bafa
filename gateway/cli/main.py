"""The command line: serve, check, explain, targets, cache, stats, state, objects, demo, emulate, version.

Exit codes: 0 done, 1 could not run (port taken, second signal), 2 wrong usage or a config that cannot be used. Every
failure is a sentence on standard error, never a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop
from pydantic import ValidationError

from gateway import __version__
from gateway.app import serve
from gateway.cli import admin, caches, state
from gateway.cli.admin import AdminClient, AdminRefused
from gateway.clock import SystemClock
from gateway.config.describe import describe
from gateway.config.load import load_snapshot, locate_policies
from gateway.config.policies.admission import KINDS
from gateway.config.policies.errors import ErrorTables, read_error_tables
from gateway.config.policies.folder import list_error_files
from gateway.config.reading.problems import Problem
from gateway.demo.outage import Outage
from gateway.demo.show import Display, show, show_outage
from gateway.demo.storm import Storm
from gateway.emulator.config import DIALECTS, EmulatorConfig
from gateway.emulator.faults import FAULTS
from gateway.emulator.server import EmulatorServer
from gateway.errors import ConfigError, GatewayError, NotFound, StoreUnusable
from gateway.ingress.admin.explain import explain
from gateway.ingress.admin.explain_error import explain_error, read_headers
from gateway.ingress.admin.operations import ACTIONS
from gateway.policy.snapshot import PolicySnapshot, Provider
from gateway.settings import MOST_WORKERS, Settings
from gateway.upstream.pools import Pools
from gateway.upstream.wire import Wire
from gateway.workers.listeners import require_shared
from gateway.workers.supervisor import Supervisor, WorkerFailed

OK, FAILED, UNUSABLE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        command: Any = options.command
        return int(command(options))
    except ConfigError as error:
        return _fail("\n".join(error.problems), UNUSABLE)
    except ValidationError as error:
        problems = (f"GATEWAY_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors())
        return _fail("\n".join(problems), UNUSABLE)
    except StoreUnusable as error:
        return _fail(str(error), FAILED)
    except WorkerFailed as error:
        return _fail(str(error), error.code)
    except OSError as error:
        reason = error.strerror or str(error)
        return _fail(f"{error.filename}: {reason}" if error.filename else reason, FAILED)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gateway",
        description="An OpenAI-compatible LLM gateway that runs as a sidecar.",
        epilog="First steps: gateway serve --config config.example.yaml, then point an OpenAI client's base_url at it.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    command = commands.add_parser(
        "serve", help="run the gateway", description="Run the gateway until SIGTERM or Ctrl-C."
    )
    _add_config(command)
    command.add_argument("--host", help="listen here instead of server.host")
    command.add_argument("--port", type=_port, help="listen here instead of server.port; 0 takes a free one")
    command.add_argument("--workers", type=_workers, help="so many processes; they need state: redis://… (default: 1)")
    command.add_argument("--log-format", choices=("json", "text"), help="form of the call log (default: json)")
    command.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    command.set_defaults(command=_serve)

    command = commands.add_parser("check", help="check a config: prints every problem at once")
    _add_config(command)
    command.add_argument("--workers", type=_workers, help="whether so many processes can serve it")
    command.add_argument("--show", action="store_true", help="print what the config compiles to, without its secrets")
    command.set_defaults(command=_check)

    command = commands.add_parser(
        "explain", help="what would happen to a request; what an error means", description=explain.__doc__
    )
    _add_config(command)
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("request", type=Path, nargs="?", help="a file with the JSON body; - reads standard input")
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
    command.set_defaults(command=_explain)

    command = commands.add_parser(
        "targets",
        help="how a running gateway's targets are doing; open, close or drain one",
        description="Ask a running gateway how its targets and accounts are doing, or open, close, drain or reset one by hand:"
        " a drained one gets no new calls, an open one none either, until it is closed (or reset) again.",
    )
    command.add_argument("action", nargs="?", choices=ACTIONS, help="what to do; absent: show them all")
    command.add_argument("name", nargs="?", help="of a target (openai/gpt-4o) or an account (openai)")
    _add_admin(command, key_flag="--key")
    command.set_defaults(command=_targets)

    command = commands.add_parser("stats", help="what a running gateway has saved, in calls, tokens and money")
    command.add_argument("--by", choices=("layer", "model", "key"), default="layer", help="default: %(default)s")
    _add_admin(command)
    command.set_defaults(command=_stats)

    _add_cache(
        commands.add_parser(
            "cache", help="what a running gateway keeps; forget it; why an answer was, or was not, in it"
        )
    )

    _add_state(commands.add_parser("state", help="back up the state file of a running gateway"))
    _add_objects(commands.add_parser("objects", help="whose the files, responses and the like at providers are"))

    command = commands.add_parser(
        "demo",
        help="see it work: a storm of calls, or a provider's outage, with and without the gateway; no key needed",
        description="Fire the same storm of calls twice, straight at an emulated provider and through a gateway, and compare."
        " Or, with --outage, let the provider die, crawl, flap, throttle and err while traffic runs both ways.",
    )
    storm, outage = Storm(), Outage()
    command.add_argument("--calls", type=_count, default=storm.calls, help="made at once (default: %(default)s)")
    command.add_argument("--rpm", type=_count, default=storm.rpm, help="the provider's limit (default: %(default)s)")
    command.add_argument(
        "--burst", type=_count, default=storm.burst, help="how many of it at once (default: %(default)s)"
    )
    command.add_argument(
        "--outage", action="store_true", help="show an outage; --calls, --rpm and --burst do not apply"
    )
    command.add_argument(
        "--seconds", type=_count, default=round(outage.seconds), help="of an outage (default: %(default)s)"
    )
    command.add_argument(
        "--rate",
        type=_count,
        default=round(outage.rate_per_s),
        help="calls a second, of an outage (default: %(default)s)",
    )
    command.add_argument("--chart", type=Path, help="the picture (default: demo.svg, or outage.svg)")
    command.add_argument("--json", action="store_true", help="print the figures as JSON; progress to standard error")
    command.set_defaults(command=_demo)

    command = commands.add_parser(
        "emulate",
        help="run the emulator: a provider with limits, latency and faults, no key needed",
        description="Run a scripted provider. Everything can be changed while it runs: POST /__emulator/config.",
        epilog="faults:\n" + "\n".join(f"  {name:<18}{text}" for name, text in FAULTS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    command.add_argument("--port", type=_port, default=9000, help="default: %(default)s; 0 takes a free one")
    command.add_argument("--demo", action="store_true", help="the pace of a hosted model (0.3 s, then 60 tokens/s)")
    for flag, text in _EMULATOR_FLAGS.items():
        command.add_argument(flag, help=text)
    command.add_argument("--dialect", choices=DIALECTS, help="whose limits and errors (default: openai)")
    command.add_argument("--fault", action="append", metavar="FAULT=PROBABILITY", help="e.g. e500=0.1; may be repeated")
    command.add_argument("--no-limit-headers", dest="limit_headers", action="store_const", const="false")
    command.set_defaults(command=_emulate)

    command = commands.add_parser("version", help="print the version")
    command.set_defaults(command=_version)
    return parser


_EMULATOR_FLAGS = {
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


def _add_cache(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser("show", help="how much is kept, how much may be, and what it has saved")
    _add_admin(action)
    action.set_defaults(command=_cache_show)

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
    action.set_defaults(command=_cache_purge)

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
    action.set_defaults(command=_cache_why)


def _add_state(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(title="actions", required=True, metavar="ACTION")

    action = actions.add_parser(
        "backup",
        help="copy the state file while the gateway runs",
        description="Copy the state file (state: sqlite:///…) of a running gateway, and check the copy. Calls go on meanwhile.",
    )
    action.add_argument("file", type=Path, help="where the copy goes; it must not exist")
    _add_admin(action)
    action.set_defaults(command=_state_backup)


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
    action.set_defaults(command=_claim)


def _add_admin(command: argparse.ArgumentParser, key_flag: str = "--admin-key") -> None:
    """What every command needs that asks a running gateway."""
    flags = dict.fromkeys((key_flag, "--admin-key"))
    command.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway's address (default: %(default)s)")
    command.add_argument(*flags, dest="admin_key", help="the admin key (default: $GATEWAY_ADMIN_KEY)")
    command.add_argument("--json", action="store_true", help="print the answer as it came")
    command.set_defaults(key_flag=key_flag)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-c", "--config", type=Path, help="the config file (default: $GATEWAY_CONFIG, else config.yaml in this folder)"
    )


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number} is not a port: 0 to 65535")
    return number


def _workers(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and {MOST_WORKERS}")
    return number


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 5000:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 5000")
    return number


def _settings(options: argparse.Namespace) -> Settings:
    names = ("config", "host", "port", "workers", "log_format", "log_level")
    return Settings(**{name: value for name in names if (value := getattr(options, name, None)) is not None})


def _serve(options: argparse.Namespace) -> int:
    settings = _settings(options)
    logging.basicConfig(
        stream=sys.stderr, level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", force=True
    )
    if settings.workers > 1:
        return Supervisor(settings, os.environ, _compile(settings)).run()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(settings, os.environ))


def _check(options: argparse.Namespace) -> int:
    settings = _settings(options)
    policy = _compile(settings)
    require_shared(settings, policy, settings.workers)
    if options.show:
        print(json.dumps(describe(policy), indent=2))
    for notice in policy.notices:
        print(f"note: {notice}", file=sys.stderr)
    count = len(policy.models) + len(policy.patterns)
    providers = len({provider.group for provider in policy.providers.values()})
    print(
        f"{settings.config}: ok ({providers} providers, {count} models, {len(policy.keys)} keys)",
        file=sys.stderr,
    )
    return OK


def _explain(options: argparse.Namespace) -> int:
    if options.error:
        return _explain_error(options)
    policy = _compile(_settings(options))
    body = sys.stdin.buffer.read() if str(options.request) == "-" else options.request.read_bytes()
    try:
        print(explain(policy, body, path=options.path, key_name=options.key))
    except GatewayError as error:
        return _fail(f"answered with {error.status} {error.code}: {error.message}", FAILED)
    return OK


def _explain_error(options: argparse.Namespace) -> int:
    status, text = options.error
    if not (status.isascii() and status.isdigit() and 100 <= int(status[:9]) <= 599):
        return _fail(f"{status!r} is no HTTP status", UNUSABLE)
    settings = _settings(options)
    tables = _error_tables(settings)
    try:
        kind = options.kind or (_kind_of(_compile(settings), options.provider) if options.provider else "other")
        headers = read_headers(options.header)
    except GatewayError as error:
        return _fail(error.message, UNUSABLE)
    print(explain_error(tables.of(kind), int(status), _body_of(text), headers, SystemClock().wall()))
    return OK


def _error_tables(settings: Settings) -> ErrorTables:
    """The built-in tables, and the user's own where there is a config."""
    folder = locate_policies(settings.config, os.environ) if settings.config.is_file() else None
    problems: list[Problem] = []
    tables = read_error_tables(list_error_files(folder) if folder else (), os.environ, problems)
    if problems:
        raise ConfigError(list(map(str, problems)))
    return tables


def _kind_of(policy: PolicySnapshot, name: str) -> str:
    """The kind of a provider that some target names."""
    kinds = {target.provider: target.counting.kind for model in policy.models.values() for target in model.plan}
    if name not in kinds:
        raise NotFound(f"no target uses a provider {name!r}; there are: {', '.join(kinds)}")
    return kinds[name]


def _body_of(text: str) -> bytes:
    if text == "-":
        return sys.stdin.buffer.read()
    is_literal = len(text) > 255 or text.lstrip().startswith(("{", "[", "<", '"'))  # no name of a file
    return text.encode(errors="replace") if is_literal or not Path(text).is_file() else Path(text).read_bytes()


def _targets(options: argparse.Namespace) -> int:
    action, name = options.action, options.name
    if not action:
        return _ask(options, AdminClient.targets, admin.table)
    if not name:
        return _fail(f"which one? gateway targets {action} NAME; 'gateway targets' shows them", UNUSABLE)
    return _ask(options, lambda client: client.switch(action, name), admin.sentence)


def _stats(options: argparse.Namespace) -> int:
    return _ask(options, AdminClient.stats, lambda answer: caches.stats_table(answer, options.by))


def _cache_show(options: argparse.Namespace) -> int:
    return _ask(options, AdminClient.cache, caches.cache_table)


def _cache_purge(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in ("key", "model", "tenant", "all") if getattr(options, name)}
    if not given:
        return _fail("purge what? --key HEX, --model NAME, --tenant NAME, or --all for everything", UNUSABLE)
    return _ask(options, lambda client: client.purge(given), caches.purged)


def _cache_why(options: argparse.Namespace) -> int:
    def ask(client: AdminClient) -> dict[str, Any]:
        body = caches.question(options.request, sys.stdin)
        if body is None:
            return client.recall(options.request)
        whose = {name: getattr(options, name) for name in ("endpoint", "tenant") if getattr(options, name)}
        return client.explain({"body": body, **whose})

    return _ask(options, ask, caches.story)


def _state_backup(options: argparse.Namespace) -> int:
    from gateway.store.sqlite.schema import damage_of  # no other command needs sqlite

    return _ask(options, lambda client: state.save(client.backup(), options.file, damage_of), state.saved)


def _claim(options: argparse.Namespace) -> int:
    ids = [id for given in options.ids for id in (sys.stdin.read().split() if given == "-" else (given,))]
    given = {"tenant": options.tenant, "ids": ids, "move": options.move}
    if options.provider:
        given["provider"] = options.provider
    return _ask(options, lambda client: client.claim(given), admin.claimed)


def _ask(
    options: argparse.Namespace,
    ask: Callable[[AdminClient], dict[str, Any]],
    show_answer: Callable[[dict[str, Any]], str],
) -> int:
    """Ask a running gateway, and print its answer."""
    key = options.admin_key or os.environ.get("GATEWAY_ADMIN_KEY", "")
    if not key:
        hint = f"set GATEWAY_ADMIN_KEY or give {options.key_flag}; it is admin.key of the config"
        return _fail(f"no admin key: {hint}", UNUSABLE)
    try:
        answer = ask(AdminClient(options.url, key))
    except AdminRefused as error:
        return _fail(error.message, UNUSABLE if error.is_misuse else FAILED)
    print(json.dumps(answer, indent=2) if options.json else show_answer(answer))
    return OK


def _demo(options: argparse.Namespace) -> int:
    display = Display(sys.stderr if options.json else sys.stdout, os.environ)
    if options.outage:
        outage = Outage(seconds=options.seconds, rate_per_s=options.rate)
        print(show_outage(outage, display, options.chart or Path("outage.svg"), as_json=options.json))
    else:
        storm = Storm(calls=options.calls, rpm=options.rpm, burst=options.burst)
        print(show(storm, display, options.chart or Path("demo.svg"), as_json=options.json))
    return OK


def _emulate(options: argparse.Namespace) -> int:
    names = [flag[2:].replace("-", "_") for flag in _EMULATOR_FLAGS] + ["dialect", "fault", "limit_headers"]
    base = EmulatorConfig.demo() if options.demo else EmulatorConfig()
    try:
        config = EmulatorConfig.from_mapping({name: getattr(options, name) for name in names}, base)
    except ValueError as error:
        return _fail(str(error), UNUSABLE)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run_emulator(config, options.host, options.port))


async def _run_emulator(config: EmulatorConfig, host: str, port: int) -> int:
    server = EmulatorServer(config, host=host, port=port)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await server.start()
    print(f"emulator: base_url {server.base_url}, control {server.url}/__emulator/stats", file=sys.stderr, flush=True)
    await stopping.wait()
    await server.stop()
    return OK


def _version(_options: argparse.Namespace) -> int:
    print(f"gateway {__version__}")
    return OK


def _compile(settings: Settings) -> PolicySnapshot:
    """The policy of a config that nothing will be sent with."""

    async def no_emulator(_name: str) -> str:
        raise RuntimeError("nothing is sent while a config is only checked")

    pools = Pools(no_emulator)

    def connect(provider: Provider, model: str | None) -> Wire:
        return Wire(provider, model, pools.transport(provider))

    return load_snapshot(
        settings.config, os.environ, connect=connect, version=1, now_wall=SystemClock().wall(), host=settings.host
    )


def _fail(message: str, code: int) -> int:
    for line in message.splitlines():
        print(f"gateway: {line}", file=sys.stderr)
    return code
