"""Launches that overlap the experts' exchange: the pairs that their problem knows, and a plan written for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.paired_overlap import evaluated
from taylor.cost_model.memory.breakdown import memory_profile
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import Pairing, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.registry import Registry
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of

MODEL = (
    "--hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 --seq-length 4096 --swiglu --bf16 "
    "--max-position-embeddings 4096 --vocab-size 32000 --untie-embeddings-and-output-weights "
    "--micro-batch-size 1 --num-experts 64 --moe-router-topk 8 --moe-ffn-hidden-size 1408 --moe-grouped-gemm "
    "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 --use-distributed-optimizer"
)
DUAL = "--pipeline-model-parallel-size 4 --schedules-method dualpipev --global-batch-size 128 --use-flash-attn"
NOOPS = "--num-layers 24 --noop-layers 22,23 --first-k-dense-replace 2 --moe-layer-freq 1"
MEGATRON = (
    "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 64 --num-layers 24"
)


def problem_of(path: Path, limit_mib: float = 1e9) -> PipelineProblem:
    """The problem of a launch on the device that MindSpeed runs on."""
    config, device = read_config(path), Registry.load().device("ascend-910b")
    memory = memory_profile(config.model, config.strategy, config.rules, limit_mib, config.schedule)
    return build_problem(config, memory, estimate_ratios(config.model, config.strategy, config.rules, device))


@pytest.mark.parametrize(
    ("flags", "pairing", "most"),
    [
        (f"{DUAL} {NOOPS} --moe-fb-overlap", Pairing(3), 3),
        (f"{DUAL} {NOOPS}", None, None),
        (f"{MEGATRON} --overlap-moe-expert-parallel-comm", Pairing(), None),
        (MEGATRON, None, None),
    ],
)
def test_a_launch_pairs_layers_where_its_passes_are_combined(
    tmp_path: Path, flags: str, pairing: Pairing | None, most: int | None
) -> None:
    path = tmp_path / "pretrain.sh"
    path.write_text(f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {MODEL} {flags}\n")
    problem = problem_of(path)
    assert problem.pairing == pairing
    assert set(problem.max_layers.values()) == ({most} if most else set())
    exposed = {kind.name: any(kind.exposed) for kind in problem.kinds}
    assert exposed.pop("moe") is (pairing is not None) and not any(exposed.values())


@pytest.mark.slow
def test_what_is_written_for_a_launch_takes_no_longer_position_by_position(tmp_path: Path) -> None:
    path = tmp_path / "pretrain.sh"
    again = "--recompute-granularity full --recompute-method block --recompute-num-layers 3"
    flags = f"{DUAL} {NOOPS} {again} --moe-fb-overlap"
    path.write_text(f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {MODEL} {flags}\n")
    own, graph, paired, experts = evaluated(path, "ascend-910b")
    assert own == pytest.approx(graph, rel=1e-12) and paired == experts == 20
    problem, config = problem_of(path), read_config(path)
    assert config.plan is not None
    free = problem.replace(uniform_recompute=((FULL, 0),))
    found = solve(free, SolveOptions(gap=1e-4))
    assert found.plan is not None and found.bound == pytest.approx(found.objective, rel=1e-3)
    written = tmp_path / "written.sh"
    written.write_text(launcher_of(config).with_plan(config, found.plan)[1])
    step, graph, _, _ = evaluated(written, "ascend-910b")
    assert step == pytest.approx(graph, rel=1e-12) and step == pytest.approx(found.objective, rel=1e-9)
    assert step < own
    again_read = read_config(written)
    assert again_read.plan is not None
    assert plan_in_terms_of(problem, again_read.plan).layers == found.plan.layers
