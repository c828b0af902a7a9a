"""Words of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from .machine import cores


def positive(text: str) -> int:
    """A count."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, but is {number}")
    return number


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """What all commands that run jobs understand."""
    parser.add_argument("--workers", type=positive, default=cores(), help="processes side by side (%(default)s)")
    parser.add_argument("--force", action="store_true", help="redo what is finished")


def add_out(parser: argparse.ArgumentParser) -> None:
    """Where results are kept."""
    parser.add_argument("--out", type=Path, default=Path("results"), help="directory of the results (%(default)s)")
