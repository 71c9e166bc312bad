"""Ring attention and Ulysses compared by small runs of a network of the second cluster, which can run both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from benchmarks.second_campaign import SecondNetwork
from benchmarks.second_cluster.cluster import second_cluster
from benchmarks.tune_campaign import CARDS
from taylor.blackbox.degree_search import Job, search
from taylor.blackbox.small_runs import SEARCHABLE, plan_small_runs
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws
from taylor.workflows.tuning.tune_switches import Comparison

SEED = 2  # Ring attention, no experts.


class BothWays(SecondNetwork):
    """A network whose attention follows the switch of the run."""

    def start(self, run):
        own = self.cluster
        if run.switched == ("cp_ulysses",):
            self.cluster = other_way(own)
        try:
            return super().start(run)
        finally:
            self.cluster = own


def other_way(cluster: Any) -> Any:
    return replace(cluster, design=replace(cluster.design, ring=not cluster.design.ring))


@pytest.mark.slow
def test_the_faster_algorithm_of_a_plan_is_kept(tmp_path):
    cluster = second_cluster(SEED)
    assert cluster.design.ring and cluster.design.experts == 1
    network = BothWays(cast(Any, cluster), tmp_path)
    planned = plan_small_runs(network.sizes, CARDS, SEARCHABLE).runs
    laws = TunedLaws(
        [ShownRun(one.name, one.setting, network.start(one)) for one in planned],
        network.launcher, network.sizes, network.options(False),
    )  # fmt: skip
    (switch,) = [one for one in network.launcher.switches(network.script) if one.name == "cp_ulysses"]
    sizes = replace(network.sizes, own=network.sizes.own.replace(cp=2, tp=2))
    job = network.job()
    job = Job(sizes, job.ranks, job.batch, job.limit, {"pp", "mbs"}, job.uniform)
    plan = search(job, laws.steps, count=1).best[0]
    compare = Comparison([switch], network.launcher, sizes, CARDS, network.start, str, job.limit)
    (done,) = compare.switched(plan, laws.steps, 16).compared
    true = [
        each.pass_ns("layer", plan.run, False) + each.pass_ns("layer", plan.run, True, again=True)
        for each in (cluster, other_way(cluster))
    ]
    assert done.after_ms / done.before_ms == pytest.approx(true[1] / true[0], rel=0.03)
    assert done.on == (true[1] < true[0] and done.fits)
