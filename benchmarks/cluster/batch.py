"""A ranking on the jobs of a batch system: a real Slurm of one node, and a stand-in for PBS that runs what it is given.

Slurm is Debian's packages slurm-wlm and munge, started here as root; PBS is in no Debian, so that its `qsub` and `qdel`
are shell scripts, as in dask-jobqueue's own tests. What they are given is what dask-jobqueue gives the real ones.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster.rankings import candidates, ranked
from benchmarks.reliability.campaign import Figure, Part, Portion, Result
from taylor.workflows.running.cluster import open_cluster

CANDIDATES, JOBS = 24, 2
START_SECONDS = 60.0

SLURM_CONF = """ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=16000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""

QSUB = """#!/bin/bash
cp "${{@: -1}}" {folder}/$$.job
setsid bash {folder}/$$.job > {folder}/$$.log 2>&1 < /dev/null &
echo $! > {folder}/$$.pid
echo $$.here
"""
QDEL = """#!/bin/bash
kill -- -$(cat {folder}/${{1%.here}}.pid)
"""


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _words(*words: object) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout


@contextmanager
def one_node_slurm(folder: Path) -> Iterator[None]:
    """A Slurm of this machine alone, that ends with the block.

    Raises
    ------
    RuntimeError
        When its node does not come up.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    host = socket.gethostname()
    config = SLURM_CONF.format(host=host, folder=folder, port=_free_port(), node_port=_free_port())
    (folder / "slurm.conf").write_text(config)
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = ["munged", "--foreground", "--force", *(f"--{flag}={folder}/munge.{name}" for flag, name in files.items())]
    started = []
    try:
        for words in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
            started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(2.0)
        end = time.monotonic() + START_SECONDS
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout:
            if time.monotonic() > end:
                raise RuntimeError(f"Slurm's node does not come up: {folder}/slurmctld.log")
            time.sleep(1.0)
        yield
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def _jobs() -> list[str]:
    return _words("squeue", "-h", "-o", "%i").split()


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not until() and time.monotonic() < end:
        time.sleep(1.0)


def slurm() -> Result:
    """Rank on two jobs of Slurm; then again while one of them is cancelled."""
    if shutil.which("slurmctld") is None or shutil.which("munged") is None or os.geteuid():
        return {"missing": "Debian's slurm-wlm and munge, as root"}
    with tempfile.TemporaryDirectory(prefix="slurm-") as own, one_node_slurm(Path(own)):
        os.environ["DASK_JOBQUEUE__SLURM__LOG_DIRECTORY"] = own
        loaded = candidates(Path(own), CANDIDATES)
        alone = ranked(loaded, Path(own, "alone"), None)
        with open_cluster(f"slurm:{JOBS}") as executor:
            assert executor is not None
            far = ranked(loaded, Path(own, "far"), executor)
            first = _jobs()
            killer = threading.Timer(far.seconds / 2, lambda: _words("scancel", first[0]))
            killer.start()
            again = ranked(loaded, Path(own, "again"), executor)
            killer.join()
            _wait(lambda: len(_jobs()) == JOBS and first[0] not in _jobs())
            after = _jobs()
        _wait(lambda: not _jobs())
        left = _jobs()
        return {"version": _words("sinfo", "--version").strip(), "same": far.table == alone.table, "left": left,
                "same_after_cancel": again.table == alone.table, "jobs": first, "jobs_after": after}  # fmt: skip


def pbs() -> Result:
    """Rank on two jobs of a stand-in for PBS."""
    with tempfile.TemporaryDirectory(prefix="pbs-") as own:
        folder = Path(own)
        for name, text in (("qsub", QSUB), ("qdel", QDEL)):
            (folder / name).write_text(text.format(folder=folder))
            (folder / name).chmod(0o755)
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        loaded = candidates(folder, CANDIDATES)
        alone = ranked(loaded, folder / "alone", None)
        with open_cluster(f"pbs:{JOBS}") as executor:
            far = ranked(loaded, folder / "far", executor)
        scripts = sorted(folder.glob("*.job"))
        return {"same": far.table == alone.table, "jobs": len(scripts), "script": scripts[0].read_text()}


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """A row each."""
    one, other = results["slurm"], results["pbs"]
    if "missing" in one:
        measured, holds = f"not run: needs {one['missing']}", False
    else:
        replaced = len(one["jobs_after"]) == JOBS and one["jobs_after"] != one["jobs"]
        measured = (
            f"{one['version']}: {'the same bytes' if one['same'] else 'other bytes'}; with a job cancelled on the way "
            f"{'the same bytes' if one['same_after_cancel'] else 'other bytes'}, "
            f"{'another job in its place' if replaced else 'no job in its place'}, {len(one['left'])} jobs left behind"
        )
        holds = one["same"] and one["same_after_cancel"] and replaced and not one["left"]
    return [
        Figure("batch", "`--cluster slurm:2`: the table of one process", measured, holds, "a real Slurm of one node"),
        Figure(
            "batch", "`--cluster pbs:2`: the table of one process",
            f"{other['jobs']} jobs: {'the same bytes' if other['same'] else 'other bytes'}", other["same"],
            "`qsub` and `qdel` are stand-ins that run and end the job script",
        ),
    ]  # fmt: skip


SOURCES = ("workflows/running/cluster.py", "workflows/running/cluster_jobs.py", "workflows/running/far_solve.py")
BATCH = Part("batch", lambda share: [Portion("slurm", slurm), Portion("pbs", pbs)], figures, at_once=1, sources=SOURCES)
