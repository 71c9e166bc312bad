"""Launch scripts of PaddleNLP are read and written as bash and the trainer take them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.galvatron.strategy_file import read_strategy, write_strategy
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.workflows.layerwise.layerwise_script import write_layerwise_script
from tests import galvatron_cases as cases
from tests.conftest import SHARED

SCRIPTS = SHARED / "data/paddle_galvatron/scripts"
needs_data = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the shared data are not here")

SCRIPT = """\
set -x
export nnodes=$((2-1))
TRAINER="./train_qwen.py"
LAUNCHER="python -u -m paddle.distributed.launch --nnodes $nnodes --gpus 0,1,2,3,4,5,6,7"
LAUNCHER="${LAUNCHER} --log_dir output/job""_log ${TRAINER} --output_dir "./output""

# [seq_length] [num_hidden_layers]
MODEL_ARGS=(
    --model_type "llama"
    --num_hidden_layers 6
    --intermediate_size 2816
    --vocab_size 32000
    --hidden_size 1024
    --seq_length 2048
    --num_attention_heads 16
    --num_key_value_heads 4
)
CONFIG_ARGS="
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 8 \\
    --recompute true \\
    --recompute_granularity full \\
    --bf16 true \\
    --fp16_opt_level "O2" \\
    --amp_custom_black_list "reduce_sum" "c_softmax_with_cross_entropy" \\
"
PARALLEL_ARGS=(
    --sharding_parallel_degree 2
    --sharding "stage2"
    --tensor_parallel_degree 2
    --sequence_parallel true
    --pipeline_parallel_degree 2
    --virtual_pp_degree 1
    --pipeline_schedule_mode "1F1B"
    --sep_parallel_degree 1
    --data_parallel_config "enable_allreduce_avg_in_gradinent_scale gradient_sync_after_accumulate"
)
DATA_ARGS="
    --input_dir ./data \\
    --max_seq_length 2048"

$LAUNCHER \\
    "${MODEL_ARGS[@]}" \\
    $CONFIG_ARGS \\
    "${PARALLEL_ARGS[@]}" \\
    $DATA_ARGS \\
    --use_flash_attention true
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def strategy(tmp_path):
    """Paddle's strategy file of the toy plan: 6 layers on 2 stages of 4 ranks."""
    hetu = tmp_path / "galvatron_config.json"
    hetu.write_text(json.dumps(cases.STRATEGY))
    path = tmp_path / "fine_grained_config.json"
    write_strategy(read_strategy(hetu).plan, "paddle", path)
    return path


def expanded(path: Path, folder: Path) -> dict[str, list[str]]:
    """The words behind each flag, as bash hands them to the program; a stand-in for python prints them."""
    stand_in = folder / "bin"
    stand_in.mkdir(exist_ok=True)
    program = '#!/bin/bash\nfor word in "$@"; do printf "%s\\n" "word:$word"; done\n'
    for name in ("python", "bash.sh", "sleep"):
        (stand_in / name).write_text(program)
        (stand_in / name).chmod(0o755)
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    done = subprocess.run(
        ["bash", str(path)], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PATH": f"{stand_in}:{os.environ['PATH']}", "rank": "0"},
    )  # fmt: skip
    words = [line[5:] for line in done.stdout.splitlines() if line.startswith("word:")]
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flags[word] = []
        elif flags:
            flags[list(flags)[-1]].append(word)
    return flags


def test_a_script_is_read_flag_by_flag(script):
    config = read_config(script)
    assert launcher_of(config).name == "paddlenlp"
    model, strategy = config.model, config.strategy
    assert (model.n_layers, model.hidden, model.n_kv_heads, model.ffn_hidden) == (6, 1024, 4, 2816)
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.op, strategy.sp) == (2, 2, 2, 2, True)
    assert (strategy.mbs, strategy.micro_batches, strategy.global_batch) == (2, 8, 32)
    assert config.plan == PipelinePlan({"dense": ((3, 3),)}, {FULL: ((3, 3),)})
    assert config.rules.parallel_optimizer and not config.rules.parameter_shard and config.rules.flash_attention
    assert [each.name for each in config.unmodelled] == ["--data_parallel_config"]


def test_a_strategy_file_speaks_before_the_flags(script, strategy):
    write_layerwise_script(strategy, script, script)
    config = read_config(script)
    assert config.plan == PipelinePlan({"dense": ((2, 4),)}, {FULL: ((2, 0),)})
    assert (config.strategy.dp, config.strategy.tp, config.strategy.pp, config.strategy.micro_batches) == (2, 2, 2, 4)
    assert any("spread in 3 ways" in note for note in config.notes)


def test_a_layerwise_script_expands_to_the_flags_of_its_strategy(script, strategy, tmp_path):
    target = tmp_path / "scripts" / "train_fine.sh"
    before = expanded(script, tmp_path)
    write_layerwise_script(strategy, script, target, (10, 12))
    after = expanded(target, tmp_path)
    wanted = {
        "--pipeline_parallel_degree": ["2"],
        "--sharding_parallel_degree": ["2"],
        "--tensor_parallel_degree": ["2"],
        "--recompute": ["true"],
        "--gradient_accumulation_steps": ["4"],
        "--per_device_train_batch_size": ["4"],
        "--granularity_type": ["fine_grained"],
        "--fine_grained_config_path": ["../fine_grained_config.json"],
        "--usp_flag": ["0"],
        "--sharding_stage_level": ["3"],
        "--job_schedule_profiler_start": ["10"],
        "--job_schedule_profiler_end": ["12"],
    }
    assert after == before | wanted
    assert read_config(target).plan == PipelinePlan({"dense": ((2, 4),)}, {FULL: ((2, 0),)})


def test_a_plan_goes_into_the_strategy_file_that_the_script_names(script, strategy):
    write_layerwise_script(strategy, script, script)
    text = script.read_text()
    plan = PipelinePlan({"dense": ((4, 2),)}, {FULL: ((1, 2),)})
    assert write_plan(read_config(script), plan, micro_batches=8) == strategy
    assert script.read_text() == text
    assert read_config(script).plan == plan
    told = read_strategy(strategy).plan
    assert (told.division, told.micro_batches, told.global_batch) == ((4, 2), 8, 64)
    assert [layer.recompute for layer in told.layers] == [True, False, False, False, True, True]


def test_a_plan_for_all_layers_alike_goes_into_the_script(script, tmp_path):
    plan = PipelinePlan({"dense": ((3, 3),)}, {})
    write_plan(read_config(script), plan, micro_batches=16)
    assert read_config(script).plan == plan
    flags = expanded(script, tmp_path)
    assert flags["--recompute"] == ["false"] and flags["--gradient_accumulation_steps"] == ["16"]


@pytest.mark.parametrize(
    "plan",
    [PipelinePlan({"dense": ((4, 2),)}, {}), PipelinePlan({"dense": ((3, 3),)}, {FULL: ((1, 0),)})],
)
def test_a_plan_that_a_script_cannot_say_names_the_file_that_can(script, plan):
    text = script.read_text()
    with pytest.raises(InputError, match="fine_grained_config.json can express it"):
        write_plan(read_config(script), plan)
    assert script.read_text() == text


def test_another_strategy_is_written_and_read_back(script, tmp_path):
    config = read_config(script)
    for strategy in (
        config.strategy.replace(dp=4, tp=1, op=4, sp=False, mbs=1),
        config.strategy.replace(dp=1, tp=4, op=1, micro_batches=4),
        config.strategy.replace(dp=8, tp=1, pp=1, op=8, sp=False),
        config.strategy.replace(dp=1, cp=2, op=2),
        config.strategy.replace(dp=4, op=4),
    ):
        path = emit_variant(config, strategy, tmp_path / f"{strategy.name}.sh", plan=None)
        found = read_config(path)
        assert found.strategy == strategy
        assert expanded(path, tmp_path)["--tensor_parallel_degree"] == [str(strategy.tp)]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("--num_hidden_layers 6", "--num_hidden_layers six", "--num_hidden_layers: must be a whole number"),
        ("--hidden_size 1024", "--hidden_size 1000", "must be a multiple of the 16 attention heads"),
        ("--recompute true", "--recompute perhaps", "--recompute: must be true or false"),
        ("--recompute_granularity full", "--recompute_granularity half", "must be one of full"),
        ('--sharding "stage2"', '--sharding "stage9"', "--sharding: must be stage1"),
        ("--vocab_size 32000", "", "--vocab_size: is missing"),
    ],
)
def test_a_wrong_flag_is_named_as_it_is_written(script, old, new, told):
    script.write_text(SCRIPT.replace(old, new))
    with pytest.raises(InputError) as raised:
        read_config(script)
    assert told in str(raised.value) and "train.sh" in str(raised.value)


def test_a_strategy_file_that_is_missing_or_of_another_model_is_named(script, strategy):
    write_layerwise_script(strategy, script, script)
    script.write_text(script.read_text().replace("--num_hidden_layers 6", "--num_hidden_layers 7"))
    with pytest.raises(InputError, match="differs from the 6 layers"):
        read_config(script)
    strategy.unlink()
    with pytest.raises(InputError, match="--fine_grained_config_path: names no file that is there"):
        read_config(script)


@needs_data
@pytest.mark.parametrize("name", ["train_qwen.sh", "train_qwen_fine_graine.sh"])
def test_published_scripts_are_read_and_written(name, tmp_path):
    config = read_config(SCRIPTS / name)
    assert config.plan is not None and not [each for each in config.unmodelled if not each.known]
    if name == "train_qwen_fine_graine.sh":
        assert config.strategy.world_size == 64 and config.model.n_layers == 72
        strategy = SCRIPTS.parent / "configs/fine_grained_config.json"
        path = write_layerwise_script(strategy, SCRIPTS / name, tmp_path / "train.sh")
        done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        source = subprocess.run(["bash", "-n", str(SCRIPTS / name)], capture_output=True, text=True)
        assert done.returncode == source.returncode
        assert read_config(path).plan == config.plan


@needs_data
def test_scripts_of_the_search_and_the_profilers_are_told_by_name():
    for name in ("search_dist.sh", "profile_hardware.sh", "profile_p2p.sh", "profile_overlap.sh"):
        with pytest.raises(InputError, match="a search or a profiler of Galvatron"):
            read_config(SCRIPTS / name)


def test_files_are_named_from_where_the_script_is_started(script, strategy, tmp_path, monkeypatch):
    """Scripts have a folder of their own, and the program that they start lies above it."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    inner = folder / "train.sh"
    inner.write_text(script.read_text())
    target = folder / "train_fine.sh"
    monkeypatch.chdir(folder)
    write_layerwise_script(strategy, inner, target)
    assert "../fine_grained_config.json" in target.read_text()
    program = next(word for word in SCRIPT.replace('"', " ").split() if word.endswith(".py"))
    (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / program).write_text("")
    write_layerwise_script(strategy, inner, target)
    assert " fine_grained_config.json" in target.read_text() and "../" not in target.read_text()
    assert read_config(target).plan == PipelinePlan({"dense": ((2, 4),)}, {FULL: ((2, 0),)})
