"""The command line: serve, work, check, explain, targets, cache, stats, state, objects, jobs, webhooks, batch, and more.

Exit codes: 0 done, 1 could not run (port taken, second signal), 2 wrong usage or a config that cannot be used. Each command
is in a module that is imported when it is called. Every failure is a sentence on standard error, never a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from gateway import __version__

if TYPE_CHECKING:  # loaded while a signal may come
    import argparse

OK, FAILED, UNUSABLE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141
"""Done; it could not run; wrong usage, or a config that cannot be used; ended by Ctrl-C, as shells say it (128 + SIGINT), or by
a closed pipe (128 + SIGPIPE)."""


LASTING = ("serve", "work")
"""The commands that reload at SIGHUP; to all others the terminal says by it that it is gone."""


def fail(message: str, code: int) -> int:
    """Prints why, and returns the code."""
    for line in message.splitlines():
        print(f"gateway: {line}", file=sys.stderr)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command, and returns its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    name = next((word for word in words if not word.startswith("-")), None)
    if arguments is None:
        # For signals that come while the process loads. Ctrl-C ends it without a traceback; what runs until it is stopped is
        # about to read its config, so that SIGHUP asks for nothing yet.
        signal.signal(signal.SIGINT, lambda *_: sys.exit(INTERRUPTED))
        if name in LASTING:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from pydantic import ValidationError  # takes a second on a slow machine, in which a signal may come

    from gateway.cli.arguments import build_parser  # loads after the signals are set, too
    from gateway.core.errors import ConfigError, StoreUnusable  # loads after the signals are set, too

    options = build_parser(name).parse_args(words)
    try:
        module, function = options.command.split(":")
        command = getattr(import_module(module), function)
        if arguments is None:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which asyncio replaces by its own
        code = int(command(options))
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return fail("\n".join(error.problems), UNUSABLE)
    except ValidationError as error:
        problems = (f"GATEWAY_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}" for one in error.errors())
        return fail("\n".join(problems), UNUSABLE)
    except StoreUnusable as error:
        return fail(str(error), FAILED)
    except BrokenPipeError:  # who reads it has seen enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter complains at its end
        return PIPE_CLOSED
    except OSError as error:
        reason = error.strerror or str(error)
        return fail(f"{error.filename}: {reason}" if error.filename else reason, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED


def version(_options: argparse.Namespace) -> int:
    """Prints the version."""
    print(f"gateway {__version__}")
    return OK
