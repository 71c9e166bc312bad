"""What single flags say and are made to say, apart from whole scripts: tables worked by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.megatron.offload import MODULE_INPUTS, NOT_PRICED, read_moved
from taylor.parsers.megatron.optimizer import (
    host_optimizer_flags,
    misfit_host_optimizer,
    optimizer_degree,
    read_optimizer,
    read_sharding,
    split_flags,
)
from taylor.parsers.megatron.recompute import by_module, nearest_plan, recompute_flags, uniform_choices
from taylor.parsers.megatron.script import Script
from taylor.parsers.megatron.swap import is_block, moves_attention, swap_choices, swap_flags
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.shell_source import ShellScript
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.register.model import DENSE

MOVED, AGAIN = "offload:self_attention", "mlp+offload:self_attention"


def flags(words: str = "") -> Flags:
    layers = "" if "--num-layers " in words else "--num-layers 8"
    command = f"torchrun pretrain_gpt.py --tensor-model-parallel-size 1 {layers} {words}\n"
    return Script(ShellScript(command, Path("start.sh"))).flags


def refusal(words: str, act: Callable[[Flags], object]) -> str:
    with pytest.raises(InputError) as raised:
        act(flags(words))
    return str(raised.value)


HOST = "--bf16 --use-distributed-optimizer"


def test_an_optimizer_goes_to_the_host_by_the_launchers_own_flags() -> None:
    three = dict.fromkeys(
        ("optimizer-cpu-offload", "use-precision-aware-optimizer", "overlap-cpu-optimizer-d2h-h2d"), True
    )
    for words in (HOST, "--fp16 --use-distributed-optimizer", f"{HOST} --optimizer adam"):
        assert host_optimizer_flags(flags(words), mindspeed=False) == three
        assert host_optimizer_flags(flags(words), mindspeed=True) == {"swap-optimizer": True}
    nothing = f"{HOST} --optimizer-cpu-offload --optimizer-offload-fraction 0"
    assert host_optimizer_flags(flags(nothing), mindspeed=False) == three


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"{HOST} --optimizer-cpu-offload", "is set already"), (f"{HOST} --swap-optimizer", "is set already"),
        (f"{HOST} --use-megatron-fsdp", "Megatron-FSDP's optimizer"), (f"{HOST} --use-torch-fsdp2", "Megatron-FSDP's"),
        ("--bf16", "an optimizer that is not split"), (f"{HOST} --optimizer sgd", "any but Adam"),
        ("--use-distributed-optimizer", "fp32 weights"), (f"{HOST} --reuse-fp32-param", "--reuse-fp32-param"),
        (f"{HOST} --fp8-param-gather", "--fp8-param-gather"),
    ],
)  # fmt: skip
def test_what_keeps_an_optimizer_off_the_host_is_named(words: str, told: str) -> None:
    for mindspeed, first in ((False, "--optimizer-cpu-offload"), (True, "--swap-optimizer")):
        said = refusal(words, lambda found, mindspeed=mindspeed: host_optimizer_flags(found, mindspeed=mindspeed))
        assert told in said and first in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--bf16", None), ("--optimizer-cpu-offload", "does not start without --use-precision-aware-optimizer"),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer", None),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-param-gather", None),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-param-gather --fp8-recipe delayed", None),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-recipe mxfp8", None),
        ("--optimizer-cpu-offload --use-precision-aware-optimizer --fp8-param-gather --fp8-recipe mxfp8", "recipe"),
        ("--fp8-param-gather --fp8-recipe mxfp8", None), ("--reuse-fp32-param", None),
    ],
)  # fmt: skip
def test_an_optimizer_on_the_host_that_does_not_start_is_told(words: str, told: str | None) -> None:
    found = misfit_host_optimizer(flags(words))
    assert found is None if told is None else found is not None and told in found.problem


def test_a_share_of_the_states_beyond_all_is_refused() -> None:
    words = f"{HOST} --use-precision-aware-optimizer --optimizer-cpu-offload --optimizer-offload-fraction"
    for share in ("0", "0.5", "1", "1.0"):
        states = read_optimizer(flags(f"{words} {share}"), [])
        assert states.host_share == float(share) and states.host_updates and not states.host_overlaps
    assert "must be from 0 to 1" in refusal(f"{words} 1.01", lambda found: read_optimizer(found, []))
    assert read_optimizer(flags(f"{words} 1 --overlap-cpu-optimizer-d2h-h2d"), []).host_overlaps
    swapped = read_optimizer(flags(f"{words} 0.5 --swap-optimizer --overlap-cpu-optimizer-d2h-h2d"), [])
    assert (swapped.host_share, swapped.host_updates, swapped.host_overlaps) == (1.0, False, False)
    kept = read_optimizer(flags(f"{HOST} --overlap-cpu-optimizer-d2h-h2d"), [])
    assert (kept.host_share, kept.host_updates, kept.host_overlaps) == (0.0, False, False)


def test_precision_aware_states_are_noted_where_the_optimizer_is_whole() -> None:
    for words, noted in (
        ("--bf16 --use-precision-aware-optimizer", True), (f"{HOST} --use-precision-aware-optimizer", False),
        ("--bf16", False),
    ):  # fmt: skip
        notes: list[str] = []
        read_optimizer(flags(words), notes)
        assert any("starts with a split optimizer alone" in note for note in notes) == noted


def test_the_momentum_of_sgd_is_kept_unless_it_is_none() -> None:
    for words, moments in (("", 4), ("--sgd-momentum 0.9", 4), ("--sgd-momentum 0.0", 0), ("--sgd-momentum 1", 4)):
        assert read_optimizer(flags(f"--bf16 --optimizer sgd {words}"), []).moments_bytes == moments
    assert read_optimizer(flags("--bf16 --optimizer lion --sgd-momentum 0"), []).moments_bytes == 4


def test_replicas_are_split_among_all_or_within_instances() -> None:
    assert optimizer_degree(flags("--bf16"), 8) == 1
    for instances, ways in ((1, 8), (2, 4), (8, 1)):
        words = f"--use-distributed-optimizer --num-distributed-optimizer-instances {instances}"
        assert optimizer_degree(flags(words), 8) == ways
    words = "--use-distributed-optimizer --num-distributed-optimizer-instances 3"
    assert "must divide the 8 ranks" in refusal(words, lambda found: optimizer_degree(found, 8))
    assert optimizer_degree(flags("--optimizer dist_muon"), 8) == 8


SPLIT, INSTANCES = "use-distributed-optimizer", "num-distributed-optimizer-instances"


def test_a_strategys_split_is_written_where_the_flags_say_another() -> None:
    for words, dp, cp, op, wanted in (
        ("", 4, 2, 1, {}), ("", 4, 2, 8, {SPLIT: True}), (f"--{SPLIT}", 4, 2, 8, {}),
        (f"--{SPLIT}", 4, 2, 1, {SPLIT: False}), (f"--{SPLIT}", 4, 2, 4, {INSTANCES: "2"}),
        ("", 4, 2, 2, {SPLIT: True, INSTANCES: "4"}), (f"--{SPLIT} --{INSTANCES} 2", 4, 2, 4, {}),
        (f"--{SPLIT} --{INSTANCES} 2", 4, 2, 8, {INSTANCES: False}),
        (f"--{SPLIT} --{INSTANCES} 2", 4, 2, 1, {SPLIT: False, INSTANCES: False}),
        (f"--{SPLIT} --{INSTANCES} 2", 1, 1, 1, {INSTANCES: False}), (f"--{SPLIT}", 1, 1, 1, {}),
        ("--optimizer dist_muon", 4, 2, 8, {}), ("--optimizer dist_muon", 4, 2, 2, {INSTANCES: "4"}),
        ("--use-torch-fsdp2", 4, 2, 8, {}), ("--use-megatron-fsdp", 4, 1, 4, {}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", 4, 1, 1, {}),
    ):  # fmt: skip
        assert split_flags(flags(words), Strategy(dp=dp, tp=1, pp=1, cp=cp, op=op)) == wanted, (words, op)
    whole = Strategy(dp=4, tp=1, pp=1, op=1)
    said = refusal("--use-torch-fsdp2 --use-distributed-optimizer", lambda found: split_flags(found, whole))
    assert "--use-torch-fsdp2" in said and "cannot be split 1 ways" in said


def test_megatrons_own_strategies_split_one_kind_of_state_after_another() -> None:
    words = "--use-megatron-fsdp --data-parallel-sharding-strategy"
    for rank, name in enumerate(("no_shard", "optim", "optim_grads", "optim_grads_params")):
        assert tuple(read_sharding(flags(f"{words} {name}"))) == (rank > 0, rank > 1, rank > 2)
    assert "is no sharding strategy" in refusal(f"{words} all", read_sharding)


MOVING = "--fine-grained-activation-offloading --offload-modules"


def test_modules_that_move_are_told_in_the_launchers_order_and_flagged_where_all_have_prices() -> None:
    assert read_moved(flags("--offload-modules core_attn")) is None
    for words in itertools.chain(itertools.combinations(MODULE_INPUTS, 2), [(one,) for one in MODULE_INPUTS]):
        if "attn_proj" in words and "core_attn" not in words:
            continue
        found = read_moved(flags(f"{MOVING} {' '.join(reversed(words))}"))
        assert found is not None and found.words == words
        assert found.flags == ("--fine-grained-activation-offloading", "--offload-modules")
    part = read_moved(flags(f"{MOVING} gdp_qkv core_attn"))
    assert part is not None and (part.words, part.flags) == (("core_attn",), ())
    assert read_moved(flags(f"{MOVING} gdp_qkv")) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "names no module, which"),
        ("core_attn mlp", "names no module whose input can be moved"),
        ("attn_proj", "moves attn_proj without core_attn"),
        ("attn_proj attn_norm", "moves attn_proj without"),
        ("moe_act --recompute-granularity selective --recompute-modules moe", "moves moe_act out of a block"),
        ("expert_fc1 --recompute-activations --recompute-modules moe", "moves expert_fc1 out of a block"),
        ("moe_act expert_fc1 --recompute-activations --recompute-modules moe mlp", "moves expert_fc1 out of a block"),
        ("fused_group_mlp", "which only fused operators have"),
        ("fused_group_mlp moe_act --use-transformer-engine-op-fuser", "moves fused_group_mlp and parts of it"),
        ("core_attn --transformer-impl local", "does not go with"),
        ("core_attn --cpu-offloading-num-layers 2", "does not go with"),
    ],
)
def test_modules_that_cannot_move_together_are_refused(words: str, told: str) -> None:
    assert told in refusal(f"{MOVING} {words}", read_moved)


@pytest.mark.parametrize(
    "words",
    [
        "core_attn attn_proj", "moe_act --recompute-granularity full --recompute-modules moe",
        "moe_act --recompute-granularity selective --recompute-modules mlp", "moe_act --recompute-modules moe",
        "core_attn --recompute-granularity selective --recompute-modules moe", "moe_act expert_fc1",
        "core_attn fused_group_mlp --use-transformer-engine-op-fuser", "core_attn --cpu-offloading-num-layers 0",
        "core_attn --transformer-impl transformer_engine",
    ],
)  # fmt: skip
def test_modules_that_may_move_together_are_taken(words: str) -> None:
    found = read_moved(flags(f"{MOVING} {words}"))
    assert found is not None and bool(found.flags) == (not set(words.split()) & set(NOT_PRICED))


def plan_of(modes: Mapping[str, Sequence[Sequence[int]]], held: Sequence[Sequence[int]] = ((3, 5),)) -> PipelinePlan:
    return PipelinePlan({DENSE: held}, modes)


def test_a_swap_is_written_as_the_first_layers_of_every_chunk_or_of_all_layers() -> None:
    assert swap_flags(plan_of({}), None) == {"recompute-method": "block", "recompute-num-layers": "0"}
    some = plan_of({AGAIN: ((2, 2),), MOVED: ((1, 3),)})
    assert swap_flags(some, AGAIN) == {"recompute-method": "block", "recompute-num-layers": "2"}
    assert swap_flags(some, MOVED) == {"recompute-method": False, "recompute-num-layers": False}
    assert swap_flags(plan_of({AGAIN: ((3, 4),)}), AGAIN)["recompute-num-layers"] == "4"


def test_first_layers_of_every_chunk_alike_are_a_block_and_nothing_else_is() -> None:
    for counts in itertools.product(range(4), range(6)):
        most = max(counts)
        alike = [min(most, held) for held in (3, 5)] == list(counts)
        assert is_block(plan_of({AGAIN: (counts,)}), AGAIN) == alike
        if counts[1] < 5:
            assert not is_block(plan_of({AGAIN: (counts,), FULL: ((0, 1),)}), AGAIN)
        assert is_block(plan_of({AGAIN: (counts,), FULL: ((0, 0),)}), AGAIN) == alike
    wide = plan_of({AGAIN: ((2, 2), (2, 1))}, ((3, 5), (4, 1)))
    assert is_block(wide, AGAIN) and not is_block(plan_of({AGAIN: ((2, 2), (1, 1))}, ((3, 5), (4, 1))), AGAIN)


def test_choices_for_all_chunks_alike_are_counted_where_something_runs_again() -> None:
    assert swap_choices(3, [FULL, SELECT, "mlp", MOVED, AGAIN]) == [(AGAIN, 1), (AGAIN, 2), (AGAIN, 3), (MOVED, 3)]
    assert swap_choices(3, [FULL]) == []
    assert uniform_choices(2, [FULL, SELECT, "mlp", AGAIN]) == (
        (FULL, 0), (FULL, 1), (FULL, 2), (SELECT, 2), ("mlp", 2), (AGAIN, 1), (AGAIN, 2),
    )  # fmt: skip
    assert uniform_choices(2, [SELECT]) == ((SELECT, 2),)
    assert uniform_choices(2, ["mlp", FULL]) == ((FULL, 0), (FULL, 1), (FULL, 2), ("mlp", 2))


def test_attention_moves_where_the_flag_is_and_names_nothing_without_a_price() -> None:
    for words, moves in (
        ("", False), ("--swap-modules self_attention", False), ("--swap-attention", True),
        ("--swap-attention --swap-modules self_attention", True),
        ("--swap-attention --swap-modules input_norm,self_attention", True),
        ("--swap-attention --swap-modules input_norm", False),
        ("--swap-attention --swap-modules self_attention,x", False),
    ):  # fmt: skip
        assert moves_attention(flags(words)) == moves


def test_a_choice_by_module_is_selective_recompute_and_flags() -> None:
    body = ((3, 5),)
    plan, wanted = by_module(plan_of({"mlp": body, FULL: ((0, 0),)}))
    assert plan.recompute == {SELECT: body} and wanted["recompute-modules"] == ("mlp",)
    plan, wanted = by_module(plan_of({"offload:core_attn": body}))
    assert plan.recompute == {} and wanted["fine-grained-activation-offloading"] is True
    plan, wanted = by_module(plan_of({"mlp": ((0, 0),), FULL: ((1, 1),)}))
    assert plan.recompute == {FULL: ((1, 1),)}
    assert wanted == {"fine-grained-activation-offloading": False, "offload-modules": False}
    plan, wanted = by_module(plan_of({FULL: ((1, 1),)}))
    assert plan.recompute == {FULL: ((1, 1),)} and wanted == {}
    plan, wanted = by_module(plan_of({AGAIN: ((2, 2),), MOVED: ((0, 0),), FULL: ((0, 0),)}))
    assert plan.recompute == {FULL: ((0, 0),)} and wanted["recompute-num-layers"] == "2"
    plan, wanted = by_module(plan_of({AGAIN: ((0, 0),), "mlp": ((3, 5),)}))
    assert plan.recompute == {SELECT: body} and wanted["recompute-modules"] == ("mlp",)
    plan, wanted = by_module(plan_of({AGAIN: ((0, 0),), MOVED: ((0, 0),)}))
    assert wanted == {"recompute-method": "block", "recompute-num-layers": "0"}


def test_the_nearest_plan_that_flags_can_say_holds_no_less_back() -> None:
    """Against a list of every plan that the flags say: the same where it is one of them, else one that frees enough."""
    held = ((2, 3),)
    sayable = [{FULL: ((min(n, 2), min(n, 3)),)} for n in range(4)] + [{SELECT: held}]
    for full in itertools.product(range(3), range(4)):
        for select in itertools.product(range(3 - full[0]), range(4 - full[1])):
            modes = {FULL: (full,)} | ({SELECT: (select,)} if any(select) else {})
            plan = plan_of(modes, held)
            found, told = nearest_plan(plan)
            kept = {mode: grid for mode, grid in found.recompute.items() if any(map(any, grid))}
            said = [{mode: grid for mode, grid in one.items() if any(map(any, grid))} for one in sayable]
            assert kept in said and found.layers == plan.layers
            own = {mode: grid for mode, grid in modes.items() if any(map(any, grid))}
            assert (found == plan) == (own in said) == (told == ())
            if any(full) and not any(select):
                assert found.recomputed(FULL) == tuple([tuple(min(max(full), of) for of in held[0])])
            if any(select) and not any(full):
                assert kept == {SELECT: held}
            if any(select) and any(full):
                least = np.array(full) + np.array(select)
                assert (np.array(found.recomputed(FULL)[0]) >= np.minimum(least.max(), held[0])).all()
    for one in (plan_of({AGAIN: ((2, 2),)}), plan_of({"mlp": ((3, 5),)})):
        assert nearest_plan(one) == (one, ())


def test_recompute_flags_say_the_plan() -> None:
    off = recompute_flags(flags(), plan_of({}))
    assert set(off.values()) == {False} and "moe-layer-recompute" in off and "swap-attention" not in off
    full = recompute_flags(flags(), plan_of({FULL: ((3, 5),)}))
    block = recompute_flags(flags(), plan_of({FULL: ((2, 2),)}))
    said = ("recompute-granularity", "recompute-method", "recompute-num-layers")
    assert [full[name] for name in said] == ["full", "uniform", "1"]
    assert [block[name] for name in said] == ["full", "block", "2"]
    assert {name: full[name] for name in off if name not in said} == {n: off[n] for n in off if n not in said}
    select = recompute_flags(flags(), plan_of({SELECT: ((3, 5),)}))
    assert [select[name] for name in said] == ["selective", False, False] and "moe-layer-recompute" not in select
    moving = "--swap-attention"
    assert recompute_flags(flags(moving), plan_of({FULL: ((2, 2),)}))["swap-attention"] is False
    assert "swap-attention" not in recompute_flags(flags(moving), plan_of({}))
    acting = "--recompute-activation-function"
    none = recompute_flags(flags(acting), plan_of({}))
    assert acting[2:] not in none and none["recompute-activation-function-num-layers"] == "0"
    every = recompute_flags(flags(acting), plan_of({SELECT: ((3, 5),)}))
    assert acting[2:] not in every and every["recompute-activation-function-num-layers"] is False
    beside = recompute_flags(flags(acting), plan_of({FULL: ((3, 5),)}))
    assert [beside[name] for name in said] == ["full", "block", "5"]
