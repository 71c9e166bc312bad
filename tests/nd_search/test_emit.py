"""The files of a search: each reads back as what it stands for, no two alike, nothing stale left."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError, WriteError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib
from taylor.nd_search.emit import (
    baseline_of,
    candidate_frame,
    emit_yaml,
    file_stems,
    write_candidates_csv,
    write_pruned_csv,
)
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.prune import describe
from taylor.nd_search.reduce import reduce_strategy
from taylor.nd_search.search import SearchResult, search
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL
from taylor.register.layers import AttentionSpec, LayerSpec, MlpSpec
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.pattern import kinds_in_order
from tests.nd_search_cases import DEEPSEEK_V3, DEVICE, LLAMA2_7B, job

CONFIG = Path(__file__).resolve().parents[2] / "config"

SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "data" / "mindformers_yaml"

LEGACY = """\
# a small DeepSeek-like job
runner_config:
  batch_size: 1
train_dataset: &train_dataset
  data_loader:
    type: MindDataset
    dataset_dir: "here.mindrecord"
parallel:
  enable_parallel_optimizer: True
  dataset_strategy: [[*dp, 1]]
  parallel_optimizer_config:
    gradient_accumulation_shard: False
parallel_config:
  data_parallel: 4
  model_parallel: 2
  pipeline_stage: 4
  expert_parallel: 4
  micro_batch_num: 8  # at least the stages
  use_seq_parallel: True
  vocab_emb_dp: False
micro_batch_interleave_num: 1
recompute_config:
  recompute: [2, 2, 2, 2]
  select_recompute: False
context:
  max_device_memory: "40GB"
model:
  model_config:
    type: DeepseekV3Config
    seq_length: 4096
    hidden_size: 2048
    num_layers: 12
    num_heads: 32
    n_kv_heads: 32
    vocab_size: 102400
    intermediate_size: 8192
    q_lora_rank: 512
    kv_lora_rank: 256
    qk_rope_head_dim: 64
    qk_nope_head_dim: 128
    v_head_dim: 128
    offset: [1, 0, 0, 0]
    mtp_depth: 1
    use_flash_attention: True
moe_config:
  expert_num: 64
  num_experts_chosen: 6
  shared_expert_num: 2
  first_k_dense_replace: 2
  moe_intermediate_size: 1024
  capacity_factor: 1.5
""".replace("data_parallel: 4", "data_parallel: &dp 4")


@pytest.fixture
def config(tmp_path: Path) -> TrainingConfig:
    path = tmp_path / "small_deepseek.yaml"
    # dataset_strategy uses an anchor that parallel_config defines: that section must come first.
    head, parallel, rest = LEGACY.partition("parallel:\n")
    section, marker, tail = rest.partition("parallel_config:\n")
    degrees, other, end = tail.partition("micro_batch_interleave_num")
    path.write_text(head + marker + degrees + parallel + section + other + end)
    return read_config(path)


ALL = ("dp", "tp", "pp", "ep", "cp", "op", "vpp", "mbs")


def found(config: TrainingConfig, **options) -> SearchResult:
    return search(config, DEVICE, SearchOptions(world_size=64, gbs=256, **options))


def test_every_full_size_file_reads_back_as_its_strategy(config: TrainingConfig, tmp_path: Path) -> None:
    result = found(config, search=ALL, profile_num=40)
    files = emit_yaml(result, config, tmp_path / "dryrun_yaml", dataset="small.mindrecord")
    assert len(files) == len(set(files)) == 40
    for index, path in zip(result.chosen, files, strict=True):
        back = read_config(path)
        assert back.strategy == result.candidates.row(index)
        assert back.model.replace(name="") == config.model.replace(name="")
        raw = yaml.safe_load(path.read_text())
        assert raw["train_dataset"]["data_loader"]["dataset_dir"] == "small.mindrecord"
        assert raw["parallel"]["dataset_strategy"] == [[back.strategy.dp, 1]]


def test_mindformers_own_arithmetic_holds_in_every_file(config: TrainingConfig, tmp_path: Path) -> None:
    result = found(config, search=("dp", "tp", "pp", "ep", "vpp", "mbs"), profile_num=30)
    for path in emit_yaml(result, config, tmp_path / "dryrun_yaml"):
        raw = yaml.safe_load(path.read_text())
        parallel, model = raw["parallel_config"], raw["model"]["model_config"]
        stages, vpp = parallel["pipeline_stage"], model.get("pp_interleave_num", 1)
        assert parallel["data_parallel"] * parallel["model_parallel"] * stages == 64
        assert (parallel["data_parallel"] * parallel["model_parallel"]) % parallel["expert_parallel"] == 0
        steps = parallel["micro_batch_num"]
        if stages == 1:  # there MindFormers accumulates gradients instead
            steps = raw["runner_config"].get("gradient_accumulation_steps", 1)
        assert parallel["data_parallel"] * raw["runner_config"]["batch_size"] * steps == 256
        if stages > 1:
            assert parallel["micro_batch_num"] >= stages
            offset = np.atleast_2d(model["offset"])
            assert offset.shape == (vpp, stages) or not offset.any()
            assert offset.sum() == 13 % (stages * vpp)


def test_names_show_further_dimensions_only_where_they_vary(config: TrainingConfig, tmp_path: Path) -> None:
    plain = emit_yaml(found(config), config, tmp_path / "plain")
    assert all(path.name.count("_") == 4 and path.name.endswith("_pretrain.yaml") for path in plain)
    searched = found(config, search=("dp", "tp", "pp", "ep", "mbs"), profile_num=60)
    varied = emit_yaml(searched, config, tmp_path / "varied")
    assert all("_MBS" in path.name and "_VPP" not in path.name for path in varied)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            Strategy,
            dp=st.sampled_from([1, 2]),
            tp=st.sampled_from([1, 2]),
            pp=st.sampled_from([1, 4]),
            ep=st.sampled_from([1, 2]),
            cp=st.sampled_from([1, 2]),
            op=st.sampled_from([1, 2]),
            sp=st.booleans(),
            vpp=st.sampled_from([1, 2]),
            mbs=st.sampled_from([1, 2]),
            micro_batches=st.sampled_from([4, 8]),
        ),
        min_size=1,
        max_size=40,
        unique=True,
    )
)
def test_no_two_strategies_share_a_name(strategies: list[Strategy]) -> None:
    stems = file_stems(StrategyTable.from_strategies(strategies))
    assert len(set(stems)) == len(strategies)
    assert all(stem.startswith(each.name) for stem, each in zip(stems, strategies, strict=True))


@pytest.mark.parametrize(
    ("strategies", "names"),
    [
        # Micro-batches follow from the batch, and are told of those that nothing else sets apart.
        ([{"micro_batches": 4}, {"micro_batches": 8}], ["_M4", "_M8"]),
        ([{"dp": 4, "micro_batches": 4}, {"micro_batches": 8}], ["", ""]),
        ([{"cp": 1}, {"cp": 2, "op": 4}], ["_CP1", "_CP2"]),
        ([{"vpp": 2}, {"vpp": 3}, {"vpp": 3, "op": 2}], ["_VPP2_OP1", "_VPP3_OP1", "_VPP3_OP2"]),
        ([{"mbs": 2}, {"mbs": 2, "sp": False}], ["_SP1", "_SP0"]),
    ],
)
def test_a_name_shows_what_varies_and_what_follows_only_where_nothing_else_does(strategies: list, names: list) -> None:
    rows = [Strategy(2, 2, 2).replace(**changes) for changes in strategies]
    told = file_stems(StrategyTable.from_strategies(rows))
    assert told == [f"DP{row.dp}_TP2_PP2_EP1{name}" for row, name in zip(rows, names, strict=True)]
    with pytest.raises(ValueError, match="the same"):
        file_stems(StrategyTable.from_strategies([*rows, rows[0]]))


def test_a_strategy_in_words_has_its_main_degrees_and_what_is_not_one() -> None:
    assert describe(Strategy(2, 1, 1)) == "dp=2 tp=1 pp=1 ep=1 micro_batches=1"
    assert describe(Strategy(1, 1, 3, cp=2, vpp=2)) == "dp=1 tp=1 pp=3 ep=1 cp=2 vpp=2 micro_batches=1"


def test_the_candidates_csv_begins_as_the_other_tools_read_it(config: TrainingConfig, tmp_path: Path) -> None:
    result = found(config)
    path = write_candidates_csv(result, tmp_path / "nd" / "nd_candidate_config.csv")
    rows = list(csv.reader(path.read_text().splitlines()))
    assert rows[0][:5] == ["dp", "tp", "pp", "ep", "peakMem"]
    assert len(rows) == len(result.candidates) + 1
    for index, row in enumerate(rows[1:]):
        strategy = result.candidates.row(index)
        assert [int(cell) for cell in row[:4]] == [strategy.dp, strategy.tp, strategy.pp, strategy.ep]
        assert float(row[4]) == pytest.approx(result.peak_mib[index], abs=0.051)
    assert candidate_frame(result)["chosen"].sum() == len(result.chosen)


def test_the_pruned_csv_counts_every_rule_and_shows_an_example_it_really_breaks(
    config: TrainingConfig, tmp_path: Path
) -> None:
    result = found(config)
    rows = list(csv.DictReader(write_pruned_csv(result, tmp_path / "pruned.csv").read_text().splitlines()))
    assert list(rows[0]) == ["rule", "removed", "example", "explanation"]
    assert sum(int(row["removed"]) for row in rows) == result.counts["built"] - result.counts["fitting"]
    by_rule = {row["rule"]: row for row in rows}
    assert "memory" in by_rule and by_rule["heads-by-tp"]["removed"] == "7"
    assert "tp=64" in by_rule["heads-by-tp"]["example"]


def test_files_made_from_one_of_another_ending_end_as_the_launcher_s_files_do(
    config: TrainingConfig, tmp_path: Path
) -> None:
    """MindFormers' own files all end with .yaml."""
    other = config.path.with_suffix(".conf")
    other.write_bytes(config.path.read_bytes())
    [made] = emit_yaml(found(config, profile_num=1), replace(config, path=other), tmp_path / "made")
    assert made.name.endswith("_pretrain.yaml")


def test_a_second_emission_removes_what_the_first_wrote_and_nothing_else(
    config: TrainingConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "dryrun_yaml"
    first = emit_yaml(found(config, profile_num=6), config, folder)
    (folder / "DP9_TP9_PP9_EP9_pretrain.yaml").write_text("the user's own")
    second = emit_yaml(found(config, profile_num=3), config, folder)
    left = {path.name for path in folder.glob("*.yaml")}
    assert {path.name for path in second} < {path.name for path in first}
    assert left == {path.name for path in second} | {"DP9_TP9_PP9_EP9_pretrain.yaml"}


def test_profile_files_are_small_keep_tp_and_ep_and_say_what_changed(config: TrainingConfig, tmp_path: Path) -> None:
    result = found(config)
    files = emit_yaml(result, config, tmp_path / "profile_yaml", profile=True, rank_num=16, dataset="big.mindrecord")
    assert len(files) >= 5
    by_name = {stem: result.candidates.row(i) for i, stem in enumerate(file_stems(result.candidates))}
    for path in files:
        back = read_config(path)
        large = by_name[path.name.removesuffix("_pretrain.yaml")]
        assert back.strategy.world_size <= 16
        assert (back.strategy.tp, back.strategy.ep, back.strategy.cp) == (large.tp, large.ep, large.cp)
        raw = yaml.safe_load(path.read_text())
        assert raw["profile"] is True and raw["profile_stop_step"] > raw["profile_start_step"]
        assert raw["train_dataset"]["data_loader"]["dataset_dir"] == "big.mindrecord"
        assert back.plan is not None and back.model.n_layers < config.model.n_layers
        shown = back.plan.recompute_by_kind()
        # The MoE layer, whose time is the unit, shows with and without recompute; dense ones show.
        assert sum(map(sum, shown[MOE]["full"])) >= 1 and sum(map(sum, shown[MOE]["none"])) >= 1
        assert sum(map(sum, back.plan.layers[DENSE])) >= 1
        told = json.loads((path.parent / path.name.replace(".yaml", ".reduction.json")).read_text())
        assert f"tp = {large.tp}" in told["kept"] and f"ep = {large.ep}" in told["kept"]
        assert any(line.startswith("moe layers: 10 -> ") for line in told["changed"])


def test_a_strategy_that_needs_more_cards_says_so_instead_of_a_file(
    config: TrainingConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = found(config)
    wide = [i for i in range(len(result.candidates)) if result.candidates.ep[i] >= 16]
    assert wide
    with caplog.at_level("INFO"):
        files = emit_yaml(result, config, tmp_path / "profile_yaml", profile=True, rank_num=4, which=wide)
    assert files == []
    [count, missing] = [record.getMessage() for record in caplog.records]
    assert f"0 of {len(wide)} configurations to profile" in count and "cannot be reduced to 4 cards" in missing
    notes = list((tmp_path / "profile_yaml").glob("*.reduction.json"))
    assert len(notes) == len(wide)
    for note in notes:
        told = json.loads(note.read_text())["not_reduced"]
        strategy = next(s for s in result.candidates if f"for {s.name}:" in told)
        enough = int(re.search(r"give (\d+) cards", told)[1])
        # What it says is enough is, and no multiple of what it keeps lies below.
        reduce_strategy(config, DEVICE, strategy, enough, 200000.0)
        with pytest.raises(InputError, match=f"give {enough} cards"):
            reduce_strategy(config, DEVICE, strategy, enough - 1, 200000.0)


def test_of_many_strategies_that_need_more_cards_four_are_named(
    config: TrainingConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = found(config)
    wide = [i for i in range(len(result.candidates)) if result.candidates.ep[i] >= 16]
    for number, further in ((4, ""), (5, " and 1 more")):
        caplog.clear()
        with caplog.at_level("INFO"):
            emit_yaml(result, config, tmp_path / str(number), profile=True, rank_num=4, which=wide[:number])
        [_, missing] = [record.getMessage() for record in caplog.records]
        stems = sorted(note.name.split("_pretrain")[0] for note in (tmp_path / str(number)).glob("*.reduction.json"))
        names, _, _ = missing.removeprefix("not written: ").partition(f"{further}: ")
        assert len(stems) == number and len(names.split(", ")) == 4 and "more" not in names
        assert all(any(stem in name for stem in stems) for name in names.split(", "))


REDUCTIONS = [
    # original; cards; the small pp and dp that the order of preference gives, by hand
    (Strategy(16, 4, 16, 8, op=16, micro_batches=64), 64, 2, 8),  # dp * tp fills the cards: two stages, half the dp
    (Strategy(16, 4, 16, 8, op=16, micro_batches=64), 256, 4, 16),  # four stages at full dp
    (Strategy(8, 8, 16, 8, op=8, micro_batches=128), 32, 2, 2),  # dp 2 * tp 8 holds ep 8
    (Strategy(8, 4, 32, 8, op=8, micro_batches=128), 64, 2, 8),
    (Strategy(16, 8, 8, 64, op=16, micro_batches=64), 64, 1, 8),  # ep 64 needs dp 8: one stage is all there is
]


@pytest.mark.parametrize(("large", "cards", "pp", "dp"), REDUCTIONS)
def test_pp_gives_way_first_then_dp_and_one_stage_last(large: Strategy, cards: int, pp: int, dp: int) -> None:
    small = reduce_strategy(job(), DEVICE, large, cards, 200000.0).strategy
    assert (small.pp, small.dp) == (pp, dp)
    assert (small.tp, small.ep, small.cp, small.mbs) == (large.tp, large.ep, large.cp, large.mbs)
    assert small.op == small.dp and small.world_size <= cards and small.micro_batches >= small.pp


def test_each_stage_of_a_small_job_shows_its_kinds_with_and_without_recompute() -> None:
    reduction = reduce_strategy(job(), DEVICE, REDUCTIONS[1][0], 256, 200000.0)
    assert reduction.plan.layers[DENSE] == ((2, 0, 0, 0),)
    assert reduction.plan.layers[MOE] == ((1, 2, 2, 2),)
    shown = reduction.plan.recompute_by_kind()
    assert shown[DENSE]["full"] == shown[DENSE]["none"] == ((1, 0, 0, 0),)
    assert shown[MOE]["full"] == ((0, 1, 1, 1),) and shown[MOE]["none"] == ((1, 1, 1, 1),)
    assert reduction.model.n_layers == 9 and reduction.model.n_dense == 2


def test_interleaves_stay_and_each_of_their_chunks_shows_both_ways() -> None:
    large = Strategy(16, 4, 8, 8, op=16, vpp=2, micro_batches=64)
    reduction = reduce_strategy(job(), DEVICE, large, 64, 200000.0)
    assert (reduction.strategy.pp, reduction.strategy.vpp, reduction.strategy.dp) == (2, 2, 8)
    assert reduction.plan.layers[DENSE] == ((2, 0), (0, 0)) and reduction.plan.layers[MOE] == ((1, 2), (2, 2))
    assert reduction.plan.recompute[FULL] == ((1, 1), (1, 1))
    assert "mtp layers = 1" in reduction.kept


@pytest.mark.parametrize("vpp", [2, 4])
@pytest.mark.parametrize("model", [LLAMA2_7B, DEEPSEEK_V3], ids=["one kind", "two kinds"])
def test_a_large_interleaved_job_is_reduced_to_few_cards(model: ModelSpec, vpp: int) -> None:
    large = Strategy(64, 2, 4, op=64, vpp=vpp, micro_batches=8)
    config = job(model, large)
    for cards in (64, 16, 8):
        small = reduce_strategy(config, DEVICE, large, cards, 1e9).strategy
        assert small.world_size <= cards and (small.tp, small.vpp, small.mbs) == (2, vpp, large.mbs) and small.pp > 1
    # On the cards of a single stage there is no virtual stages to alternate.
    last = reduce_strategy(config, DEVICE, large, 2, 1e9)
    assert (last.strategy.pp, last.strategy.vpp) == (1, 1) and f"vpp: {vpp} -> 1" in last.changed


def test_a_dense_model_shrinks_to_one_stage_before_dp_does() -> None:
    own = Strategy(16, 2, 4, op=16, micro_batches=8)
    reduction = reduce_strategy(job(LLAMA2_7B, own), DEVICE, own, 32, 60000.0)
    assert (reduction.strategy.pp, reduction.strategy.dp) == (1, 16)
    assert reduction.plan.layers == {DENSE: ((2,),)} and reduction.plan.recompute[FULL] == ((1,),)


SAME = "layer sizes, experts, vocabulary and sequence of "
FIRST = "recompute: the first layer of each chunk, so that its kind is measured with and without recompute"
TOLD = [
    (
        DEEPSEEK_V3, Strategy(16, 4, 16, 8, op=64, micro_batches=64), 64,
        Strategy(8, 4, 2, 8, op=8, micro_batches=4),
        [*("tp = 4", "ep = 8", "cp = 1", "vpp = 1", "mbs = 1", "sp = 1"), SAME + "deepseek-v3", "mtp layers = 1"],
        ["pp: 16 -> 2", "dp: 16 -> 8", "op: 64 -> 8", "micro_batches: 64 -> 4", "dense layers: 3 -> 2",
         "moe layers: 58 -> 3", FIRST],
    ),
    (
        LLAMA2_7B, Strategy(8, 2, 8, op=4, vpp=2, micro_batches=8), 8,
        Strategy(2, 2, 2, op=2, vpp=2, micro_batches=4),
        ["tp = 2", "ep = 1", "cp = 1", "vpp = 2", "mbs = 1", "sp = 1", SAME + "llama2-7b"],
        ["pp: 8 -> 2", "dp: 8 -> 2", "op: 4 -> 2", "micro_batches: 8 -> 4", "dense layers: 32 -> 8", FIRST],
    ),
    (
        LLAMA2_7B, Strategy(2, 2, 4, op=1, micro_batches=4), 8,
        Strategy(2, 2, 2, op=1, micro_batches=4),
        ["tp = 2", "ep = 1", "cp = 1", "vpp = 1", "mbs = 1", "sp = 1", "dp = 2", "op = 1", "micro_batches = 4",
         SAME + "llama2-7b"],
        ["pp: 4 -> 2", "dense layers: 32 -> 4", FIRST],
    ),
    (
        DEEPSEEK_V3, Strategy(8, 4, 1, 4, op=8, micro_batches=2), 16,
        Strategy(4, 4, 1, 4, op=4, micro_batches=1),
        ["tp = 4", "ep = 4", "cp = 1", "vpp = 1", "mbs = 1", "sp = 1", "pp = 1", SAME + "deepseek-v3",
         "mtp layers = 1"],
        ["dp: 8 -> 4", "op: 8 -> 4", "micro_batches: 2 -> 1", "dense layers: 3 -> 1", "moe layers: 58 -> 2",
         "recompute: the dense layer and one of two MoE layers; dense layers show under recompute only, since a "
         "chunk's first layers are the recomputed ones"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("model", "large", "cards", "small", "kept", "changed"), TOLD)
def test_a_reduction_tells_all_that_stays_and_all_that_changes(
    model: ModelSpec, large: Strategy, cards: int, small: Strategy, kept: list[str], changed: list[str]
) -> None:
    told = reduce_strategy(job(model, large), DEVICE, large, cards, 1e9)
    assert told.strategy == small
    assert (list(told.kept), list(told.changed)) == (kept, changed)


def test_where_no_reduction_fits_the_lightest_is_taken_and_its_memory_told() -> None:
    large = Strategy(4, 4, 2, 4, op=4, micro_batches=2)
    told = reduce_strategy(job(DEEPSEEK_V3, large), DEVICE, large, 16, 10.0)
    near = reduce_strategy(job(DEEPSEEK_V3, large), DEVICE, large, 16, 1e9)
    peaks = []
    for small in (near, told):
        table = StrategyTable.from_strategies([small.strategy])
        peaks.append(float(best_case_peak_mib(small.model, job().rules, table, recompute="none")[0][0]))
    # One stage holds a layer less, and the states of every layer are split over twice the replicas.
    assert (near.strategy.pp, near.strategy.dp) == (2, 2) and (told.strategy.pp, told.strategy.dp) == (1, 4)
    assert peaks[1] < peaks[0]
    assert told.changed[-1].startswith(f"memory: about {peaks[1]:.0f} MiB of 10 without any recompute")


@pytest.mark.parametrize(
    ("pattern", "layers", "stages", "small"),
    [
        ("8 x (1 a, 2 b)", 24, 2, "2 x (1 a, 2 b)"),  # four chunks' worth of two layers in periods of three
        ("8 x (1 a, 2 b)", 24, 4, "3 x (1 a, 2 b)"),
        ("2 x (1 a, 2 b)", 6, 4, "2 x (1 a, 2 b)"),  # no more than there are
    ],
)
def test_of_unlike_layers_whole_periods_stay(pattern: str, layers: int, stages: int, small: str) -> None:
    kinds = tuple(LayerSpec(name, AttentionSpec(8, 8, 64), mlp=MlpSpec(width)) for name, width in (("a", 8), ("b", 16)))
    model = ModelSpec("unlike", layers, 512, 8, 8, 64, 16, 128, kinds=kinds, pattern=pattern)
    large = Strategy(2, 1, stages, op=2, sp=False, micro_batches=2 * stages)
    told = reduce_strategy(job(model, large), DEVICE, large, 2 * stages, 1e9)
    assert told.strategy == large and kinds_in_order(told.model.pattern) == kinds_in_order(small)
    held = told.plan.total_layers()
    assert told.plan.recompute[FULL] == tuple(tuple(min(1, count) for count in row) for row in held)
    assert sum(map(sum, held)) == told.model.n_layers == len(kinds_in_order(small))


def test_unlike_layers_without_a_period_cannot_be_fewer() -> None:
    kinds = tuple(LayerSpec(name, AttentionSpec(8, 8, 64), mlp=MlpSpec(width)) for name, width in (("a", 8), ("b", 16)))
    model = ModelSpec("unlike", 5, 512, 8, 8, 64, 16, 128, kinds=kinds, pattern="1 a, 3 b, 1 a")
    large = Strategy(2, 1, 2, op=2, sp=False, micro_batches=4)
    with pytest.raises(InputError, match="does not repeat"):
        reduce_strategy(job(model, large), DEVICE, large, 4, 1e9)


def test_a_reduction_that_fits_the_memory_goes_before_one_that_is_nearer_to_the_original() -> None:
    large = Strategy(16, 4, 16, 8, op=16, micro_batches=64)
    near = reduce_strategy(job(), DEVICE, large, 256, 200000.0)
    table = StrategyTable.from_strategies([near.strategy])
    peak, _ = best_case_peak_mib(near.model, job().rules, table, recompute="none")
    other = reduce_strategy(job(), DEVICE, large, 256, float(peak[0]) - 10)
    assert (near.strategy.pp, near.strategy.dp) == (4, 16)
    # One stage less keeps one micro-batch less alive on the first.
    assert (other.strategy.pp, other.strategy.dp) == (3, 16)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample files are not here")
@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.yaml")), ids=lambda path: path.stem[-30:])
def test_every_real_file_emits_variants_that_read_back(sample: Path, tmp_path: Path) -> None:
    try:
        config = read_config(sample)
    except Exception as refusal:
        pytest.skip(f"not readable: {refusal}")
    result = search(config, DEVICE, SearchOptions(world_size=1024, gbs=1024, profile_num=4))
    for index, path in zip(result.chosen, emit_yaml(result, config, tmp_path / "dryrun"), strict=True):
        back = read_config(path)
        assert back.strategy == result.candidates.row(index)
        assert back.model.replace(name="") == config.model.replace(name="") and back.plan is not None
    for path in emit_yaml(result, config, tmp_path / "profile", profile=True, rank_num=64):
        back = read_config(path)
        assert back.strategy.world_size <= 64 and back.plan is not None
        assert sum(back.model.layer_counts().values()) == sum(map(sum, back.plan.total_layers()))


def test_a_strategy_that_breaks_the_rules_at_any_size_asks_for_no_more_cards(config: TrainingConfig) -> None:
    broken = Strategy(16, 4, 16, 8, op=16, micro_batches=64).replace(tp=config.model.n_heads + 1)
    with pytest.raises(InputError, match="no smaller job that keeps tp, ep and cp obeys the framework's rules") as told:
        reduce_strategy(config, DEVICE, broken, 64, 200000.0)
    assert "--rank_num for" in str(told.value) and "give" not in str(told.value)


def test_files_of_an_earlier_search_for_another_job_are_kept_beside_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, jobs = tmp_path / "dryrun_yaml", []
    for name, ranks in (("one.yaml", 1024), ("two.yaml", 1024), ("two.yaml", 512)):
        path = tmp_path / name
        path.write_bytes((CONFIG / "pretrain_deepseek3_671b_1024p.yaml").read_bytes())
        config = read_config(path)
        found = search(config, DEVICE, SearchOptions(world_size=ranks, gbs=1024, profile_num=3))
        caplog.clear()
        with caplog.at_level("INFO"):
            jobs.append([file.name for file in emit_yaml(found, config, folder)])
        assert ("an earlier search for another job are kept in" in caplog.text) == (len(jobs) > 1)
    for kept, names, path in ((".1", jobs[0], "one.yaml"), (".2", jobs[1], "two.yaml"), ("", jobs[2], "two.yaml")):
        place = tmp_path / f"dryrun_yaml{kept}"
        assert sorted(file.name for file in place.glob("*_pretrain.yaml")) == sorted(names)
        assert baseline_of(place) == place / "baseline" / path


def test_files_of_an_earlier_search_that_cannot_be_moved_stay_and_the_search_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: TrainingConfig
) -> None:
    folder, rename = tmp_path / "dryrun_yaml", Path.rename
    first, other = (
        search(config, DEVICE, SearchOptions(world_size=1024, gbs=gbs, profile_num=3)) for gbs in (1024, 2048)
    )
    emit_yaml(first, config, folder)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(path: Path, target: Path) -> Path:
        if target.parent.name.endswith(".1") and len(list(target.parent.iterdir())) == 2:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(WriteError, match=r"dryrun_yaml\.1: .*earlier search.*No space left"):
        emit_yaml(other, config, folder)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_baseline_travels_with_the_files(tmp_path: Path) -> None:
    source = tmp_path / "mine.yaml"
    source.write_bytes((CONFIG / "pretrain_deepseek3_671b_1024p.yaml").read_bytes())
    config = read_config(source)
    emit_yaml(search(config, DEVICE, SearchOptions(profile_num=2)), config, tmp_path / "files")
    text = source.read_bytes()
    source.unlink()
    (tmp_path / "files").rename(tmp_path / "elsewhere")
    baseline = baseline_of(tmp_path / "elsewhere")
    assert baseline is not None and baseline.read_bytes() == text
    assert baseline_of(tmp_path) is None
