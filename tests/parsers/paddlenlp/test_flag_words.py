"""What the flags of PaddleNLP's trainer say and are made to say: tables worked by hand, a short script each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.galvatron.strategy_file import read_strategy, strategy_text, write_strategy
from taylor.parsers.paddlenlp.auto_tuner import TrainerArguments, read_arguments, read_tuner_file, read_tuner_job
from taylor.parsers.paddlenlp.read import config_from_script
from taylor.parsers.paddlenlp.script import PaddleScript
from taylor.parsers.paddlenlp.write import for_layerwise, with_plan, with_strategy
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.register.model import DENSE
from tests import galvatron_cases as cases
from tests.parsers.paddlenlp.test_auto_tuner import ARGUMENTS, HISTORY, JOB

MODEL = {
    "model_type": "llama", "num_hidden_layers": 8, "intermediate_size": 96, "vocab_size": 1000, "hidden_size": 64,
    "num_attention_heads": 8, "max_seq_length": 128,
}  # fmt: skip


def script(start: str = "", file: Path = Path("train.sh"), **flags: Any) -> PaddleScript:
    words = " ".join(f"--{name} {value}".strip() for name, value in (MODEL | flags).items() if value is not None)
    launcher = f"python -m paddle.distributed.launch {start}"
    return PaddleScript.of(ShellScript(f"{launcher} ./train.py --output_dir out {words}\n", file))


def read(start: str = "", **flags: Any) -> TrainingConfig:
    return config_from_script(script(start, **flags))


def degrees(dp: int = 1, tp: int = 1, pp: int = 1, **more: int) -> dict[str, int]:
    names = {"sharding_parallel_degree": dp, "tensor_parallel_degree": tp, "pipeline_parallel_degree": pp}
    return {name: value for name, value in names.items() if value != 1} | more


def test_a_script_without_degrees_splits_nothing() -> None:
    """PaddleNLP 536f3c3 paddlenlp/trainer/training_args.py: per_device_train_batch_size is 8 and
    gradient_accumulation_steps 1 where nothing is said."""
    config = read()
    strategy = config.strategy
    assert strategy == Strategy(dp=1, tp=1, pp=1, op=1, sp=False, mbs=8, micro_batches=1)
    assert config.plan == PipelinePlan({DENSE: ((8,),)}, {}) and config.schedule.name == "1f1b"
    assert not config.rules.parallel_optimizer and not config.rules.parameter_shard
    assert (config.rules.param_bytes, config.rules.compute_bytes, config.rules.seq_length) == (4, 4, 128)
    assert any("how many ranks it starts: 1 is assumed" in note for note in config.notes)
    for name in ("bf16", "fp16"):
        assert read(**{name: "true"}).rules.compute_bytes == read(**{name: "true"}).rules.param_bytes == 2


@pytest.mark.parametrize(
    ("start", "flags", "dp", "told"),
    [
        ("--gpus 0,1,2,3,4,5,6,7", degrees(), 8, None), ("--gpus 0,1,2,3,4,5,6,7", degrees(2, 2, 2), 2, None),
        ("--gpus 0,1,2,3,4,5,6,7", degrees(1, 2), 4, None), ("--nnodes 2 --gpus 0,1", degrees(1, 2), 2, None),
        ("--gpus 0,1,2", degrees(1, 2), 1, "3 ranks are no multiple of 2"),
        ("--gpus 0,1,2,3", degrees(3), 3, "4 ranks are no multiple of 3"), ("", degrees(4), 4, "how many ranks"),
        ("", degrees(-1), 1, "how many ranks"), ("--gpus 0,1,2,3", degrees(1, 1, 1, sep_parallel_degree=2), 2, None),
    ],
)  # fmt: skip
def test_data_parallel_is_what_the_ranks_leave(start: str, flags: dict[str, int], dp: int, told: str | None) -> None:
    config = read(start, **flags)
    assert config.strategy.dp == dp
    said = [note for note in config.notes if "ranks" in note]
    assert len(said) == (told is not None) and all(str(told) in note for note in said)


def test_states_are_split_over_the_sharding_group_where_a_stage_says_so() -> None:
    start = "--gpus 0,1,2,3,4,5,6,7"
    for flags, op, zero in (
        (degrees(2, 2), 1, 0), (degrees(2, 2) | {"sharding": "stage1"}, 2, 1),
        (degrees(4, 2) | {"sharding": "stage2"}, 4, 2), (degrees(2, 2) | {"sharding": "stage3 offload"}, 2, 3),
        (degrees(2, 2) | {"sharding": "offload"}, 1, 0), (degrees(2, 2) | {"sharding_stage_level": 0}, 1, 0),
        (degrees(2, 2) | {"sharding_stage_level": 3, "sharding": "stage1"}, 2, 3),
        (degrees(2, 1, sep_parallel_degree=2) | {"sharding": "stage1"}, 4, 1),
    ):  # fmt: skip
        config = read(start, **flags)
        assert config.strategy.op == op, flags
        assert config.rules.parallel_optimizer == (zero > 0) and config.rules.parameter_shard == (zero == 3)


def test_ulysses_takes_the_tensor_ranks_for_sequences() -> None:
    plain = read(**degrees(1, 4, sep_parallel_degree=2)).strategy
    assert (plain.tp, plain.cp) == (4, 2)
    config = read(**degrees(1, 4, sep_parallel_degree=2), usp_flag=1)
    assert (config.strategy.tp, config.strategy.cp, config.rules.ulysses_degree) == (1, 8, 8)
    assert read(**degrees(1, 4), usp_flag=0).strategy.tp == 4
    for sequence, tp, sp in (("true", 4, True), ("true", 1, False), ("false", 4, False), (1, 2, True)):
        assert read(**degrees(1, tp), sequence_parallel=sequence).strategy.sp == sp


def test_stage_three_with_several_micro_batches_is_said_to_keep_whole_gradients() -> None:
    for level, batches, noted in ((3, 2, True), (3, 1, False), (2, 2, False), (0, 4, False)):
        notes = read(sharding_stage_level=level, gradient_accumulation_steps=batches).notes
        assert any("stay whole under stage 3" in note for note in notes) == noted


def test_layers_are_dealt_evenly_over_stages_or_chunks() -> None:
    for layers, pp, vpp, grid in (
        (8, 2, 1, ((4, 4),)), (9, 2, 1, ((4, 5),)), (7, 3, 1, ((2, 2, 3),)), (2, 2, 1, ((1, 1),)), (8, 1, 3, ((8,),)),
        (8, 2, 2, ((2, 2), (2, 2))), (12, 2, 3, ((2, 2), (2, 2), (2, 2))), (4, 2, 2, ((1, 1), (1, 1))),
    ):  # fmt: skip
        config = read(num_hidden_layers=layers, **degrees(1, 1, pp), virtual_pp_degree=vpp, recompute="true")
        assert config.plan == PipelinePlan({DENSE: grid}, {FULL: grid}), (layers, pp, vpp)
    odd = read(num_hidden_layers=9, **degrees(1, 1, 2), virtual_pp_degree=2)
    assert odd.plan is None and any("9 layers are no multiple of 4 chunks" in note for note in odd.notes)
    with pytest.raises(InputError, match="asks for more stages than the 2 layers"):
        read(num_hidden_layers=2, **degrees(1, 1, 3))


@pytest.mark.parametrize(
    ("mode", "schedule", "noted"),
    [("1F1B", "1f1b", False), ("VPP", "1f1b", False), ("FThenB", "gpipe", False), ("ZBH1", "1f1b", True)],
)
def test_the_mode_chooses_the_schedule(mode: str, schedule: str, noted: bool) -> None:
    config = read(**degrees(1, 1, 2), pipeline_schedule_mode=mode)
    assert config.schedule.name == schedule
    assert any("taken for 1F1B" in note for note in config.notes) == noted


def test_models_lengths_and_granularities_are_noted_where_they_are_taken_for_others() -> None:
    def noted(word: str, **flags: Any) -> bool:
        return any(word in note for note in read(**flags).notes)

    built = "taken for a model built as"
    assert noted(built, model_type="glm") and not noted(built, model_type="Qwen2") and not noted(built, model_type=None)
    assert noted("is what the data give", seq_length=256) and not noted("is what the data give", seq_length=128)
    assert noted("counted as kept", recompute=1, recompute_granularity="full_attn")
    for granularity, mode in (("full", FULL), ("full_attn", SELECT), ("core_attn", SELECT)):
        plan = read(recompute="true", recompute_granularity=granularity).plan
        assert plan is not None and dict(plan.recompute) == {mode: ((8,),)}
    for flag in ("false", "0"):
        plan = read(recompute=flag, recompute_granularity="full").plan
        assert plan is not None and dict(plan.recompute) == {}
    assert read(recompute="").plan == PipelinePlan({DENSE: ((8,),)}, {FULL: ((8,),)})


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"hidden_size": 60}, "must be a multiple of the 8"),
        ({"num_key_value_heads": 3}, "must divide the 8"),
        ({"sharding": "stage0"}, "must be stage1"),
        ({"sharding": "stage4"}, "must be stage1"),
        ({"sharding_stage_level": 4}, "from 0 to 3"),
        ({"sharding_parallel_degree": -2}, "from -1"),
    ],
)
def test_flags_that_contradict_each_other_are_named(flags: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read(**flags)


def flags_of(text: str) -> dict[str, str]:
    words = text.split()
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {word: "" if after.startswith("--") else after for word, after in pairs if word.startswith("--")}


def written(base: PaddleScript, strategy: Strategy, plan: PipelinePlan | None = None, **extra: Any) -> dict[str, str]:
    return flags_of(with_strategy(base, config_from_script(base), strategy, plan, extra))


def test_a_strategy_is_written_flag_by_flag() -> None:
    base = script()
    told = written(base, Strategy(dp=4, tp=2, pp=2, cp=1, op=4, sp=True, mbs=3, micro_batches=5))
    assert {name: told[name] for name in told if "degree" in name} == {
        "--tensor_parallel_degree": "2", "--pipeline_parallel_degree": "2", "--sharding_parallel_degree": "4",
    }  # fmt: skip
    assert (told["--per_device_train_batch_size"], told["--gradient_accumulation_steps"]) == ("3", "5")
    assert (told["--sequence_parallel"], told["--recompute"]) == ("true", "false")
    assert not {"--granularity_type", "--usp_flag", "--pipeline_schedule_mode"} & set(told)
    whole = Strategy(dp=2, tp=2, pp=2, op=1, sp=False)
    assert written(base, whole)["--sequence_parallel"] == "false"
    assert "--sep_parallel_degree" not in written(base, whole)
    assert written(base, whole.replace(cp=2))["--sep_parallel_degree"] == "2"
    assert written(script(sep_parallel_degree=2), whole)["--sep_parallel_degree"] == "1"
    assert "--virtual_pp_degree" not in written(base, whole)
    two = written(base, whole.replace(vpp=2))
    assert (two["--virtual_pp_degree"], two["--pipeline_schedule_mode"]) == ("2", "VPP")
    one = written(script(virtual_pp_degree=2, **degrees(1, 1, 2)), whole)
    assert (one["--virtual_pp_degree"], one["--pipeline_schedule_mode"]) == ("1", "1F1B")
    fine = written(script(granularity_type="coarse_grained"), whole)
    assert (fine["--granularity_type"], fine["--usp_flag"]) == ("coarse_grained", "0")
    assert written(base, whole, logging_steps=3)["--logging_steps"] == "3"
    with pytest.raises(InputError, match="no experts to spread"):
        written(base, whole.replace(ep=2))


def test_the_sharding_group_is_what_is_split_where_the_ranks_are_known() -> None:
    known = script("--nnodes 1 --gpus 0,1,2,3,4,5,6,7")
    for op, cp, group in ((8, 1, 8), (2, 1, 2), (1, 1, 1), (4, 2, 2), (1, 2, 1)):
        told = written(known, Strategy(dp=8 // cp, tp=1, pp=1, cp=cp, op=op))
        assert told["--sharding_parallel_degree"] == str(group)
    assert written(script(), Strategy(dp=8, tp=1, pp=1, op=2))["--sharding_parallel_degree"] == "8"


def test_other_ranks_are_started_by_more_or_fewer_nodes() -> None:
    known = script("--nnodes 2 --gpus 0,1,2,3")
    for world, nodes in ((8, "2"), (4, "1"), (16, "4")):
        assert written(known, Strategy(dp=world, tp=1, pp=1))["--nnodes"] == nodes
    with pytest.raises(InputError, match="starts 8 ranks; 6 are needed.*4 cards a node"):
        written(known, Strategy(dp=6, tp=1, pp=1))
    with pytest.raises(InputError, match="starts 4 ranks; 8 are needed"):
        written(script("--gpus 0,1,2,3"), Strategy(dp=8, tp=1, pp=1))


def test_a_script_says_even_plans_that_recompute_all_or_nothing() -> None:
    base = script(**degrees(1, 1, 2), recompute="true")

    def told(plan: PipelinePlan) -> tuple[str, str | None]:
        _, text = with_plan(base, config_from_script(base), plan, None)
        flags = flags_of(text)
        return flags["--recompute"], flags.get("--recompute_granularity")

    even = ((4, 4),)
    assert told(PipelinePlan({DENSE: even}, {})) == ("false", None)
    assert told(PipelinePlan({DENSE: even}, {FULL: even})) == ("true", "full")
    assert told(PipelinePlan({DENSE: even}, {SELECT: even, FULL: ((0, 0),)})) == ("true", "core_attn")
    assert told(PipelinePlan({DENSE: ((4, 5),)}, {}))[0] == "false"
    assert told(PipelinePlan({DENSE: ((2, 2), (2, 2))}, {}))[0] == "false"
    for grid, modes in (
        (((5, 4),), {}), (((2, 2), (2, 3)), {}), (even, {FULL: ((4, 3),)}),
        (even, {FULL: ((1, 1),), SELECT: ((3, 3),)}),
    ):  # fmt: skip
        with pytest.raises(InputError, match="fine_grained_config.json can express it"):
            told(PipelinePlan({DENSE: grid}, modes))
    _, text = with_plan(base, config_from_script(base), PipelinePlan({DENSE: even}, {}), 7)
    assert flags_of(text)["--gradient_accumulation_steps"] == "7"
    with pytest.raises(InputError, match="pipeline_parallel_degree"):
        with_plan(base, config_from_script(base), PipelinePlan({DENSE: ((8,),)}, {}), None)


@pytest.fixture
def fine(tmp_path: Path) -> PaddleScript:
    """A script with a strategy file of six layers on two stages of four ranks beside it."""
    (tmp_path / "hetu.json").write_text(json.dumps(cases.STRATEGY))
    write_strategy(read_strategy(tmp_path / "hetu.json").plan, "paddle", tmp_path / "fine_grained_config.json")
    named = {"granularity_type": "fine_grained", "fine_grained_config_path": "fine_grained_config.json"}
    return script("--nnodes 1 --gpus 0,1,2,3,4,5,6,7", tmp_path / "train.sh", num_hidden_layers=6, **named)


def test_the_first_layer_of_a_strategy_file_speaks_for_all(fine: PaddleScript, tmp_path: Path) -> None:
    config = config_from_script(fine)
    first = read_strategy(tmp_path / "fine_grained_config.json").plan.layers[0]
    strategy = config.strategy
    assert (strategy.dp, strategy.tp, strategy.cp, strategy.pp) == (first.dp, first.tp, first.sp, 2) == (2, 2, 1, 2)
    assert (strategy.mbs, strategy.micro_batches, strategy.op) == (32 // 4 // 2, 4, first.replicas)
    assert config.plan == PipelinePlan({DENSE: ((2, 4),)}, {FULL: ((2, 0),)})
    assert any("sharding stages [2, 3]; figures take stage 2" in note for note in config.notes)
    assert not any("the script starts" in note for note in config.notes)
    path = tmp_path / "fine_grained_config.json"
    data = json.loads(path.read_text())
    same = data | {"sharding_stage_list": "3,3,3,3,3,3", "recompute_list": "0,1,0,1,0,0", "tp_size_list": "2,2,2,2,2,2",
                   "dp_size_list": "2,2,2,2,2,2", "usp_flag_list": "0,0,0,0,0,0"}  # fmt: skip
    path.write_text(json.dumps(same))
    alike = config_from_script(fine)
    assert alike.rules.parameter_shard and not any("figures take" in note for note in alike.notes)
    assert [note[:7] for note in alike.notes if "not its first" in note] == ["stage 0", "stage 1"]
    assert alike.plan == PipelinePlan({DENSE: ((2, 4),)}, {FULL: ((1, 1),)})
    path.write_text(json.dumps(same | {"sharding_stage_list": "0,0,0,0,0,0", "recompute_list": "0,0,0,0,0,0"}))
    whole = config_from_script(fine)
    assert whole.strategy.op == 1 and not whole.rules.parallel_optimizer
    assert whole.plan == PipelinePlan({DENSE: ((2, 4),)}, {})


def test_a_plan_goes_into_the_strategy_file_stage_by_stage(fine: PaddleScript, tmp_path: Path) -> None:
    path = tmp_path / "fine_grained_config.json"
    before = json.loads(path.read_text())
    config = config_from_script(fine)

    def told(plan: PipelinePlan, micro_batches: int | None = None) -> dict[str, Any]:
        old, new = with_plan(fine, config, plan, micro_batches)
        assert json.loads(old) == before
        return json.loads(new)

    own = config.plan
    assert own is not None
    old, new = with_plan(fine, config, own, None)
    assert old == new == path.read_text()
    for sizes, full in (((3, 3), (1, 2)), ((1, 5), (1, 0)), ((4, 2), (0, 2))):
        plan = PipelinePlan({DENSE: (sizes,)}, {FULL: (full,)} if any(full) else {})
        wanted = {
            "pp_stage_idx_list": ",".join(["0"] * sizes[0] + ["1"] * sizes[1]),
            "recompute_list": ",".join(
                str(int(at < count)) for size, count in zip(sizes, full, strict=True) for at in range(size)
            ),
        }
        assert told(plan) == before | wanted
        more = {"global_batch_size": 32 // 4 * 6, "gradient_accumulation_steps": 6}
        assert told(plan, 6) == before | wanted | more
    none = told(PipelinePlan({DENSE: ((2, 4),)}, {}))
    assert none["recompute_list"] == "0,0,0,0,0,0"
    for plan, word in (
        (PipelinePlan({DENSE: ((1, 2), (1, 2))}, {}), "virtual stages"),
        (PipelinePlan({DENSE: ((2, 4),)}, {SELECT: ((2, 4),)}), "recomputes selectively"),
    ):
        with pytest.raises(InputError, match=word):
            told(plan)


def test_a_script_for_a_layerwise_plan_follows_its_first_layer(fine: PaddleScript, tmp_path: Path) -> None:
    plan = read_strategy(tmp_path / "fine_grained_config.json").plan
    told = flags_of(for_layerwise(fine, plan, "plan.json", (3, 5)))
    wanted = {
        "pipeline_parallel_degree": 2, "sharding_parallel_degree": 2, "tensor_parallel_degree": 2, "recompute": "true",
        "gradient_accumulation_steps": 4, "per_device_train_batch_size": 4, "granularity_type": "fine_grained",
        "fine_grained_config_path": "plan.json", "usp_flag": 0, "sharding_stage_level": 3,
        "job_schedule_profiler_start": 3, "job_schedule_profiler_end": 5, "nnodes": 1,
    }  # fmt: skip
    assert {name: told[f"--{name}"] for name in wanted} == {name: str(value) for name, value in wanted.items()}
    assert "--job_schedule_profiler_start" not in flags_of(for_layerwise(fine, plan, "plan.json"))
    text = strategy_text(plan, "paddle")
    swapped = json.loads(text) | {"usp_flag_list": "1,0,0,0,0,0", "recompute_list": "0,0,0,0,0,0"}
    (tmp_path / "other.json").write_text(json.dumps(swapped))
    other = read_strategy(tmp_path / "other.json").plan
    told = flags_of(for_layerwise(fine, other, "plan.json"))
    assert (told["--usp_flag"], told["--recompute"], told["--tensor_parallel_degree"]) == ("1", "false", "2")
    more = script("--nnodes 2 --gpus 0,1,2,3,4,5,6,7", num_hidden_layers=6)
    assert flags_of(for_layerwise(more, plan, "plan.json"))["--nnodes"] == "1"
    with pytest.raises(InputError, match="differs from the strategy's 6 layers"):
        for_layerwise(script(), plan, "plan.json")


def test_files_of_the_tuner_are_told_by_what_they_hold(tmp_path: Path) -> None:
    def put(name: str, text: Any) -> Path:
        (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
        return tmp_path / name

    assert read_tuner_file(put("job.json", JOB)) == read_tuner_job(tmp_path / "job.json")
    assert read_tuner_file(put("params.json", ARGUMENTS)) == read_arguments(tmp_path / "params.json")
    runs = read_tuner_file(put("history.CSV", HISTORY))
    assert isinstance(runs, tuple) and len(runs) == 2
    assert read_tuner_file(put("other.json", {"a": 1})) is None

    def arguments(**changes: Any) -> TrainerArguments:
        given = {key: value for key, value in (ARGUMENTS | changes).items() if value is not None}
        return read_arguments(put("params.json", given))

    least = arguments(**dict.fromkeys(("tensor_parallel_degree", "sharding_parallel_degree", "sharding", "recompute",
                                       "gradient_accumulation_steps", "max_seq_length")))  # fmt: skip
    assert least.strategy == Strategy(dp=1, tp=1, pp=1, op=1, sp=False, mbs=2, micro_batches=1)
    assert (least.sharding_stage, least.recompute, least.tokens) == (0, None, None)
    for degree in (-1, 0, 1, 3):
        strategy = arguments(sharding_parallel_degree=degree).strategy
        assert (strategy.dp, strategy.op) == (max(1, degree), max(1, degree))
    assert arguments(sharding=None).strategy.op == 1 and arguments(sequence_parallel=1).strategy.sp
    with pytest.raises(InputError, match="from -1"):
        arguments(sharding_parallel_degree=-2)
    for place, fine in (
        (["a.json", "b"], True), (["a.json", "b", "c"], True), (["a.json"], False), ([1, "b"], False),
        ("a.json", False),
    ):  # fmt: skip
        job = put("job.json", JOB | {"run_cmd": {"micro_batch_size": place}})
        if fine:
            assert read_tuner_job(job).arguments == "a.json"
        else:
            with pytest.raises(InputError, match="must name a file and an entry"):
                read_tuner_job(job)
    assert read_tuner_job(put("job.json", JOB | {"run_cmd": {}})).arguments is None
