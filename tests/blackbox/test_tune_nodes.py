"""Runs that one node decides on, and the others start."""

from __future__ import annotations

import threading
import time

from taylor.blackbox.small_runs import SmallRun
from taylor.parsers.small_run import PlannedJob, RunSetting
from taylor.pipeline.plan import PipelinePlan
from taylor.workflows.tuning.tune_nodes import Nodes

RUNS = [
    SmallRun(f"verify{number}", RunSetting(tp=number, layers=2), "shows operators", 16, ("mc2",)) for number in (1, 2)
]
PLAN = PipelinePlan({"layer": ((3, 1),)}, {"full": ((1, 0),)})
RUNS.append(
    SmallRun("verify_whole", RunSetting(pp=2, layers=4), "runs the job", 10, (), PlannedJob(PLAN, (("mc2", True),), 64))
)


def test_every_other_node_starts_what_the_first_one_orders_once_and_then_leaves(tmp_path):
    started: dict[int, list[SmallRun]] = {1: [], 2: []}
    first = Nodes(tmp_path, 3, poll_s=0.01)
    first.order(SmallRun("verify9", RunSetting(), "of an earlier start"))
    first.close()
    first.open()
    others = [
        threading.Thread(target=Nodes(tmp_path, 3, poll_s=0.01).serve, args=(node, started[node].append, 20.0))
        for node in started
    ]
    for one in others:
        one.start()
    assert first.answer(20.0)
    for run in RUNS:
        first.order(run)
    while any(len(each) < len(RUNS) for each in started.values()):
        time.sleep(0.01)
    first.close()
    for one in others:
        one.join(20.0)
    assert not any(one.is_alive() for one in others) and started == {1: RUNS, 2: RUNS}


def test_nodes_that_see_another_folder_do_not_answer(tmp_path):
    first = Nodes(tmp_path, 2, poll_s=0.01)
    assert not first.answer(0.1)
    # What a node left that was killed counts no further.
    ran = []
    Nodes(tmp_path, 2, poll_s=0.01).serve(1, ran.append, 0.05)
    assert not first.answer(0.1) and not ran
