"""What is taken and what is refused at the edge of every rule of Galvatron's files, each by a file of a few entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.measured.hardware import HardwareProfile
from taylor.cost_model.measured.profiles import ComputationProfile, MeasuredMemory, Shape
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.galvatron.folder import Cluster, MeasuredModel, ProfileFolder, read_folders
from taylor.parsers.galvatron.memory import read_memory
from taylor.parsers.galvatron.strategy_file import read_strategy, strategy_text
from taylor.parsers.galvatron.values import MOST, number, whole
from taylor.parsers.text.fields import MAX_DEGREE, MAX_LAYERS
from tests import galvatron_cases as cases

HERE = Path("profiles")


def refusal(act: Any) -> str:
    with pytest.raises(InputError) as raised:
        act()
    return str(raised.value)


def put(tmp_path: Path, data: Any, name: str = "profile.json") -> Path:
    (tmp_path / name).write_text(json.dumps(data))
    return tmp_path / name


def folder(*clusters: Cluster, models: tuple[MeasuredModel, ...] = ()) -> ProfileFolder:
    profiles = {cluster: HardwareProfile({}, {}, {}, {}, None, {}) for cluster in clusters}
    return ProfileFolder((HERE,), profiles, {model.name: model for model in models})


def test_a_cluster_is_found_by_its_ranks_where_one_has_them() -> None:
    one, two, four = Cluster(1, 8), Cluster(2, 8), Cluster(4, 4)
    assert (one.ranks, two.ranks, four.ranks) == (8, 16, 16)
    found = folder(one, two)
    assert found.cluster(16) == (two, found.hardware[two]) and found.cluster(8)[0] == one
    assert "of no cluster with 4 ranks" in (told := refusal(lambda: found.cluster(4)))
    assert "one that is there: 1 x 8 cards, 2 x 8 cards" in told
    assert "of 2 clusters with 16 ranks" in refusal(lambda: folder(four, one, two).cluster(16))
    assert "one that is there: none" in refusal(lambda: folder().cluster(8))


def test_a_model_is_found_by_its_name_or_as_the_only_one_with_both_profiles() -> None:
    times, memory = ComputationProfile({}, {}, {}, ""), MeasuredMemory({}, {}, "")
    tables = MeasuredMemory({}, {True: None}, "")  # type: ignore[dict-item]
    both, other = MeasuredModel("bf16_a", times, memory), MeasuredModel("bf16_ab", times, memory)
    timed, kept = MeasuredModel("fp16_c", times), MeasuredModel("fp32_d", None, memory)
    useful = MeasuredModel("bf16_e", times, tables)
    assert folder(models=(both,)).model(None) is both and folder(models=(timed, both, kept)).model(None) is both
    assert folder(models=(timed,)).model(None) is timed
    assert folder(models=(both, other)).model("a") is both and folder(models=(both, other)).model("bf16_a") is both
    assert folder(models=(both, other)).model("ab") is other and folder(models=(other, timed)).model("fp16") is timed
    assert folder(models=(other, both, useful)).model(None) is useful
    assert folder(models=(timed, kept, both)).model("c") is timed
    assert folder(models=(MeasuredModel("bf16_ab"), other)).model("b") is other
    assert "has 2 models; give --model with one of: bf16_a, bf16_ab" in refusal(
        lambda: folder(models=(other, both)).model(None)
    )
    assert "has 2 models named bf16" in refusal(lambda: folder(models=(other, both)).model("bf16"))
    assert "has no such model; give --model with one of: none" in refusal(lambda: folder().model(None))
    assert "has no such model" in refusal(lambda: folder(models=(both,)).model("z"))


def test_the_most_files_are_read_and_one_more_is_refused(tmp_path: Path) -> None:
    cases.write_folder(tmp_path)
    for at in range(1000 - len(list(tmp_path.glob("*.json")))):
        (tmp_path / f"other{at}.json").write_text("{}")
    assert read_folders([tmp_path]).models
    (tmp_path / "one_more.json").write_text("{}")
    assert "contains 1001 JSON files" in refusal(lambda: read_folders([tmp_path]))


def test_figures_are_finite_and_above_nothing_or_from_nothing_on() -> None:
    for value in (1e-300, 1, 2.5, MOST, int(MOST)):
        assert number(value, HERE, "x", "ms") == float(value) == number(value, HERE, "x", "ms", zero=True)
    assert number(0, HERE, "x", "ms", zero=True) == 0.0
    for value in (0, 0.0, -1e-9, MOST * (1 + 1e-15), True, "1"):
        assert "must be a finite number above 0 (ms)" in refusal(lambda value=value: number(value, HERE, "x", "ms"))
    for value in (-1e-9, float("nan"), float("inf"), False):
        told = refusal(lambda value=value: number(value, HERE, "x", "MB", zero=True))
        assert "must be a finite number 0 or more (MB)" in told
    assert [whole(digits, HERE, "x", "ranks", 7) for digits in ("1", "7", "07")] == [1, 7, 7]
    for digits in ("0", "8"):
        assert f"names {digits} ranks; write 1 to 7" in refusal(
            lambda digits=digits: whole(digits, HERE, "x", "ranks", 7)
        )


def test_kinds_are_numbered_without_a_gap(tmp_path: Path) -> None:
    def times(*kinds: int) -> dict[str, float]:
        return {f"layertype_{kind}_bsz1_seq512": 1.0 + kind for kind in kinds} | {"layertype_other_bsz1_seq512": 0.0}

    shape = Shape(1, (512,))
    three = read_computation(put(tmp_path, times(2, 0, 1))).layer_ms
    assert [three[f"layers of group {kind}"][shape] for kind in range(3)] == [1.0, 2.0, 3.0]
    two = read_computation(put(tmp_path, times(0, 1))).layer_ms
    assert (two["encoder"][shape], two["decoder"][shape]) == (1.0, 2.0)
    assert list(read_computation(put(tmp_path, times(0))).layer_ms) == ["body"]
    told = refusal(lambda: read_computation(put(tmp_path, times(0, 2))))
    assert "layertype_1_bsz…_seq…" in told and "layertype_2 is there" in told
    assert "layertype_0_bsz…_seq…" in refusal(lambda: read_computation(put(tmp_path, times(1))))


LAYER = {"parameter_size": 10.0, "tp_activation_per_bsz_dict": {"1": 4.0, "2": 2.0, "checkpoint": 1.0}}
ENDS = {"model_states": {"1": 20.0}, "activation": {"1": 3.0}}


def tables(*kinds: int, lengths: tuple[str, ...] = ("512",), suffix: str = "_sp") -> dict[str, Any]:
    made: dict[str, Any] = {f"layertype_{kind}{suffix}": dict.fromkeys(lengths, LAYER) for kind in kinds}
    return made | {
        f"other_memory_{end}{suffix}": dict.fromkeys(lengths, ENDS) for end in ("pp_off", "pp_on_first", "pp_on_last")
    }


def test_tables_of_memory_name_kinds_lengths_and_ends(tmp_path: Path) -> None:
    profile, _ = read_memory([put(tmp_path, tables(1, 0, lengths=("512", "1024,512")))])
    made = profile.table(True)
    assert list(made.layer) == ["encoder", "decoder"] and set(made.layer["encoder"]) == {512, 1024}
    layer = made.layer["decoder"][512]
    assert (layer.parameter_mib, layer.activation_mib, layer.recomputed_mib) == (10.0, {1: 4.0, 2: 2.0}, 1.0)
    assert made.alone[512].states_mib == {1: 20.0} and made.last[1024].activation_mib == {1: 3.0}
    for data, told in (
        (tables(0, 2), "layertype_1_sp"), (tables(1), "layertype_0_sp"), (tables(1, suffix=""), "layertype_0: is"),
        ({key: value for key, value in tables(0).items() if "last" not in key}, "other_memory_pp_on_last_sp.512"),
        ({key: value for key, value in tables(0).items() if "first" not in key}, "the first stage's memory needs it"),
        ({key: value for key, value in tables(0).items() if "off" not in key}, "the stages' memory needs it"),
    ):  # fmt: skip
        assert told in refusal(lambda data=data: read_memory([put(tmp_path, data)]))


def test_a_rank_alone_is_the_first_and_the_last(tmp_path: Path) -> None:
    def runs(group: str, *ranks: int) -> dict[str, Any]:
        made = {}
        for layers in (1, 2):
            for rank in ranks:
                key = f"layernum[{layers}]_bsz1_seq512_rank{rank}"
                made |= {f"{key}_ms": 4.0 * (layers * 10 + 5), f"{key}_act": 6.0 * layers, f"{key}_act_peak": 50.0}
        return {group: made}

    alone, _ = read_memory([put(tmp_path, runs("1_1_1_sp", 0))])
    assert sorted(run.last for run in alone.runs) == [False, False, True, True]
    pair, _ = read_memory([put(tmp_path, runs("1_1_2_sp", 0, 1))])
    assert sorted(run.last for run in pair.runs) == [False, False, True, True]
    half, _ = read_memory([put(tmp_path, runs("1_1_2_sp", 0))])
    assert not any(run.last for run in half.runs)
    for rank in (1, 2):
        told = refusal(lambda rank=rank: read_memory([put(tmp_path, runs("1_1_4_sp", 0, rank))]))
        assert "is neither the first nor the last of 4 ranks; keep rank0 and rank3" in told
    read_memory([put(tmp_path, runs("1_1_4_sp", 0, 3))])


def strategy(tmp_path: Path, name: str = "galvatron_config_toy.json", **entries: Any) -> Any:
    data = {key: value for key, value in (cases.STRATEGY | entries).items() if value is not None}
    return lambda: read_strategy(put(tmp_path, data, name))


def test_lists_are_as_long_as_there_may_be_layers(tmp_path: Path) -> None:
    def listed(count: int) -> Any:
        lists = {key: ",".join(["1"] * count) for key in ("tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc")}
        return strategy(tmp_path, **lists, use_sp=None, checkpoint=None, pp_deg=1, pp_division=None)

    assert len(listed(MAX_LAYERS)().plan.layers) == MAX_LAYERS == 10_000
    assert "has 10001 entries; at most 10000" in refusal(listed(MAX_LAYERS + 1))
    ones = dict.fromkeys(("tp_sizes_enc", "tp_consecutive_flags", "checkpoint", "pp_deg"), 1)
    single = strategy(tmp_path, **ones, dp_types_enc=0, use_sp=0, pp_division=None)
    assert [layer.recompute for layer in single().plan.layers] == [True]


def test_ranks_come_from_the_file_its_caller_or_its_name(tmp_path: Path) -> None:
    one = {"pp_deg": 1, "tp_sizes_enc": "1", "tp_consecutive_flags": "1", "dp_types_enc": "0", "use_sp": None,
           "checkpoint": None, "pp_division": None, "vtp": 1, "global_bsz": 4, "chunks": 1}  # fmt: skip
    file = put(tmp_path, {k: v for k, v in (cases.STRATEGY | one).items() if v is not None and k != "world_size"})
    for world in (1, 2):
        assert read_strategy(file, world).plan.world == world
    for world in (0, MAX_DEGREE + 1):
        assert f"must be from 1 to {MAX_DEGREE}" in refusal(lambda world=world: read_strategy(file, world))
    named = strategy(tmp_path, "galvatron_config_toy_2nodes_4gpus_per_node_36GB.json", world_size=None)
    assert named().plan.world == 8 and any("world_size: 8" in note for note in named().notes)
    stated = put(tmp_path, cases.STRATEGY)
    assert read_strategy(stated, 8).plan.world == 8
    assert "contradicts --world_size 4" in refusal(lambda: read_strategy(stated, 4))


def test_ends_are_sharded_by_either_word_and_not_by_two_that_differ(tmp_path: Path) -> None:
    for embed, vocab, zero in ((1, 1, 3), (1, None, 3), (None, 1, 3), (0, None, 2), (None, None, 2), (0, 0, 2)):
        assert strategy(tmp_path, embed_sdp=embed, vocab_sdp=vocab)().plan.ends.zero == zero
    for embed, vocab in ((1, 0), (0, 1)):
        told = refusal(strategy(tmp_path, embed_sdp=embed, vocab_sdp=vocab))
        assert f"contradicts embed_sdp {embed} (found {vocab})" in told


def test_context_and_expert_degrees_are_written_where_a_layer_has_them(tmp_path: Path) -> None:
    base = {"tp_sizes_enc": "1,1,1,1,1,1", "use_sp": None, "vtp": 1}
    plain = strategy(tmp_path, **base)().plan
    told = json.loads(strategy_text(plain, "hetu"))
    assert not {"cp_sizes_enc", "vcp", "ep_sizes_enc", "tp_of_ep_sizes_enc"} & set(told)
    assert strategy_text(plain, "hetu").splitlines()[1].startswith('    "pp_deg"')
    apart = strategy(tmp_path, **base, cp_sizes_enc="1,2,1,1,1,1", vcp=1, ep_sizes_enc="1,1,1,1,1,2")().plan
    told = json.loads(strategy_text(apart, "hetu"))
    assert (told["cp_sizes_enc"], told["vcp"]) == ("1,2,1,1,1,1", 1)
    assert (told["ep_sizes_enc"], told["tp_of_ep_sizes_enc"]) == ("1,1,1,1,1,2", "1,1,1,1,1,1")
    ends = strategy(tmp_path, **base, vcp=2)().plan
    told = json.loads(strategy_text(ends, "hetu"))
    assert told["vcp"] == 2 and "cp_sizes_enc" not in told
    inside = strategy(tmp_path, **base, tp_of_ep_sizes_enc="1,1,1,1,1,2")().plan
    assert json.loads(strategy_text(inside, "hetu"))["ep_sizes_enc"] == "1,1,1,1,1,1"
    for plan, word in ((apart, "context"), (ends, "context"), (inside, "expert parallel")):
        assert word in refusal(lambda plan=plan: strategy_text(plan, "paddle"))


PADDLE = {
    "pp_size": 2, "vtp": 2, "vsp_flag": 0, "embed_sdp": 0, "global_batch_size": 8, "gradient_accumulation_steps": 2,
    "dp_size_list": "2,1,4", "sharding_stage_list": "0,2,3", "tp_size_list": "2,4,1", "usp_flag_list": "0,1,0",
    "recompute_list": "1,0,0", "pp_stage_idx_list": "0,0,1",
}  # fmt: skip


def test_every_layer_of_paddles_file_fills_its_stage(tmp_path: Path) -> None:
    def read(**entries: Any) -> Any:
        return lambda: read_strategy(put(tmp_path, PADDLE | entries, "fine_grained_config.json"))

    plan = read()().plan
    assert plan.world == 8 and plan.division == (2, 1) and plan.ends.zero == 2
    assert [(each.tp, each.sp, each.dp, each.zero, each.recompute) for each in plan.layers] == [
        (2, 1, 2, 0, True), (1, 4, 1, 2, False), (1, 1, 4, 3, False),
    ]  # fmt: skip
    for entries, told in (
        ({"dp_size_list": "2,2,4"}, "makes 16 ranks with tp_size_list at layer 1, and 8 before"),
        ({"sharding_stage_list": "0,1,3"}, "has 1 for layer 1"), ({"sharding_stage_list": "0,2,4"}, "write 0 to 3"),
        ({"pp_stage_idx_list": "1,0,1"}, "must rise from 0"), ({"pp_stage_idx_list": "0,0,0"}, "must rise from 0"),
        ({"pp_stage_idx_list": "0,0,2"}, "write 0 to 1"), ({"global_batch_size": 6}, "global_batch_size"),
        ({"usp_flag_list": "0,2,0"}, "write 0 to 1"), ({"vtp": 3}, "does not divide the 4 ranks"),
        ({"vsp_flag": 2}, "vsp_flag"),
    ):  # fmt: skip
        assert told in refusal(read(**entries)), entries
    assert read(embed_sdp=1)().plan.ends.zero == 3 and read(vsp_flag=1)().plan.ends.sp == 2
