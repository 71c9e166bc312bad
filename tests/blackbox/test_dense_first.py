"""Networks whose first layers have no experts: small runs tell both kinds of layers apart."""

from __future__ import annotations

import pytest

from benchmarks.standin_build import hidden_cluster
from benchmarks.tune_campaign import CARDS, MEMORY_WITHIN, Network, shapes_and_memory
from taylor.blackbox.degree_search import Job, search
from taylor.blackbox.passes import PassPart
from taylor.blackbox.small_runs import SEARCHABLE, plan_small_runs
from taylor.parsers.small_run import PlannedJob, ProfiledRun, ProfiledSteps
from taylor.pipeline.plan import PipelinePlan
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return Network(hidden_cluster(1, "dense"), tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="module")
def laws(network):
    planned = plan_small_runs(network.sizes, CARDS, SEARCHABLE).runs
    shown = [ShownRun(one.name, one.setting, network.start(one)) for one in planned]
    return TunedLaws(shown, network.launcher, network.sizes, network.options(False))


def test_one_small_run_has_one_dense_layer_more_and_all_keep_one(network):
    runs = {one.name: one.setting for one in plan_small_runs(network.sizes, CARDS, SEARCHABLE).runs}
    assert network.sizes.own.dense == 2 and runs["base"].layers == 2
    assert (runs["dense2"].dense, runs["dense2"].layers) == (2, 3)
    assert {one.dense for name, one in runs.items() if name != "dense2"} == {1}
    text = network.launcher.small_run(network.script, ProfiledRun(runs["dense2"], CARDS, ProfiledSteps(network.folder)))
    assert "--first-k-dense-replace 2 " in text and "--num-layers 3 " in text


def test_both_kinds_of_layers_are_told_for_large_jobs(network, laws):
    found = shapes_and_memory(network.cluster, laws, 1, runs=4, stages=30)
    assert found["operators_exact"] == found["operators"] > 0
    assert found["memory_worst"] <= MEMORY_WITHIN and not found["false_fits"]
    run = network.cluster.job
    for part, backward in ((PassPart.DENSE, False), (PassPart.DENSE_BACKWARD, True)):
        true = network.cluster.pass_ns("dense", run, backward, again=backward)
        assert laws.steps.part(part, run).ns == pytest.approx(true, rel=0.05)


@pytest.mark.slow
def test_the_best_plan_holds_all_dense_layers_in_its_first_chunk_where_the_flags_ask_for_it(network, laws):
    job = network.job()
    found = search(Job(job.sizes, job.ranks, job.batch, job.limit, {"pp"}, job.uniform), laws.steps, count=1)
    plan = found.best[0].plan
    assert plan.layers["dense"][0][0] == 2 and sum(map(sum, plan.total_layers())) == job.sizes.own.layers


@pytest.mark.parametrize("held", [(15, 15, 15, 11), (14, 14, 14, 14)])
def test_a_plan_with_dense_layers_is_written_and_read_again(network, held):
    dense = (2, 0, 0, 0)
    layers = tuple(all_ - own for all_, own in zip(held, dense, strict=True))
    plan = PipelinePlan({"dense": (dense,), "layer": (layers,)}, {"full": ((3,) * 4,)})
    file = network.folder / "planned.sh"
    run = network.cluster.job.replace(pp=4, dp=32)
    file.write_text(network.launcher.planned_job(network.script, run, PlannedJob(plan)))
    read = network.launcher.read(file)
    assert read.plan.total_layers() == (held,) and read.plan.recompute == plan.recompute
    assert read.plan.layers["dense"] == (dense,)
