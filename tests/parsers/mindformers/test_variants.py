"""Strategies and small runs written into small files: every entry that has to change, and none that has not.

The files are plain mappings, so that what is written is read here by PyYAML alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.mindformers.read import config_from_source
from taylor.parsers.mindformers.small_run import job_sizes, small_run
from taylor.parsers.mindformers.write import _fits, with_plan, with_strategy
from taylor.parsers.small_run import JobSizes, Machines, ProfiledRun, ProfiledSteps, RunSetting
from taylor.parsers.text.yaml_source import YamlSource
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.register.model import DENSE, MOE

MODEL = {
    "model_type": "qwen3", "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 1000, "intermediate_size": 128, "seq_length": 256,
}  # fmt: skip
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 2}


def file_of(model: dict[str, Any] = MODEL, degrees: dict[str, Any] | None = None, **sections: Any) -> YamlSource:
    degrees = {"vocab_emb_dp": True, **(degrees or {})}
    data = {"model": {"model_config": model}, "parallel_config": degrees, **sections, "output_dir": "./output"}
    return YamlSource(yaml.safe_dump(data, sort_keys=False), Path("job.yaml"))


def varied(source: YamlSource, strategy: Strategy, plan: PipelinePlan | None = None, **extra: Any) -> dict[str, Any]:
    config = config_from_source(source)
    written = with_strategy(source, config, strategy, plan, {key.replace("__", "."): v for key, v in extra.items()})
    assert config_from_source(written).strategy == strategy
    return yaml.safe_load(written.text)


def at(data: Any, *path: Any) -> Any:
    for step in path:
        data = data.get(step) if isinstance(data, dict) else None
    return data


def test_degrees_of_one_are_written_where_the_file_has_the_entry_and_nowhere_else() -> None:
    names = ("data_parallel", "model_parallel", "pipeline_stage", "expert_parallel", "context_parallel")
    for written in itertools.product((False, True), repeat=5):
        degrees = {name: 2 for name, there in zip(names, written, strict=True) if there}
        data = varied(file_of(degrees=degrees), Strategy(1, 1, 1))
        assert {name: data["parallel_config"].get(name) for name in names} == {
            name: 1 if name in degrees else None for name in names
        }
    data = varied(file_of(), Strategy(dp=4, tp=2, pp=2, ep=2, cp=2, micro_batches=4))
    assert [data["parallel_config"][name] for name in names] == [4, 2, 2, 2, 2]


def test_one_stage_accumulates_gradients_and_several_count_micro_batches() -> None:
    """MindFormers fd4deeb mindformers/trainer/base_trainer.py:198 sets micro_batch_num to 1 with one stage, :209 and
    :221 count the batch by micro-batches with several stages and by accumulation with one."""
    one, two = {"pipeline_stage": 1}, {"pipeline_stage": 2, "micro_batch_num": 4}
    for degrees, runner, stages, batches, told in (
        (one, {}, 1, 1, (None, None)),
        (one, {}, 1, 6, (None, 6)),
        (one, {"gradient_accumulation_steps": 3}, 1, 1, (None, 1)),
        (one, {"gradient_accumulation_steps": 3}, 1, 2, (None, 2)),
        (two, {}, 1, 1, (1, None)),
        (two, {}, 1, 6, (1, 6)),
        (two, {}, 2, 6, (6, None)),
        (one, {"gradient_accumulation_steps": 3}, 2, 6, (6, 3)),
    ):
        data = varied(
            file_of(degrees=degrees, runner_config={"epochs": 2, **runner}),
            Strategy(1, 1, stages, micro_batches=batches),
        )
        found = at(data, "parallel_config", "micro_batch_num"), at(data, "runner_config", "gradient_accumulation_steps")
        assert found == told


def test_callbacks_that_count_micro_batches_follow_them() -> None:
    entries = [{"type": "A", "micro_batch_num": 4}, {"type": "B"}, "C", {"type": "D", "micro_batch_num": "all"}]
    source = file_of(degrees={"pipeline_stage": 2, "micro_batch_num": 4}, callbacks=entries, eval_callbacks=entries[:1])
    data = varied(source, Strategy(1, 1, 2, micro_batches=9))
    assert data["callbacks"] == [{"type": "A", "micro_batch_num": 9}, *entries[1:]]
    assert data["eval_callbacks"] == [{"type": "A", "micro_batch_num": 9}]


def test_how_far_states_are_split_is_said_by_a_switch_and_a_size() -> None:
    """Off at 1, -1 or nothing for all replicas, else the number (optimizer_weight_shard_size)."""
    for on, size, op, switch, written in (
        (False, None, 1, None, None),
        (True, None, 1, False, None),
        (True, 4, 1, False, 4),
        (False, None, 8, True, None),
        (True, None, 8, True, None),
        (True, 4, 8, True, -1),
        (True, -1, 8, True, -1),
        (True, None, 4, True, 4),
        (True, 8, 2, True, 2),
        (False, None, 2, True, 2),
    ):
        parallel: dict[str, Any] = {"full_batch": True, **({"enable_parallel_optimizer": True} if on else {})}
        if size is not None:
            parallel["parallel_optimizer_config"] = {"optimizer_weight_shard_size": size}
        data = varied(file_of(degrees={"data_parallel": 2}, parallel=parallel), Strategy(dp=4, tp=1, pp=1, cp=2, op=op))
        sharding = at(data, "parallel", "parallel_optimizer_config", "optimizer_weight_shard_size")
        assert (at(data, "parallel", "enable_parallel_optimizer"), sharding) == (switch, written)
    alone = varied(file_of(parallel={"enable_parallel_optimizer": True}), Strategy(1, 1, 1, op=1))
    assert alone["parallel"] == {"enable_parallel_optimizer": True}


def test_rows_of_the_dataset_strategy_follow_the_data_where_they_begin_with_it() -> None:
    rows = [[4, 1], [1, 4], [4], 4, []]
    source = file_of(degrees={"data_parallel": 4}, parallel={"dataset_strategy": rows})
    assert varied(source, Strategy(2, 1, 1))["parallel"]["dataset_strategy"] == [[2, 1], [1, 4], [2], 4, []]
    whole = file_of(degrees={"data_parallel": 4}, parallel={"dataset_strategy": "full_batch"})
    assert varied(whole, Strategy(2, 1, 1))["parallel"]["dataset_strategy"] == "full_batch"


def test_samples_of_a_micro_batch_keep_its_parts_where_these_divide_them() -> None:
    for parts, samples, told in ((1, 3, (None, 3)), (2, 6, (2, 3)), (2, 5, (1, 5)), (2, 2, (2, None)), (3, 4, (1, 4))):
        beside = {"micro_batch_interleave_num": parts} if parts > 1 else {}
        data = varied(file_of(**beside), Strategy(1, 1, 1, mbs=samples))
        assert (data.get("micro_batch_interleave_num"), at(data, "runner_config", "batch_size")) == told


def test_sequence_parallel_is_written_where_it_changes() -> None:
    for before, after in itertools.product((None, False, True), (False, True)):
        degrees = {"model_parallel": 2, **({} if before is None else {"use_seq_parallel": before})}
        data = varied(file_of(degrees=degrees), Strategy(1, 2, 1, sp=after))
        assert data["parallel_config"].get("use_seq_parallel") == (after if after != bool(before) else before)


def test_interleaves_and_their_schedule_are_written_together_where_they_change() -> None:
    source = file_of(degrees={"pipeline_stage": 2, "micro_batch_num": 4})
    two = varied(source, Strategy(1, 1, 2, vpp=2, micro_batches=4))
    assert two["model"]["model_config"]["pp_interleave_num"] == 2
    assert two["parallel"]["pipeline_config"] == {"pipeline_interleave": True, "pipeline_scheduler": "1f1b"}
    back = varied(YamlSource(yaml.safe_dump(two), Path("job.yaml")), Strategy(1, 1, 2, micro_batches=4))
    assert back["model"]["model_config"]["pp_interleave_num"] == 1
    assert back["parallel"]["pipeline_config"] == {"pipeline_interleave": False, "pipeline_scheduler": "1f1b"}
    assert "parallel" not in varied(source, Strategy(1, 1, 2, micro_batches=8))


def test_a_plan_of_another_shape_is_no_plan_of_the_strategy() -> None:
    source = file_of()
    config = config_from_source(source)
    plan = config.even_plan(Strategy(1, 1, 2))
    for strategy in (Strategy(1, 1, 4), Strategy(1, 1, 2, vpp=2)):
        with pytest.raises(ValueError, match="shape differs"):
            with_strategy(source, config, strategy, plan, {})


def test_more_or_fewer_layers_are_told_under_every_name_that_the_file_has() -> None:
    def counts(model: dict[str, Any], layers: dict[str, int], **sections: Any) -> dict[str, Any]:
        plan = PipelinePlan({kind: ((count,),) for kind, count in layers.items()}, {})
        return varied(file_of(model, **sections), Strategy(1, 1, 1), plan)

    base = {name: value for name, value in MODEL.items() if name not in ("num_hidden_layers", "model_type")}
    for names in (("num_layers",), ("n_layer",), ("num_hidden_layers", "num_layers")):
        told = counts({**base, **dict.fromkeys(names, 8)}, {DENSE: 6})["model"]["model_config"]
        assert {name: told.get(name) for name in ("num_layers", "num_hidden_layers", "n_layer")} == {
            name: 6 if name in names else None for name in ("num_layers", "num_hidden_layers", "n_layer")
        }
    same = counts(MODEL, {DENSE: 8})["model"]["model_config"]
    assert same == {**MODEL, "offset": [0]}
    for dense in (0, 1, 3):
        told = counts(MODEL | EXPERTS, {DENSE: dense, MOE: 8 - dense})["model"]["model_config"]
        assert (told["num_hidden_layers"], told["first_k_dense_replace"]) == (8, dense)
    bare = {name: value for name, value in EXPERTS.items() if name != "first_k_dense_replace"}
    listed = counts(MODEL | bare | {"mlp_only_layers": [0, 1]}, {DENSE: 3, MOE: 5})["model"]["model_config"]
    assert listed["mlp_only_layers"] == [0, 1, 2] and "first_k_dense_replace" not in listed
    unsaid = counts(MODEL | bare, {DENSE: 2, MOE: 6})["model"]["model_config"]
    assert unsaid["first_k_dense_replace"] == 2
    legacy = {**base, "num_layers": 8, "type": "LlamaConfig"}
    told = counts(legacy, {DENSE: 1, MOE: 7}, moe_config={"expert_num": 4, "num_experts_chosen": 2})
    assert told["moe_config"]["first_k_dense_replace"] == 1
    assert "first_k_dense_replace" not in told["model"]["model_config"]


def test_further_keys_are_dotted_and_numbers_in_them_count_entries() -> None:
    source = file_of(train={"sizes": [1, 2, 3]})
    data = varied(source, Strategy(1, 1, 1), train__sizes__1=9, new__key=True)
    assert data["train"] == {"sizes": [1, 9, 3]} and data["new"] == {"key": True}


def test_an_entry_by_stage_fits_the_stages_that_it_counts() -> None:
    for entry, stages, interleaves in (
        (["a", "b", "c"], 2, 1), ([1, 0], 2, 1), ([1, 0], 2, 3), ([[1, 0], [0, 1]], 2, 2), ([True, [0, 1]], 2, 2),
    ):  # fmt: skip
        assert _fits(entry, stages, interleaves)
    for entry, stages, interleaves in (
        ([1, 0, 0], 2, 1), (["a", 1], 3, 1), ([[1, 0], [0, 1]], 2, 1), ([[1, 0], [0]], 2, 2), ([[1, 0]], 1, 1),
    ):  # fmt: skip
        assert not _fits(entry, stages, interleaves)


def test_recompute_of_what_is_sent_stays_unless_it_no_longer_fits_the_stages() -> None:
    degrees = {"pipeline_stage": 2, "micro_batch_num": 4}
    for before, after in (
        ([1, 0], True), ([0, 0], False), (True, True), (["a", "b", "c"], ["a", "b", "c"]), ([[1, 0]], True),
        ({"x": [1, 0], "y": True, "z": [0, 0]}, {"x": True, "y": True, "z": False}),
    ):  # fmt: skip
        source = file_of(degrees=degrees, recompute_config={"recompute": False, "select_comm_recompute": before})
        assert varied(source, Strategy(1, 1, 4, micro_batches=4))["recompute_config"]["select_comm_recompute"] == after
        same = varied(source, Strategy(1, 1, 2, micro_batches=8))["recompute_config"]["select_comm_recompute"]
        assert same == before


def planned(source: YamlSource, full: tuple[int, ...], select: tuple[int, ...]) -> dict[str, Any]:
    held = ((4, 4),)
    modes = {FULL: (full,), SELECT: (select,)}
    plan = PipelinePlan({DENSE: held}, modes)
    written = with_plan(source, config_from_source(source), plan, None)
    return yaml.safe_load(written.text)["recompute_config"]


def test_selective_recompute_is_written_in_the_files_own_form() -> None:
    degrees = {"pipeline_stage": 2, "micro_batch_num": 4}

    def told(old: Any, full: tuple[int, ...], select: tuple[int, ...]) -> Any:
        section = {"recompute": [0, 0], **({} if old is None else {"select_recompute": old})}
        found = planned(file_of(degrees=degrees, recompute_config=section), full, select)
        assert found["recompute"] == list(full)
        return found.get("select_recompute")

    assert told(None, (1, 0), (2, 0)) == [3, 0] and told(None, (1, 0), (0, 0)) is None
    assert told(False, (1, 2), (0, 1)) == [0, 3] and told(False, (1, 2), (0, 0)) is False
    assert told(True, (0, 0), (0, 0)) is False and told([1, 1], (0, 0), (0, 0)) is False
    assert told([0, 0], (0, 0), (0, 0)) == [0, 0]
    patterns = {"a": True, "b": [0, 0], "c": False}
    assert told(patterns, (0, 0), (0, 0)) == {"a": [0, 0], "b": [0, 0], "c": False}
    assert told(patterns, (1, 0), (1, 0)) == {"a": [2, 0], "b": [2, 0], "c": [2, 0]}
    assert told(["a", "b"], (0, 0), (4, 4)) == ["a", "b"]
    assert told(["a", "b"], (0, 0), (4, 3)) == {"a": [4, 3], "b": [4, 3]}


def test_a_plan_that_recomputes_what_the_file_cannot_count_is_refused() -> None:
    source = file_of(degrees={"pipeline_stage": 2, "micro_batch_num": 4})
    plan = PipelinePlan({DENSE: ((4, 4),), MOE: ((0, 0),)}, {FULL: ((4, 3),), SELECT: ((0, 1),)})
    with_plan(source, config_from_source(source), plan, None)
    mtp = {**MODEL, "mtp_num_layers": 1}
    source = file_of(mtp, degrees={"pipeline_stage": 2, "micro_batch_num": 4})
    config = config_from_source(source)
    held = config.even_plan(config.strategy.replace(micro_batches=4), FULL)
    with_plan(source, config, PipelinePlan(held.layers, {FULL: ((4, 4),)}), None)
    with pytest.raises(ValueError, match="MTP"):
        with_plan(source, config, PipelinePlan(held.layers, {FULL: ((4, 5),)}), None)


DEGREES = {
    "data_parallel": 2, "model_parallel": 2, "pipeline_stage": 2, "expert_parallel": 2, "context_parallel": 2,
    "micro_batch_num": 4,
}  # fmt: skip
JOB = file_of(
    MODEL | EXPERTS, DEGREES, runner_config={"epochs": 7, "sink_mode": True, "sink_size": 2, "batch_size": 3},
    train_dataset={"data_loader": {"sizes": [5000, 0, 0], "config": {"seq_length": 256}}}, load_checkpoint="there",
    parallel={"enable_parallel_optimizer": True},
)  # fmt: skip


def test_a_job_says_what_small_runs_of_it_keep_to() -> None:
    own = RunSetting(tp=2, cp=2, ep=2, mbs=3, seq=256, experts=16, layers=8, pp=2, dp=2, dense=2)
    assert job_sizes(JOB) == JobSizes(own, 4, top_k=3, expert_groups=1, batch=2 * 3 * 4, interleaves=False)
    plain = job_sizes(file_of({**MODEL, "num_key_value_heads": 8, "seq_length": 64}))
    assert plain == JobSizes(RunSetting(seq=64, layers=8), 8, batch=1, interleaves=False)
    ulysses = job_sizes(file_of(degrees={"context_parallel": 2, "context_parallel_algo": "ulysses_cp"}))
    assert ulysses.cp_ways == 8


@pytest.mark.parametrize(
    ("said", "degree"),
    [
        ({}, 1),
        ({"context_parallel_algo": "colossalai_cp", "ulysses_degree_in_cp": 2}, 1),
        ({"context_parallel_algo": "ulysses_cp"}, None),
        ({"context_parallel_algo": "hybrid_cp"}, 1),
        ({"context_parallel_algo": "hybrid_cp", "ulysses_degree_in_cp": 2}, 2),
    ],
)
def test_a_ring_splits_no_heads_ulysses_all_and_both_together_as_many_as_is_said(
    said: dict[str, Any], degree: int | None
) -> None:
    """MindFormers r1.7.0 mindformers/modules/transformer/transformer.py:622-635 `get_ulysses_cp_num`.

    `colossalai_cp`, the default (:567), gives 1, `ulysses_cp` all of `context_parallel` (here None: all, whatever it
    is), `hybrid_cp` `ulysses_degree_in_cp`, by default 1; the others leave that degree out of account (:613-615).
    """
    degrees = {"context_parallel": 4, "data_parallel": 1, "model_parallel": 1, "pipeline_stage": 1}
    assert config_from_source(file_of(degrees=degrees | said)).rules.ulysses_degree == degree
    inside = file_of({**MODEL, **said}, degrees)
    assert config_from_source(inside).rules.ulysses_degree == degree


SETTING = RunSetting(tp=1, cp=2, ep=4, mbs=2, seq=512, experts=8, layers=3, pp=2, dp=4, dense=1)
SMALL = RunSetting(seq=256, layers=2)
STEPS = ProfiledSteps(Path("/data/profile"), count=3, first=5)


def test_a_small_run_is_cut_down_and_profiled_as_it_was_asked() -> None:
    written = small_run(JOB, ProfiledRun(SETTING, Machines(2, 8), STEPS))
    data = yaml.safe_load(written.text)
    config = config_from_source(written)
    assert config.strategy == Strategy(dp=4, tp=1, pp=2, ep=4, cp=2, op=8, sp=False, mbs=2, micro_batches=2)
    assert config.plan is not None and config.plan.recomputed(FULL) == config.plan.total_layers()
    assert data["runner_config"] == {"epochs": 1, "sink_mode": True, "sink_size": 1, "batch_size": 2}
    told = {name: data[name] for name in data if "profile" in name or name == "load_checkpoint"}
    assert told == {
        "load_checkpoint": "", "profile": True, "profile_start_step": 5, "profile_stop_step": 7,
        "init_start_profile": False, "profile_communication": True, "profile_memory": True, "profiler_level": 1,
        "profile_output": "/data/profile", "profile_rank_ids": [0, 8],
    }  # fmt: skip
    steps = 5 + 3
    assert data["train_dataset"]["data_loader"]["sizes"] == [steps * 4 * 2 * 2, 0, 0]
    model = data["model"]["model_config"]
    sizes = {"num_hidden_layers": 3, "num_experts": 8, "first_k_dense_replace": 1, "seq_length": 512}
    assert {name: model[name] for name in MODEL | EXPERTS} == MODEL | EXPERTS | sizes
    assert data["train_dataset"]["data_loader"]["config"] == {"seq_length": 512}


def test_a_small_run_leaves_out_what_the_file_does_not_say() -> None:
    bare = file_of(swap_config={"swap": False}, train_dataset={"data_loader": {"type": "x"}})
    data = yaml.safe_load(small_run(bare, ProfiledRun(SMALL, Machines(1, 1), STEPS)).text)
    assert data["swap_config"] == {"swap": False} and data["train_dataset"] == {"data_loader": {"type": "x"}}
    assert data["runner_config"] == {"epochs": 1} and data["profile_rank_ids"] == [0]
    assert data["model"]["model_config"]["num_hidden_layers"] == 2
    longer = {**{name: value for name, value in MODEL.items() if name != "seq_length"}, "max_position_embeddings": 256}
    data = yaml.safe_load(
        small_run(file_of(longer), ProfiledRun(RunSetting(seq=512, layers=8), Machines(1, 1), STEPS)).text
    )
    model = data["model"]["model_config"]
    assert (model["seq_length"], model["max_position_embeddings"]) == (512, 512)
    data = yaml.safe_load(
        small_run(file_of(longer), ProfiledRun(RunSetting(seq=128, layers=8), Machines(1, 1), STEPS)).text
    )
    model = data["model"]["model_config"]
    assert (model["seq_length"], model["max_position_embeddings"]) == (128, 256)
    data = yaml.safe_load(
        small_run(file_of(longer), ProfiledRun(RunSetting(seq=256, layers=8), Machines(1, 1), STEPS)).text
    )
    assert data["model"]["model_config"] == longer | {"offset": data["model"]["model_config"]["offset"]}


def test_a_small_run_moves_nothing_to_the_host() -> None:
    data = yaml.safe_load(
        small_run(file_of(swap_config={"swap": True}), ProfiledRun(SMALL, Machines(1, 1), STEPS)).text
    )
    assert data["swap_config"] == {"swap": False}


def test_what_a_small_run_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="all the cards"):
        small_run(JOB, ProfiledRun(SETTING, Machines(1, 8), STEPS))
    classed = file_of({**MODEL, "model_type": "qwen3_moe", "head_dim": 8})
    small_run(classed, ProfiledRun(SMALL.replace(experts=128), Machines(1, 1), STEPS))
    with pytest.raises(InputError, match="how many experts"):
        small_run(classed, ProfiledRun(SMALL.replace(experts=127), Machines(1, 1), STEPS))
