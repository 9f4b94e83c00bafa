"""Values of arguments, for the modules that add the arguments of their commands; a message names what is allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

DEFAULT_URL = "http://127.0.0.1:8080"
"""Where a gateway listens, if nothing else is said."""
Actions = argparse._SubParsersAction  # the type that add_subparsers returns has no public name


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def between(least: int, most: int) -> Callable[[str], int]:
    """Returns what reads a whole number of these bounds."""

    def number(text: str) -> int:
        found = int(text)
        if not least <= found <= most:
            raise argparse.ArgumentTypeError(f"{found} is not between {least} and {most}")
        return found

    return number


def port_number(text: str) -> int:
    """Reads the number of a port; 0 is a free one."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{number} is not a port: 0 to 65535")
    return number


def seconds(text: str) -> float:
    """Reads a time such as 90m."""
    found = re.fullmatch(r"(\d{1,9})(s|m|h|d)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no time such as 90m, 24h or 7d")
    return float(found[1]) * _SECONDS[found[2]]
