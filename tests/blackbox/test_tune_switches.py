"""Switches of a layer compared by small runs on a stand-in cluster: one pays, one does not, one takes memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import cast

import pytest

from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_files import log_lines, write_run
from benchmarks.tune_campaign import CARDS, Network, TrueSteps, true_ms
from taylor.blackbox.degree_search import Job, search
from taylor.blackbox.small_runs import SEARCHABLE, plan_small_runs
from taylor.blackbox.step_laws import StepLaws
from taylor.parsers.small_run import Switch
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws
from taylor.workflows.tuning.tune_switches import Comparison

MC2, SAME, SLOW = Switch("mc2", "--a", above=("tp",)), Switch("same", "--b"), Switch("slow", "--c")


class Switched(Network):
    """A network on whose cluster ``mc2`` doubles the links inside a node, and ``slow`` halves them."""

    def __post_init__(self):
        super().__post_init__()
        self.started = []

    def start(self, run):
        self.starts += 1
        self.started.append(run)
        cluster = self.cluster.with_links(2.0 ** (("mc2" in run.switched) - ("slow" in run.switched)))
        place = self.folder / run.name
        shutil.rmtree(place, ignore_errors=True)
        took = write_run(cluster, run.setting, place / "profile", range(8, 8 + run.steps), self.starts)
        (place / "run.log").write_text(log_lines(cluster, run.setting, 8 + run.steps, took))
        return place


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return Switched(hidden_cluster(3), tmp_path_factory.mktemp("switched"))


@pytest.fixture(scope="module")
def laws(network):
    planned = plan_small_runs(network.sizes, CARDS, SEARCHABLE).runs
    shown = [ShownRun(one.name, one.setting, network.start(one)) for one in planned]
    return TunedLaws(shown, network.launcher, network.sizes, network.options(False))


@pytest.fixture(scope="module")
def plan(network, laws):
    job = network.job()
    found = search(Job(job.sizes, job.ranks, job.batch, job.limit, {"pp"}, job.uniform), laws.steps, count=1).best[0]
    assert found.run.tp > 1
    return found


def states(done):
    return {one.switch.name: one.on for one in done.compared}


def comparison(network, limit, *switches):
    return Comparison(
        switches, network.launcher, network.sizes, CARDS, network.start, lambda run: f"verify_{run.tp}", limit
    )


def test_a_switch_that_pays_is_kept_and_told_with_what_it_saves(network, laws, plan):
    network.started.clear()
    done = comparison(network, network.cluster.machine.limit, MC2, SAME, SLOW).switched(plan, laws.steps, 16)
    assert states(done) == {"mc2": True, "same": False, "slow": False}
    # Each run is started once, later ones with what was kept.
    kept = [(), ("mc2",), ("mc2", "same"), ("mc2", "slow")]
    assert [(run.switched, run.setting.layers) for run in network.started] == [(s, n) for s in kept for n in (1, 2)]
    true = [each.pass_ns("layer", plan.run, True, again=True) + each.pass_ns("layer", plan.run, False)
            for each in (network.cluster, network.cluster.with_links(2))]  # fmt: skip
    assert done.ranked.step_ms / plan.step_ms == pytest.approx(true[1] / true[0], rel=0.02)


def test_a_switch_whose_tensors_leave_no_room_is_not_kept(network, laws, plan, monkeypatch):
    from taylor.workflows.tuning import tune_switches

    grown = iter((1.0, 1.0, 1.5, 1.5))
    monkeypatch.setattr(tune_switches, "_bytes", lambda tensors: (round(1e9 * next(grown)), 10**10))
    least = max(peak.upper for peak in plan.peaks)
    done = comparison(network, 1.2 * least, MC2).switched(plan, laws.steps, 16)
    assert states(done) == {"mc2": False} and done.ranked == plan
    assert done.compared[0].memory == pytest.approx(1.5) and not done.compared[0].fits


def test_what_cannot_start_is_not_compared(network, laws, plan):
    beside = Switch("overlap", "--d", on=True)
    alone = replace(MC2, apart=("overlap",))
    network.started.clear()
    done = comparison(network, 1e12, alone, Switch("experts", "--e", above=("ep", "cp"))).switched(plan, laws.steps, 16)
    assert states(done).keys() == {"mc2"}
    done = comparison(network, 1e12, beside, alone).switched(plan, laws.steps, 16)
    assert states(done).keys() == {"overlap"}


@pytest.mark.slow
def test_a_choice_of_degrees_that_is_among_the_best_only_with_a_switch_is_found(network, laws):
    """The best with faster links are known: those of the same search under the true laws where links are so always."""
    job = network.job()
    job = Job(job.sizes, job.ranks, job.batch, 1.5 * job.limit, {"tp", "pp"}, job.uniform)
    plain = search(job, laws.steps).best
    fast = network.cluster.with_links(2.0)
    true = sorted(true_ms(fast, one) for one in search(job, cast(StepLaws, TrueSteps(fast))).best)
    network.started.clear()
    done = comparison(network, job.limit, replace(MC2, overlaps=("tp",))).best_of(plain, job, laws.steps, 16)
    found = sorted(true_ms(fast, one.ranked) for one in done)
    assert sorted(true_ms(fast, one) for one in plain)[2] > 1.05 * true[2]
    # The third and the fourth tie.
    assert found == pytest.approx(true, rel=0.01) and {one.ranked.run.tp for one in done} == {4, 8}
    # Runs of one shape are started once, with two numbers of layers, as they are and switched.
    assert len(network.started) == 8 and all(states(one) == {"mc2": True} for one in done)
    for one in done:
        assert one.ranked.step_ms == pytest.approx(true_ms(fast, one.ranked), rel=0.05)


def test_no_further_run_is_started_where_no_switch_could_change_the_best(network, laws, plan):
    job = network.job()
    network.started.clear()
    narrow = Job(job.sizes, job.ranks, job.batch, job.limit, set(), job.uniform)
    done = comparison(network, job.limit, replace(SAME, above=("tp",))).best_of([plan], narrow, laws.steps, 16)
    assert [one.ranked.run for one in done] == [plan.run] and len(network.started) == 4
