"""Runs tasks on a cluster of machines, by Dask: what to connect to or to start, and an executor over it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from taylor.base.console import log
from taylor.base.errors import InputError, OutsideProgramError, TaylorError
from taylor.base.interrupts import imported
from taylor.base.isolated import command_without_folder, isolate_processes
from taylor.workflows.running.cluster_jobs import OtherVersions, Told, differences, run_task, versions
from taylor.workflows.running.process_pool import LOOK_SECONDS, FarExecutor, WorkersDied, hear

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
MANAGERS = ("slurm", "pbs", "kubernetes")
MOST_WORKERS = 100_000
SUBMIT = {"slurm": "sbatch", "pbs": "qsub"}
"""The program that takes a job, by batch system."""

USUAL_JOBS = 10
"""Jobs asked of a batch system where the address names no number."""

USUAL_JOB = {"cores": 1, "processes": 1, "memory": "4GB"}
"""What a job of a batch system is where the settings of dask-jobqueue do not say it: a solve is one thread."""

STRIKES = 3
"""A job that has ended so many workers beside others is put off; one that ends so many alone is left out."""

TELL_SECONDS = 0.5
"""Numbers that change faster than this are passed on together: each time is a message to every worker."""

COUNT_SECONDS = 2.0
"""How often the workers are counted."""

CONNECT_SECONDS = 20.0

FIRST_PORT = 1024
"""Below are ports of the system's own services (RFC 6335), which no user's scheduler has."""

ASK_SECONDS = 30.0
"""How long all workers may take to answer; one that is just starting may never do."""

_ADDRESS = re.compile(r"(?:(?:tcp|tls|ws|wss|ucx)://)?[\w.\-\[\]:]+:\d{1,5}")


@dataclass(frozen=True)
class ClusterAddress:
    """Where tasks run.

    Parameters
    ----------
    kind : str
        `LOCAL`, one of `MANAGERS`, or ``""`` for a scheduler that runs already.
    workers : int
        How many to start.
    scheduler : str
        The running scheduler's address.
    """

    kind: str
    workers: int = 0
    scheduler: str = ""

    @classmethod
    def parse(cls, text: str) -> ClusterAddress:
        """Read ``local:N``, ``slurm[:N]``, ``pbs[:N]``, ``kubernetes[:N]`` or a scheduler's address.

        Raises
        ------
        ValueError
            When it is none of these.
        """
        kind, colon, count = text.strip().partition(":")
        if kind in (LOCAL, *MANAGERS) and not (kind != LOCAL and not colon):
            if not count.isdecimal() or not 1 <= int(count[:9]) <= MOST_WORKERS:
                raise ValueError(f"{kind}: needs the number of workers behind it, as {kind}:8")
            return cls(kind, int(count))
        if kind in MANAGERS:
            return cls(kind, USUAL_JOBS)
        if not _ADDRESS.fullmatch(text.strip()):
            raise ValueError("neither local:N, slurm, pbs, kubernetes nor a scheduler's address (tcp://HOST:PORT)")
        near = get_close_matches(kind, (LOCAL, *MANAGERS), n=1)
        if near and count.isdecimal() and int(count) < FIRST_PORT:
            raise ValueError(f"no scheduler's address, for ports begin at {FIRST_PORT}; is it {near[0]}:{count}?")
        return cls("", scheduler=text.strip())

    def __str__(self) -> str:
        return self.scheduler or f"{self.kind}:{self.workers}"


class ClusterExecutor(FarExecutor):
    """Tasks on a cluster's workers, as `concurrent.futures` has them; what Dask's own executor leaves out is here.

    A task with a `key` is known to the scheduler by it. A task whose worker is lost is given to another; one that has
    ended `STRIKES` workers ends with `WorkersDied`, and may be sent again. A worker with other versions than this
    machine's is retired, and its task is sent again. Outcomes are fetched side by side, so that none waits for another.

    Parameters
    ----------
    client : distributed.Client
        Closed by its owner.
    """

    def __init__(self, client: Client) -> None:
        self._client: Any = client
        self._versions = versions()
        self._told: dict[tuple[str, int], float] = {}
        self._telling = False
        self._counted = (-COUNT_SECONDS, 1)
        self._refused: set[str] = set()
        self._convicted: set[str | None] = set()

    @property
    def at_once(self) -> int:
        """Threads of all workers: one more task would wait behind another, and share the blame if that kills it."""
        if time.monotonic() - self._counted[0] >= COUNT_SECONDS:
            with suppress(OSError, TimeoutError):
                self._counted = time.monotonic(), max(sum(self._client.nthreads().values()), 1)
        return self._counted[1]

    def everywhere(self, ask: Callable[[], bool]) -> bool:
        """Whether every worker says yes."""
        answers = asyncio.run_coroutine_threadsafe(self._ask(ask), self._loop).result()
        return bool(answers) and all(answer is True for answer in answers.values())

    def unlike(self) -> tuple[dict[str, str], int]:
        """How the versions of each worker that has others differ, in words; and how many workers have answered.

        Those that do not answer in time are passed over: each task that they are given is checked by itself.
        """
        return asyncio.run_coroutine_threadsafe(self._unlike(), self._loop).result()

    def tell(self, name: str, index: int, value: float) -> None:
        """Pass a number on to every worker, with others of the same half second."""
        self._told[name, index] = value
        if not self._telling:
            self._telling = True
            asyncio.run_coroutine_threadsafe(self._tell_all(), self._loop)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a task; its future takes what it gives or raises.

        Raises
        ------
        TypeError
            For keyword arguments, which no task here has.
        """
        if kwargs:
            raise TypeError("tasks of a cluster take no keyword arguments")
        return asyncio.run_coroutine_threadsafe(self._outcome(fn, args), self._loop)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop: asyncio.AbstractEventLoop = self._client.loop.asyncio_loop
        return loop

    async def _outcome(self, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        from distributed.scheduler import KilledWorker

        key, attempt, reason = getattr(task, "key", None), 0, ""
        if key is not None and key in self._convicted:
            key = f"{key}-alone"
        while attempt < STRIKES:
            # A key of its own for another attempt: what failed is remembered under the first.
            name = None if key is None else f"{key}{f'-{attempt}' if attempt else ''}"
            future = self._client.submit(run_task, dict(self._versions), task, arguments, key=name, pure=False)
            try:
                told = await future
            except KilledWorker as error:
                self._convicted.add(key)
                # Whoever is killed takes along what waited on it: it may not have been this task's fault.
                raise WorkersDied(
                    f"it has ended {error.allowed_failures + 1} workers, the last {error.last_worker.address}, and is "
                    "left out; is their memory too small for it?"
                ) from None
            except asyncio.CancelledError:
                if self._client.status == "running":
                    raise
                raise OutsideProgramError("the cluster's scheduler is gone; what was finished is kept") from None
            except Exception as error:  # of the cluster, not of the task: what that raises comes back as a value
                attempt, reason = attempt + 1, f"{type(error).__name__}: {error}"
                log.debug("attempt %d of a task failed: %s", attempt, reason)
                continue
            finally:
                future.release()
            if isinstance(told, OtherVersions):
                await self._refuse(told)
                continue
            assert isinstance(told, Told)
            if told.error is not None:
                raise told.error
            return told.value
        raise TaylorError(f"{STRIKES} workers could not run it: {reason}")

    async def _refuse(self, told: OtherVersions) -> None:
        """Retire the worker that has told of other versions: each worker costs its tasks one way there and back.

        Raises
        ------
        OutsideProgramError
            When no other is left.
        """
        words = differences(self._versions, told.found)
        if told.worker not in self._refused:
            self._refused.add(told.worker)
            log.warning("worker %s is sent away: %s", told.worker, words)
            await self._client.retire_workers([told.worker])
        if self._refused.issuperset(await self._client.scheduler.ncores()):
            raise OutsideProgramError(f"no worker of the cluster runs what this machine runs ({words})")

    async def _unlike(self) -> tuple[dict[str, str], int]:
        found = await self._ask(versions)
        words = {
            worker: differences(self._versions, each)
            if isinstance(each, Mapping)
            else f"no taylor that answers ({each})"
            for worker, each in found.items()
        }
        return {worker: text for worker, text in words.items() if text}, len(found)

    async def _ask(self, function: Callable[[], Any]) -> dict[str, Any]:
        try:
            return dict(await asyncio.wait_for(self._client.run(function, on_error="return"), ASK_SECONDS))
        except (OSError, TimeoutError, asyncio.TimeoutError):
            return {}

    async def _tell_all(self) -> None:
        await asyncio.sleep(TELL_SECONDS)
        self._telling = False
        values, self._told = self._told, {}
        with suppress(OSError, TimeoutError, asyncio.CancelledError):  # who does not hear works on as before
            await self._client.run(hear, values, on_error="ignore")


@contextmanager
def open_cluster(text: str | None) -> Iterator[ClusterExecutor | None]:
    """The executor of a cluster, as a context; None in it where no cluster is named.

    Parameters
    ----------
    text : str or None
        As `ClusterAddress.parse` reads it. What is started here ends with the block.

    Raises
    ------
    InputError
        When Dask is not installed, the address is none, or nothing answers there.
    OutsideProgramError
        When every worker runs other code.
    """
    if not text:
        yield None
        return
    try:
        address = ClusterAddress.parse(text)
    except ValueError as error:
        raise InputError(f"is {error}", field="--cluster", value=text) from None
    try:
        import dask
        from distributed import Client
    except ImportError:
        cure = "pip install 'taylor-parallel[cluster]'"
        raise InputError("needs Dask", field="--cluster", value=text, cure=cure) from None
    for name in ("distributed", "tornado.application", "asyncio"):  # what they log of a failure, its error says
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"\s*Port \d+ is already in use")  # of a dashboard: another is taken
    with ExitStack() as opened:
        # A lost worker's job is given to others; it is the third that convicts it.
        opened.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": STRIKES - 1}))
        try:
            where = opened.enter_context(_started(address)) if address.kind else address.scheduler
            client = opened.enter_context(Client(where, timeout=CONNECT_SECONDS, set_as_default=False))
        except (OSError, TimeoutError, RuntimeError) as error:
            raise InputError(
                f"cannot be reached: {error}", field="--cluster", value=text, cure="is its scheduler running?"
            ) from None
        if not client.nthreads():
            log.info("cluster: waiting for the first worker of %s (Ctrl-C ends the wait)", address)
            while not client.nthreads():
                time.sleep(LOOK_SECONDS)
        executor = ClusterExecutor(client)
        _require_alike(executor, client, address)
        yield executor


def _require_alike(executor: ClusterExecutor, client: Client, address: ClusterAddress) -> None:
    """Refuse a cluster whose workers all run other code; say what it is.

    Raises
    ------
    OutsideProgramError
        When no worker could run a task.
    """
    here = versions()
    unlike, asked = executor.unlike()
    if unlike and len(unlike) == asked:
        worker, words = next(iter(unlike.items()))
        raise OutsideProgramError(
            f"--cluster {address}: its workers cannot run what this machine runs: {worker} has {words}; "
            "install the same taylor there"
        )
    if unlike:
        client.retire_workers(list(unlike))
    for worker, words in unlike.items():
        log.warning("worker %s is sent away: %s", worker, words)
    threads = client.nthreads()
    told = ", ".join(f"{name} {here[name]}" for name in here if name != "code")
    log.info("cluster: %s, %d workers (%s)", address, len(threads), told)
    if any(count > 1 for count in threads.values()):
        log.warning("cluster: some workers have several threads, which share one interpreter: --nthreads 1 is faster")


@contextmanager
def _started(address: ClusterAddress) -> Iterator[Any]:
    """The workers that an address asks for, started; they end with the block.

    Raises
    ------
    InputError
        When the library that starts them is missing, or does not know how.
    """
    if address.kind == LOCAL:
        from distributed import LocalCluster

        isolate_processes()

        # Threads of numerical libraries would only take each other's cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with LocalCluster(
            n_workers=address.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster:
            # By itself Dask gives a worker up that dies while it starts, or starts anew for longer than 15 s.
            cluster.adapt(minimum=address.workers, maximum=address.workers)
            yield cluster
        return
    program = SUBMIT.get(address.kind)
    if program is not None and shutil.which(program) is None:
        raise InputError(
            f"needs {program}, which is not here",
            field="--cluster",
            value=str(address),
            cure="start it where jobs are submitted from",
        )
    library = "dask-kubernetes" if address.kind == "kubernetes" else "dask-jobqueue"
    try:
        cluster = _managed(address)
    except ImportError:
        raise InputError(
            f"needs {library}", field="--cluster", value=str(address), cure=f"pip install {library}"
        ) from None
    except Exception as error:  # each of these libraries has errors of its own
        raise InputError(
            f"could not be started: {type(error).__name__}: {' '.join(str(error).split())}",
            field="--cluster",
            value=str(address),
            cure=f"the settings of {library} name queue, cores, memory and time of a job: docs/cluster.md",
        ) from None
    with cluster:
        yield cluster


def _managed(address: ClusterAddress) -> Any:
    """The cluster object of a batch system, asked for its jobs; its own settings say what a job is."""
    if address.kind == "kubernetes":
        from dask_kubernetes.operator import KubeCluster

        return KubeCluster(name=f"taylor-{os.getpid()}", n_workers=address.workers)
    import dask

    dask_jobqueue = imported("dask_jobqueue")
    settings = {name: dask.config.get(f"jobqueue.{address.kind}.{name}", None) for name in (*USUAL_JOB, "walltime")}
    usual = {"processes": settings["cores"] or USUAL_JOB["processes"]}
    job: dict[str, Any] = {name: usual.get(name, value) for name, value in USUAL_JOB.items() if settings[name] is None}
    told = ", ".join(f"{name} {value}" for name, value in {**settings, **job}.items())
    log.info("cluster: each of %d jobs of %s has %s; ~/.config/dask/jobqueue.yaml changes it", address.workers,
             address.kind, told)  # fmt: skip
    if dask.config.get(f"jobqueue.{address.kind}.python", None) is None:
        job["python"] = command_without_folder(sys.executable)
    cluster = {"slurm": dask_jobqueue.SLURMCluster, "pbs": dask_jobqueue.PBSCluster}[address.kind](**job)
    try:
        # The first job is waited for until it is submitted; of `scale`, what hinders that is only a line in a log.
        cluster.worker_spec.update(cluster.new_worker_spec())
        cluster.sync(cluster._correct_state)
    except BaseException:
        with suppress(Exception):  # what was not submitted cannot be cancelled
            cluster.close()
        raise
    # `scale` asks once: a job that has come to the end of its time is asked for again.
    cluster.adapt(minimum_jobs=address.workers, maximum_jobs=address.workers)
    return cluster
