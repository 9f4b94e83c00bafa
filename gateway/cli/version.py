"""`gateway version`."""

from __future__ import annotations

import argparse

from gateway import __version__
from gateway.cli.main import OK


def version(_options: argparse.Namespace) -> int:
    """Prints the version."""
    print(f"gateway {__version__}")
    return OK
