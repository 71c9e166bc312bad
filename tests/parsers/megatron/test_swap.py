"""What ``--swap-attention`` moves to the host, against MindSpeed's own class where a clone is here, and its price."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.base.errors import InputError
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.parsers.megatron.offload import OFFLOAD_MODULES, OFFLOADING
from taylor.parsers.megatron.recompute import EXPERTS_AGAIN, MODULES, module_flags
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, as_grid
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.parsers.megatron.test_scripts import BASE, script_of

MOVED, AGAIN = "offload:self_attention", "mlp+offload:self_attention"
REVISION = "028de58c"


def launched(words: str, folder: Path, layers: int = 16, pp: int = 2) -> TrainingConfig:
    return read_config(script(words, folder, layers, pp))


def script(words: str, folder: Path, layers: int = 16, pp: int = 2) -> Path:
    sizes = f"--num-layers {layers}\n--pipeline-model-parallel-size {pp}\n--tensor-model-parallel-size 1\n"
    return script_of(folder, f"{BASE}{sizes}--swap-attention\n--use-flash-attn\n{words}\n")


def their_layers(pp: int, vpp: int, layers: int, rank: int, **said: Any) -> tuple[list[set[int]], list[set[int]]]:
    """By MindSpeed's own class: of each chunk of a stage the layers that are moved, and those that run again."""
    try:
        text = source("MindSpeed", REVISION, "mindspeed/core/memory/swap_attention/adaptor.py")
    except NotHere as here:
        pytest.skip(str(here))
    arguments = SimpleNamespace(
        num_layers=layers,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None,
        num_layers_per_virtual_pipeline_stage=layers // pp // vpp if vpp > 1 else None,
        **said,
    )
    state = SimpleNamespace(get_pipeline_model_parallel_rank=lambda: rank, is_pipeline_last_stage=lambda **_: False)
    module = loaded(
        "swap_attention_adaptor",
        without_imports(text, "torch_npu", "torch", "megatron", "mindspeed"),
        AdaptiveRecompute=object,
        AdaptiveRecomputeSwapReg=object,
        get_args=lambda: arguments,
        print_rank_0=print,
        parallel_state=state,
    )
    theirs = module.AdaptiveRecomputeSwap.__new__(module.AdaptiveRecomputeSwap)
    (moved, _, again), *_ = theirs.solve_prefetch_policy()
    return tuple([set(map(int, filter(None, chunk))) for chunk in lists] for lists in (moved, again))


def test_each_chunk_has_the_layers_that_mindspeed_moves_and_runs_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        pp, vpp, each = int(rng.integers(2, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
        layers, count = pp * vpp * each, int(rng.integers(0, vpp * each + 2))
        method, per_rank = rng.choice(["block", "uniform", "none"]), bool(rng.integers(2))
        words = [f"--recompute-num-layers {count}"] if count else []
        words += [f"--recompute-method {method}"] if method != "none" else []
        words += ["--enable-recompute-layers-per-pp-rank"] if per_rank else []
        words += [f"--num-layers-per-virtual-pipeline-stage {each}"] if vpp > 1 else []
        plan = launched(" ".join(words), tmp_path, layers, pp).by_module
        assert plan is not None and not plan.uses(FULL)
        for rank in range(pp):
            said = {
                "recompute_num_layers": count or None,
                "recompute_method": None if method == "none" else method,
                "enable_recompute_layers_per_pp_rank": per_rank,
            }
            moved, again = their_layers(pp, vpp, layers, rank, **said)
            for v in range(vpp):
                assert plan.recomputed(AGAIN)[v][rank] == len(again[v]), words
                assert plan.recomputed(AGAIN)[v][rank] + plan.recomputed(MOVED)[v][rank] == len(moved[v] | again[v])


def test_a_layer_keeps_its_norms_inputs_and_its_mlp_and_the_host_the_rest(tmp_path: Path) -> None:
    """At TP 1 with fused attention 2 bytes of each of these: of h the input of the product, of 3h its result, which the
    rotation turns into 2h beside it, and of h the context."""
    planned = evaluated(script("--position-embedding-type rope", tmp_path), tmp_path)
    config, problem = planned.config, planned.problem
    kind = problem.kinds[0]
    whole = float(activation_bytes(config.model, "dense", NONE, config.strategy, config.rules)) / MIB
    hidden = config.model.hidden * config.rules.seq_length * config.strategy.mbs * 2 / MIB
    moved = kind.choices[MOVED].host_mib
    statistics = moved - 7 * hidden
    assert kind.activation_mib[MOVED] == pytest.approx(whole - moved, rel=1e-9)
    assert 0 <= statistics < 0.6 * hidden, (moved, hidden)


def evaluated(path: Path, folder: Path, device: str = "ascend-910b") -> Any:
    return evaluate_file(FileJob(path=path, device=device, dryrun=False, check=False), Outputs(folder))


def test_without_a_known_link_its_memory_counts_and_the_flag_stays_named(tmp_path: Path) -> None:
    path = script("", tmp_path)
    slow, fast = evaluated(path, tmp_path, "ascend-a3"), evaluated(path, tmp_path)
    assert slow.solution.peak_memory_mib == fast.solution.peak_memory_mib
    assert "--swap-attention" not in {flag.name for flag in slow.config.unmodelled}
    assert "--swap-attention" in {flag.name for flag in fast.config.unmodelled}
    assert all(choice.link_time == 0 for kind in fast.problem.kinds for choice in kind.choices.values())
    assert all(choice.link_time > 0 for kind in slow.problem.kinds for choice in kind.choices.values())


@pytest.mark.parametrize("words", ["--swap-modules self_attention,mlp", "--swap-modules linear_qkv"])
def test_modules_without_a_price_leave_the_flag_unmodelled(words: str, tmp_path: Path) -> None:
    config = launched(words, tmp_path)
    assert config.by_module is None and config.moved is None
    assert "--swap-attention" in {flag.name for flag in config.unmodelled}


def test_the_plan_that_is_written_reads_back_as_the_one_that_was_solved(tmp_path: Path) -> None:
    path = script("--recompute-method block\n--recompute-num-layers 6", tmp_path)
    job = FileJob(path=path, device="ascend-a3", dryrun=False, check=False)
    own = evaluate_file(job, Outputs(tmp_path / "own")).solution
    solved = solve_file(job, SolveOptions(time_limit=30), Outputs(tmp_path / "solved", write_to=tmp_path / "new.sh"))
    assert solved.solution.objective <= own.objective * (1 + 1e-9)
    again = evaluated(tmp_path / "new.sh", tmp_path / "again", "ascend-a3").solution
    assert again.objective == pytest.approx(solved.solution.objective, rel=1e-9)
    assert again.peak_memory_mib == pytest.approx(solved.solution.peak_memory_mib, rel=1e-9)


def test_any_number_of_first_layers_can_be_written_and_a_mixture_cannot(tmp_path: Path) -> None:
    config = launched("--recompute-method block\n--recompute-num-layers 6", tmp_path)
    launcher, layers = launcher_of(config), config.plan.layers
    for count in range(9):
        plan = PipelinePlan(layers, {AGAIN: as_grid([[count, count]])})
        assert launcher.nearest_plan(plan) == (plan, ())
        _, text = launcher.with_plan(config, plan, None)
        (tmp_path / "new.sh").write_text(text)
        back = read_config(tmp_path / "new.sh").by_module
        assert back is not None and back.recomputed(AGAIN) == plan.recomputed(AGAIN) and not back.uses(MOVED)
    _, text = launcher.with_plan(config, PipelinePlan(layers, {MOVED: as_grid([[8, 8]])}), None)
    (tmp_path / "new.sh").write_text(text)
    assert read_config(tmp_path / "new.sh").by_module.recomputed(MOVED) == ((8, 8),)


def test_a_method_that_mindspeed_does_not_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--recompute-method.*must be uniform or block.*blok"):
        launched("--recompute-method blok", tmp_path)


def test_flags_by_module_say_what_runs_again_and_what_moves() -> None:
    assert module_flags(None) == {OFFLOADING: False, OFFLOAD_MODULES: False}
    again = module_flags("mlp")
    assert again == {OFFLOADING: False, OFFLOAD_MODULES: False, MODULES: ("mlp",), EXPERTS_AGAIN: False}
    both = module_flags(AGAIN)
    assert both[OFFLOADING] is True and both[MODULES] == ("mlp",) and both[EXPERTS_AGAIN] is False
    moved = module_flags(MOVED)
    assert moved[OFFLOADING] is True and moved[OFFLOAD_MODULES] == both[OFFLOAD_MODULES] and MODULES not in moved
