"""Flags that several commands share: the machines of the work, and the store of the results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.errors import InputError
from taylor.command_lines.arguments import CommandParser

if TYPE_CHECKING:  # a command's --help must not wait for Dask, nor for the solvers
    from concurrent.futures import Executor

    from taylor.workflows.measuring.history import Store

CLUSTER_VARIABLE, STORE_VARIABLE = "TAYLOR_CLUSTER", "TAYLOR_STORE"

NO_STORE = "none"


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
    """Context with the executor of the cluster in a command line; None where it names none.

    Raises
    ------
    InputError
        When there is no such cluster.
    """
    if not args.cluster:
        yield None
        return
    from taylor.workflows.running.cluster import open_cluster

    with open_cluster(args.cluster) as executor:
        yield executor


def add_store_option(parser: CommandParser) -> None:
    """Add ``--store``."""
    parser.add_argument_group("history").add_argument(
        "--store",
        metavar="URL",
        default=os.environ.get(STORE_VARIABLE, ""),
        help="where runs are remembered: a SQLite file, postgresql://USER@HOST/NAME, or none "
        f"(default: {STORE_VARIABLE} of the environment, else history.sqlite in the folder of the results)",
    )


def chosen_store(args: argparse.Namespace, output: Path) -> Store | None:
    """Store in a command line, else that of the folder of the results; None where none is wanted.

    Raises
    ------
    InputError
        When the named one cannot be opened.
    """
    if args.store.strip().lower() == NO_STORE:
        return None
    from taylor.workflows.measuring.history import FILE, Store

    if not args.store:
        return Store(str(output / FILE))
    _refuse_other_names(args.store)
    store = Store(args.store)
    store.ensure()
    return store


def store_to_read(args: argparse.Namespace) -> Store:
    """Store in a command line, else that of the usual folder of the results.

    Raises
    ------
    InputError
        When there is none.
    """
    from taylor.workflows.measuring.history import FILE, Store

    if args.store:
        _refuse_other_names(args.store)
    path = Path("pipeline_output") / FILE
    if not args.store and not path.is_file():
        raise InputError("no run is remembered here", field="--store", value=str(path), cure="name a store")
    return Store(args.store or str(path))


def _refuse_other_names(url: str) -> None:
    """Refuse a file that is no database: a run must not end up in a file with another purpose."""
    from taylor.base.database import SUFFIXES, is_database, shown

    if not is_database(url):
        cure = f"name a file that ends in {', '.join(SUFFIXES)}, or postgresql://USER@HOST/NAME"
        raise InputError("is no store", field="--store", value=shown(url), cure=cure)
