"""Where a command's work runs and where its results are remembered: flags that several commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from taylor.command_lines.arguments import CommandParser

if TYPE_CHECKING:  # a command's --help must not wait for Dask
    from concurrent.futures import Executor

CLUSTER_VARIABLE = "TAYLOR_CLUSTER"


def add_cluster_option(parser: CommandParser) -> None:
    """Add ``--cluster``."""
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--cluster",
        metavar="ADDRESS",
        default=os.environ.get(CLUSTER_VARIABLE, ""),
        help="where candidates are solved, by Dask: a scheduler's address, local:N (N processes), slurm[:JOBS], "
        f"pbs[:JOBS] or kubernetes[:N]; docs/cluster.md (default: {CLUSTER_VARIABLE} of the environment, else a "
        "process a core)",
    )


@contextmanager
def chosen_cluster(args: argparse.Namespace) -> Iterator[Executor | None]:
    """The executor of the cluster that a command line names, as a context; None where it names none.

    Raises
    ------
    InputError
        When there is no such cluster.
    """
    if not args.cluster:
        yield None
        return
    from taylor.workflows.cluster import open_cluster

    with open_cluster(args.cluster) as executor:
        yield executor
