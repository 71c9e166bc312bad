"""Runs tasks on a cluster of machines by Dask: connects to it or starts it, and gives an executor over it."""

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
from taylor.workflows.running.cluster_jobs import OtherVersions, Outcome, differences, run_task, versions
from taylor.workflows.running.process_pool import LOOK_SECONDS, ClusterGone, FarExecutor, WorkersDied, hear

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
MANAGERS = ("slurm", "pbs", "kubernetes")
MOST_WORKERS = 100_000
SUBMIT = {"slurm": "sbatch", "pbs": "qsub"}
"""Program that takes a job, by batch system."""

USUAL_JOBS = 10
"""Jobs requested from a batch system where the address has no number."""

USUAL_JOB = {"cores": 1, "processes": 1, "memory": "4GB"}
"""Default size of a batch system's job where the settings of dask-jobqueue have none: a solve is one thread."""

STRIKES = 3
"""Lost workers after which a job among others is deferred; one alone is abandoned after the same number."""

REPORT_SECONDS = 0.5
"""Interval in which changes of a number are sent together: each one is a message to every worker."""

COUNT_SECONDS = 2.0
"""Interval in which the workers are counted."""

CONNECT_SECONDS = 20.0

CLOSE_SECONDS = 2.0
"""Time for the scheduler to take note of the end."""

FIRST_PORT = 1024
"""Lowest port of a user's scheduler; below are the system's services (RFC 6335)."""

ASK_SECONDS = 30.0
"""Time for all workers to answer; one that is just starting may never do."""

_ADDRESS = re.compile(r"(?:(?:tcp|tls|ws|wss|ucx)://)?[\w.\-\[\]:]+:\d{1,5}")


@dataclass(frozen=True)
class ClusterAddress:
    """Place where tasks run.

    Parameters
    ----------
    kind : str
        `LOCAL`, one of `MANAGERS`, or ``""`` for a scheduler that runs already.
    workers : int
        Number of workers to start.
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
    """Tasks on a cluster's workers, as in `concurrent.futures`, with what Dask's executor lacks.

    A task with a `key` is known to the scheduler by it. A task whose worker is lost goes to another; one that has lost
    `STRIKES` workers ends with `WorkersDied`, and may be sent again. A worker with other versions than this machine's
    is retired, and its task is sent again. Outcomes are fetched concurrently, so that none waits for another.

    Parameters
    ----------
    client : distributed.Client
        Closed by its owner.
    """

    def __init__(self, client: Client) -> None:
        self._client: Any = client
        self._versions = versions()
        self._reported: dict[tuple[str, int], float] = {}
        self._telling = False
        self._counted = (-COUNT_SECONDS, 1)
        self._refused: set[str] = set()
        self._convicted: set[str | None] = set()

    @property
    def at_once(self) -> int:
        """Threads of all workers: one more task would wait behind another, and be blamed too if that kills it."""
        if time.monotonic() - self._counted[0] >= COUNT_SECONDS:
            with suppress(Exception):  # Dask's error depends on what it was doing; the tasks' own outcomes report it
                self._counted = time.monotonic(), max(sum(self._client.nthreads().values()), 1)
        return self._counted[1]

    def everywhere(self, ask: Callable[[], bool]) -> bool:
        """Return whether every worker says yes."""
        answers = asyncio.run_coroutine_threadsafe(self._ask(ask), self._loop).result()
        return bool(answers) and all(answer is True for answer in answers.values())

    def unlike(self) -> tuple[dict[str, str], int]:
        """Version differences of each worker that has others, in words; and the number of workers that answered.

        Those that do not answer in time are skipped: each of their tasks is checked by itself.
        """
        return asyncio.run_coroutine_threadsafe(self._unlike(), self._loop).result()

    def tell(self, name: str, index: int, value: float) -> None:
        """Send a number to every worker, with others of the same half second."""
        self._reported[name, index] = value
        if not self._telling:
            self._telling = True
            asyncio.run_coroutine_threadsafe(self._send_to_all(), self._loop)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Send a task; its future gets its result or exception.

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
            # A new key for another attempt: the failure is remembered under the first.
            name = None if key is None else f"{key}{f'-{attempt}' if attempt else ''}"
            future = None
            try:
                future = self._client.submit(run_task, dict(self._versions), task, arguments, key=name, pure=False)
                outcome = await future
            except KilledWorker as error:
                self._convicted.add(key)
                # A killed worker also loses its waiting tasks: this one may not be at fault.
                raise WorkersDied(
                    f"it has ended {error.allowed_failures + 1} workers, the last {error.last_worker.address}, and is "
                    "left out; is their memory too small for it?"
                ) from None
            except asyncio.CancelledError:
                if self._client.status == "running":
                    raise
                raise _gone() from None
            except Exception as error:  # of the cluster, not of the task, whose exceptions come back as values
                if self._client.status != "running":
                    raise _gone() from error
                attempt, reason = attempt + 1, f"{type(error).__name__}: {error}"
                log.debug("attempt %d of a task failed: %s", attempt, reason)
                continue
            finally:
                if future is not None:
                    future.release()
            if isinstance(outcome, OtherVersions):
                await self._refuse(outcome)
                continue
            assert isinstance(outcome, Outcome)
            if outcome.error is not None:
                raise outcome.error
            return outcome.value
        raise OutsideProgramError(f"{STRIKES} workers could not run it: {reason}")

    async def _refuse(self, other: OtherVersions) -> None:
        """Retire the worker that reported other versions: each such worker costs its tasks one round trip.

        Raises
        ------
        OutsideProgramError
            When no other is left.
        """
        words = differences(self._versions, other.found)
        if other.worker not in self._refused:
            self._refused.add(other.worker)
            log.warning("worker %s is sent away: %s", other.worker, words)
            await self._client.retire_workers([other.worker])
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

    async def _send_to_all(self) -> None:
        await asyncio.sleep(REPORT_SECONDS)
        self._telling = False
        values, self._reported = self._reported, {}
        with suppress(OSError, TimeoutError, asyncio.CancelledError):  # a worker that misses it continues as before
            await self._client.run(hear, values, on_error="ignore")


def _gone() -> ClusterGone:
    return ClusterGone("the cluster's scheduler is gone; what was finished is kept")


@contextmanager
def _ended_with(client: Client) -> Iterator[None]:
    """Turn what Dask raises once its scheduler is gone into `ClusterGone`, whatever it was doing."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TaylorError) or client.status == "running":
            raise
        raise _gone() from error


@contextmanager
def _closing(client: Client) -> Iterator[Client]:
    """Client that is closed behind the block, in which a dead scheduler raises nothing more."""
    try:
        yield client
    finally:
        with suppress(Exception):
            client.close(timeout=CLOSE_SECONDS)


@contextmanager
def open_cluster(text: str | None) -> Iterator[ClusterExecutor | None]:
    """Context with the executor of a cluster; None in it where no cluster is named.

    Parameters
    ----------
    text : str or None
        As `ClusterAddress.parse` reads it. Workers started here end with the block.

    Raises
    ------
    InputError
        When Dask is not installed, the address is invalid, or nothing answers there.
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
    for name in ("distributed", "tornado.application", "asyncio"):  # their log of a failure repeats its error
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", r"\s*Port \d+ is already in use")  # of a dashboard: another is taken
    with ExitStack() as opened:
        # A lost worker's job goes to others; the third loss convicts it.
        opened.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": STRIKES - 1}))
        try:
            where = opened.enter_context(_started(address)) if address.kind else address.scheduler
            client = opened.enter_context(_closing(Client(where, timeout=CONNECT_SECONDS, set_as_default=False)))
        except TaylorError:
            raise
        except Exception as error:  # Dask's error depends on what ended
            if address.kind:
                what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                message = f"--cluster {text} could not be started: {what}; start the command again"
                raise OutsideProgramError(message) from error
            raise InputError(
                f"cannot be reached: {error}", field="--cluster", value=text, cure="is its scheduler running?"
            ) from None
        opened.enter_context(_ended_with(client))
        if not client.nthreads():
            log.info("cluster: waiting for the first worker of %s (Ctrl-C ends the wait)", address)
            while not client.nthreads():
                time.sleep(LOOK_SECONDS)
        executor = ClusterExecutor(client)
        _require_alike(executor, client, address)
        yield executor


def _require_alike(executor: ClusterExecutor, client: Client, address: ClusterAddress) -> None:
    """Refuse a cluster whose workers all run other code; log the cluster.

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
    text = ", ".join(f"{name} {here[name]}" for name in here if name != "code")
    log.info("cluster: %s, %d workers (%s)", address, len(threads), text)
    if any(count > 1 for count in threads.values()):
        log.warning("cluster: some workers have several threads, which share one interpreter: --nthreads 1 is faster")


@contextmanager
def _started(address: ClusterAddress) -> Iterator[Any]:
    """Workers that an address requests, started; they end with the block.

    Raises
    ------
    InputError
        When the library that starts them is missing, or does not know how.
    """
    if address.kind == LOCAL:
        from distributed import LocalCluster

        isolate_processes()

        # Threads of numerical libraries would only compete for each other's cores.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with LocalCluster(
            n_workers=address.workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        ) as cluster:
            # By default Dask abandons a worker that dies while it starts, or restarts for longer than 15 s.
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
    """Cluster object of a batch system, with its jobs requested; its own settings define a job."""
    if address.kind == "kubernetes":
        from dask_kubernetes.operator import KubeCluster

        return KubeCluster(name=f"taylor-{os.getpid()}", n_workers=address.workers)
    import dask

    dask_jobqueue = imported("dask_jobqueue")
    settings = {name: dask.config.get(f"jobqueue.{address.kind}.{name}", None) for name in (*USUAL_JOB, "walltime")}
    usual = {"processes": settings["cores"] or USUAL_JOB["processes"]}
    job: dict[str, Any] = {name: usual.get(name, value) for name, value in USUAL_JOB.items() if settings[name] is None}
    text = ", ".join(f"{name} {value}" for name, value in {**settings, **job}.items())
    log.info("cluster: each of %d jobs of %s has %s; ~/.config/dask/jobqueue.yaml changes it", address.workers,
             address.kind, text)  # fmt: skip
    if dask.config.get(f"jobqueue.{address.kind}.python", None) is None:
        job["python"] = command_without_folder(sys.executable)
    cluster = {"slurm": dask_jobqueue.SLURMCluster, "pbs": dask_jobqueue.PBSCluster}[address.kind](**job)
    try:
        # The first job is awaited until it is submitted; `scale` only logs a line on a failure.
        cluster.worker_spec.update(cluster.new_worker_spec())
        cluster.sync(cluster._correct_state)
    except BaseException:
        with suppress(Exception):  # an unsubmitted job cannot be cancelled
            cluster.close()
        raise
    # `scale` requests once: a job that reached its time limit is requested again.
    cluster.adapt(minimum_jobs=address.workers, maximum_jobs=address.workers)
    return cluster
