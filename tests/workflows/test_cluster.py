"""A ranking on a cluster of two real workers: the same table, whoever dies on the way; and what addresses mean."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.reliability.load import write_candidates
from taylor.base.errors import EXIT_OUTSIDE_PROGRAM, InputError, OutsideProgramError
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.register.registry import Registry
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.own_plans import problem_of
from taylor.workflows.ranking.rank import RankOptions, rank
from taylor.workflows.running.cluster import ClusterAddress, open_cluster
from taylor.workflows.running.far_solve import FarSolve, SharedFolder, sharing
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.running.process_pool import Failed, SharedNumbers, run_in_processes
from tests.conftest import ROOT


@pytest.mark.parametrize(
    "text, kind, workers, scheduler",
    [
        ("local:3", "local", 3, ""),
        ("slurm:40", "slurm", 40, ""),
        ("pbs", "pbs", 10, ""),
        ("kubernetes:2", "kubernetes", 2, ""),
        ("tcp://head.example:8786", "", 0, "tcp://head.example:8786"),
        ("10.0.0.1:8786", "", 0, "10.0.0.1:8786"),
    ],
)
def test_an_address_says_what_to_start_or_where_to_connect(text, kind, workers, scheduler):
    assert ClusterAddress.parse(text) == ClusterAddress(kind, workers, scheduler)


@pytest.mark.parametrize("text", ["local", "local:0", "local:many", "slurm:-1", "head", "tcp://head", "a b:1", "pbs:"])
def test_what_is_no_address_is_refused_with_the_forms_that_there_are(text):
    with pytest.raises(ValueError, match="local:N|number of workers"):
        ClusterAddress.parse(text)


@pytest.mark.parametrize(
    "address, words",
    [("nowhere", "scheduler's address"), ("slurm", "needs sbatch"), ("127.0.0.1:9", "is its scheduler running")],
)
def test_a_cluster_that_cannot_be_had_is_refused_by_the_flag_that_names_it(address, words, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("taylor.workflows.running.cluster.CONNECT_SECONDS", 1.0)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(InputError, match="--cluster") as refused, open_cluster(address):
        pass
    assert words in str(refused.value)


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("distributed")
    with open_cluster("local:2") as executor:
        yield executor


def square(number):
    return number * number


def worker_process(_):
    time.sleep(0.5)
    return os.getpid()


@dataclass(frozen=True)
class Task:
    """A task with a name."""

    work: object
    number: int
    key: str | None = None

    def __call__(self):
        return self.work(self.number)


def stumble(number):
    raise ZeroDivisionError("of nobody's making")


def refuse(number):
    raise InputError("is odd", field="number", value=number)


def die(number):
    os._exit(9)


def outcomes(tasks, executor, shared=None):
    told = {}

    def note(number, outcome):
        assert number not in told
        told[number] = outcome

    run_in_processes({number: lambda task=task: task for number, task in tasks.items()}, 1, note, executor, shared)
    return told


@pytest.mark.slow
def test_a_task_that_raises_or_kills_three_workers_fails_alone_and_says_so(cluster):
    tasks = {number: Task(square, number, f"square-{number}") for number in range(20)}
    told = outcomes({**tasks, 20: Task(stumble, 0), 21: Task(refuse, 21), 22: Task(die, 0)}, cluster)
    assert {number: told[number] for number in range(20)} == {number: number * number for number in range(20)}
    assert isinstance(told[20], Failed) and "ZeroDivisionError" in told[20].reason
    assert isinstance(told[21], Failed) and "is odd (found 21)" in told[21].reason
    assert isinstance(told[22], Failed) and "ended 3 workers" in told[22].reason


def wait_for_less(reader):
    end = time.monotonic() + 30
    while reader() > 1 and time.monotonic() < end:
        time.sleep(0.02)
    return reader()


@pytest.mark.slow
def test_a_running_task_on_another_machine_hears_of_a_number_that_has_changed(cluster):
    numbers = SharedNumbers(2)
    numbers[1] = 7.0
    told = {}

    def note(number, outcome):
        told[number] = outcome
        numbers[1] = 0.5

    waits = numbers.reader(1, scale=0.1)
    assert waits() == pytest.approx(0.7)
    tasks = {1: lambda: Task(wait_for_less, numbers.reader(1)), 2: lambda: Task(square, 2)}
    run_in_processes(tasks, 1, note, cluster, numbers)
    assert told == {1: 0.5, 2: 4}


@pytest.mark.slow
def test_the_table_is_that_of_one_process_though_workers_are_killed_and_nothing_is_solved_twice(
    cluster, tmp_path: Path
):
    write_candidates(tmp_path, 8)
    device = Registry.load(None).device("ascend-910b")
    loaded = load_candidates(sorted((tmp_path / "files").glob("*.yaml")), device)

    def table(folder: str, executor):
        options = RankOptions(SolveOptions(), workers=1, report=False, output=tmp_path / folder, prove=None)
        return rank(loaded, options, executor).table.drop(columns=["time", "file"]).to_csv()

    alone = table("alone", None)
    pids = list(cluster._client.run(os.getpid).values())
    assert len(pids) == 2

    def kill_some():
        for pid in pids:
            time.sleep(0.4)
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    killer.start()
    assert table("cluster", cluster) == alone
    killer.join()
    # What a worker has found is on the disk before it is told: who is given the work again finds it there.
    place = SharedFolder.marked(tmp_path / "cluster")
    job = FarSolve(problem_of(loaded[0]), SolveOptions(), None, place)
    kept = SolveStore(place.output).find(job.problem, job.how)
    assert kept is not None and job() == kept.solution
    assert sharing(cluster, tmp_path / "cluster") is cluster
    assert table("cluster", cluster) == alone


def test_a_folder_that_only_looks_the_same_is_not_taken_for_the_shared_one(tmp_path: Path):
    place = SharedFolder.marked(tmp_path)
    assert SharedFolder.marked(tmp_path) == place and place.seen_here()
    (tmp_path / ".shared").write_text("another")
    assert not place.seen_here()
    (tmp_path / ".shared").unlink()
    assert not place.seen_here()


@pytest.mark.slow
def test_workers_with_other_versions_are_sent_no_work(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "_versions", {**cluster._versions, "highspy": "0.1"})
    with pytest.raises(OutsideProgramError, match="highspy .* instead of 0.1"):
        cluster.submit(square, 3).result(timeout=60)


def started(*words):
    """A program of Dask's in a process of its own."""
    command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_dies_ends_the_work_with_code_5_and_keeps_what_was_done(tmp_path, number):
    pytest.importorskip("distributed")
    file, kept = tmp_path / "scheduler.json", {}
    scheduler = started("scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    wait_until(file.is_file)
    address = json.loads(file.read_text())["address"]
    worker = started("worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
    try:
        tasks = {place: lambda place=place: Task(slowly, place) for place in range(20)}

        def note(place, outcome):
            kept[place] = outcome
            scheduler.send_signal(number)

        with pytest.raises(OutsideProgramError, match="scheduler is gone") as ended, open_cluster(address) as executor:
            run_in_processes(tasks, 1, note, executor)
        assert ended.value.exit_code == EXIT_OUTSIDE_PROGRAM
        assert kept and all(outcome == place for place, outcome in kept.items()) and len(kept) < len(tasks)
    finally:
        for one in (worker, scheduler):
            one.kill()
            one.wait()


def slowly(number):
    time.sleep(0.5)
    return number


def test_a_local_cluster_that_does_not_start_is_no_slip_of_the_users(monkeypatch):
    distributed = pytest.importorskip("distributed")

    def fail(**_):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "LocalCluster", fail)
    with (
        pytest.raises(OutsideProgramError, match="could not be started.*Nanny failed") as ended,
        open_cluster("local:2"),
    ):
        pass
    assert "scheduler running" not in str(ended.value)


@pytest.mark.slow
def test_a_worker_that_dies_again_while_it_starts_is_replaced():
    pytest.importorskip("distributed")
    import dask
    import psutil

    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}), open_cluster("local:1") as executor:
        first = executor.submit(worker_process, 0).result(timeout=60)
        me = psutil.Process()

        def starting():
            return [one for one in me.children() if one.pid not in others and "spawn_main" in " ".join(one.cmdline())]

        others = {one.pid for one in me.children()}
        os.kill(first, signal.SIGKILL)
        wait_until(starting)
        starting()[0].kill()
        assert executor.submit(worker_process, 0).result(timeout=120) not in others


@pytest.mark.parametrize("text, told", [("slrum:2", "is it slurm:2"), ("locl:4", "is it local:4")])
def test_a_slip_of_the_pen_is_not_taken_for_a_host(text, told):
    with pytest.raises(ValueError, match=told):
        ClusterAddress.parse(text)
    assert ClusterAddress.parse("slurm1:8786").scheduler == "slurm1:8786"


def need_jobqueue():
    if importlib.util.find_spec("dask_jobqueue") is None:
        pytest.skip("dask-jobqueue is an extra")


def test_ctrl_c_stays_what_it_was_where_jobs_of_a_batch_system_are_asked_for():
    need_jobqueue()
    words = "import signal; from taylor.base.interrupts import imported; imported('dask_jobqueue'); " + (
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    subprocess.run([sys.executable, "-c", words], check=True, timeout=120)


def test_a_batch_system_that_takes_no_job_ends_the_command_with_its_reason(tmp_path: Path, monkeypatch):
    need_jobqueue()
    program = tmp_path / "sbatch"
    program.write_text("#!/bin/sh\necho 'Batch job submission failed: Invalid account' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(InputError, match="could not be started.*Invalid account"), open_cluster("slurm:2"):
        pass


def test_a_batch_system_is_asked_for_jobs_of_one_core_and_again_for_a_job_that_ended(tmp_path: Path, monkeypatch):
    """dask-jobqueue's own Slurm class, with an `sbatch` that writes down what it is given."""
    need_jobqueue()
    from taylor.workflows.running.cluster import _managed

    for name, words in {"sbatch": f"cp $1 {tmp_path}/$$.job; echo Submitted batch job $$", "scancel": ":"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with _managed(ClusterAddress("slurm", 2)) as cluster:
        wait_until(lambda: len(list(tmp_path.glob("*.job"))) == 2)
        wait_until(lambda: len(cluster.workers) == 2)
        cluster.workers.pop(next(iter(cluster.workers)))  # as Dask does with a job that has not come back
        wait_until(lambda: len(list(tmp_path.glob("*.job"))) == 3)
    script = next(tmp_path.glob("*.job")).read_text()
    assert "--cpus-per-task=1" in script and "--mem=4G" in script and "--nthreads 1" in script


def wait_until(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_chinese_pages_have_the_commands_and_the_figures_of_the_english_ones():
    def said(page):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        # A table that a command writes stands on the English page alone, which the Chinese one names.
        text = re.sub(r"<!-- Written by .*?<!-- End of what is written -->", "", text, flags=re.DOTALL)
        blocks = [re.sub(r" *# .*", "", block) for block in re.findall(r"```(.*?)```", text, re.DOTALL)]
        return blocks, [line for line in text.splitlines() if line.startswith("|")]

    for page in ("cluster.md", "tune.md"):
        assert said(page) == said(f"zh/{page}")
