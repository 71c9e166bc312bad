"""Flags that small runs compare, against MindSpeed's own checks of its arguments where a clone is available."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.parsers.megatron.switches import MC2, OVERLAP, PERMUTE, switches
from taylor.parsers.registry import launchers_for
from taylor.parsers.small_run import RunSetting
from taylor.parsers.text.flags import Flags

RELEASE = "028de58c"
FEATURES = {
    MC2: ("tensor_parallel/mc2.py", "MC2Feature", "use_ascend_mc2"),
    OVERLAP: ("moe/moe_alltoall_overlap.py", "MoEAlltoAllOverLapFeature", "moe_alltoall_overlap_comm"),
    PERMUTE: ("fusions/fused_moe_permute.py", "FusedMoEPermuteFeature", "use_fused_moe_token_permute_and_unpermute"),
}
BARRING = ("use_ascend_coc", "use_pipe_experts", "unaligned_linear")
SWITCHES = (
    *BARRING, "moe_grouped_gemm", "moe_tp_extend_ep", "moe_permutation_async_comm", "moe_pad_expert_input_to_capacity"
)  # fmt: skip


@pytest.fixture(scope="module")
def features() -> dict[str, Any]:
    """MindSpeed's own, by our name."""

    def module(path: str, **around: Any) -> Any:
        text = source("MindSpeed", RELEASE, f"mindspeed/features_manager/{path}")
        return loaded(path.replace("/", "_"), without_imports(text, "torch", "mindspeed"), **around)

    try:
        base = module("feature.py", MindSpeedPatchesManager=object).MindSpeedFeature
        kernels = SimpleNamespace(
            npu_moe_token_permute_with_routing_map=None, npu_moe_token_unpermute_with_routing_map=None
        )
        return {
            name: getattr(module(path, MindSpeedFeature=base, torch=None, torch_npu=kernels), kind)()
            for name, (path, kind, _) in FEATURES.items()
        }
    except NotHere as here:
        pytest.skip(str(here))


def drawn(rng: np.random.Generator) -> tuple[dict[str, Any], RunSetting]:
    """Arguments of a MindSpeed launch as its checks see them, and the degrees of a run."""
    experts = int(rng.choice([1, 8]))
    arguments: dict[str, Any] = {name: bool(rng.random() < (0.2 if name in BARRING else 0.6)) for name in SWITCHES}
    arguments["use_pipe_experts"] &= experts > 1
    arguments["moe_expert_capacity_factor"] = float(rng.choice([0.0, 1.5])) or None
    arguments["moe_token_dispatcher_type"] = str(rng.choice(["allgather", "alltoall", "alltoall_seq"]))
    arguments["num_experts"] = experts
    run = RunSetting(
        tp=int(rng.choice([1, 2])), ep=int(rng.choice([1, 4])) if experts > 1 else 1, experts=experts, layers=2
    )
    return arguments, run


def flags_of(arguments: dict[str, Any], folder: Path) -> Flags:
    words = ["--use-fused-rmsnorm --num-layers 8 --hidden-size 1024 --num-attention-heads 16"]
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value not in (None, False) and (name, value) != ("num_experts", 1):
            words.append(f"{flag} {value}")
    script = folder / "pretrain.sh"
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {' '.join(words)}\n")
    launcher: Any = launchers_for(script)[0]
    flags: Flags = launcher.launch(script).flags
    return flags


def starts(features: dict[str, Any], arguments: dict[str, Any], run: RunSetting, on: str) -> bool:
    """Whether MindSpeed lets a launch start with one of them on."""
    args = SimpleNamespace(
        **arguments, **{word: name == on for name, (_, _, word) in FEATURES.items()},
        tensor_model_parallel_size=run.tp, expert_model_parallel_size=run.ep, sequence_parallel=run.tp > 1,
        n_shared_experts=None, moe_shared_expert_intermediate_size=None, moe_permute_fusion=False,
    )  # fmt: skip
    try:
        for feature in features.values():
            feature.validate_args(args)
    except AssertionError:
        return False
    return True


def test_what_is_offered_starts_under_mindspeed_s_own_checks_and_what_is_not_has_its_reason(
    features: dict[str, Any], tmp_path: Path
) -> None:
    seen = {(name, offered): 0 for name in FEATURES for offered in (False, True)}
    for seed in range(300):
        arguments, run = drawn(np.random.default_rng(seed))
        found = {one.name: one for one in switches(flags_of(arguments, tmp_path))}
        for name in FEATURES:
            offered = name in found and found[name].may_be_on(run)
            seen[name, offered] += 1
            theirs = starts(features, arguments, run, name)
            if offered:
                assert theirs, (name, arguments, run)
                continue
            experts, dispatcher = arguments["num_experts"] > 1, arguments["moe_token_dispatcher_type"]
            stricter = {
                # MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/transformer/transformer_block.py:20-32.
                MC2: experts and arguments["moe_grouped_gemm"],
                PERMUTE: not experts,
                # Small runs have several TP, and with more than one MindSpeed asks for it.
                OVERLAP: not experts or (dispatcher == "alltoall_seq" and not arguments["moe_tp_extend_ep"]),
            }
            assert not theirs or stricter[name], (name, arguments, run)
    assert min(seen.values()) > 10
