"""Common command line of the two tools that rank: flags of a ranking, and the paths of its files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taylor.base.console import log
from taylor.base.errors import shortened
from taylor.command_lines.arguments import positive_int

if TYPE_CHECKING:
    from taylor.workflows.measuring.history import Store
    from taylor.workflows.ranking.rank import Ranking

ALL = "all"

PROVEN = 5
"""Candidates proven by default; the workflow's default, which is not imported for a ``--help``."""


def add_ranking_options(group: Any) -> None:
    """Add ``--prove`` and ``--topn`` to a parser's group."""
    group.add_argument(
        "--prove",
        type=proven_number,
        default=PROVEN,
        metavar="N|all",
        help="solve the N best to their proof; the others stop where it is proven that they are not among them "
        "(default: %(default)s)",
    )
    group.add_argument("--topn", type=positive_int, metavar="N", help="rows printed (default: all)")


def add_shard_option(group: Any) -> None:
    """Add ``--shard`` to a parser's group."""
    group.add_argument(
        "--shard",
        type=shard_number,
        metavar="I/N",
        help="solve every N-th candidate, from the I-th on: one job of an array, whose results taylor merge joins",
    )


def shard_number(text: str) -> tuple[int, int]:
    """Type of ``--shard``: ``2/8``."""
    number, _, of = text.partition("/")
    try:
        shard = positive_int(number), positive_int(of)
    except (ValueError, argparse.ArgumentTypeError):
        shard = None
    if shard is None or shard[0] > shard[1]:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is no shard: the second of eight is 2/8")
    return shard


def proven_number(text: str) -> int | None:
    """Type of ``--prove``: a whole number above 0, or None for ``all``."""
    if text.strip().lower() == ALL:
        return None
    try:
        return positive_int(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"{shortened(repr(text))} is no number of candidates: name one above 0, or all"
        ) from None


def print_files(ranking: Ranking) -> None:
    """Print the paths of a ranking's table, page and files."""
    files = {"ranking": ranking.csv, "report": ranking.report, "run's files": ranking.folder}
    for role, path in files.items():
        if path is not None:
            print(f"{role:>12}: {path}")


def remember_ranking(store: Store | None, program: str, arguments: Sequence[str], ranking: Ranking) -> None:
    """Store a ranking, where there is a store, and log how to find it again."""
    if store is not None:
        from taylor.workflows.measuring import history

        name = history.remember_ranking(store, program, arguments, ranking)
        if name is not None:
            log.info("remembered as %s: taylor history %s", name, name)
