"""Scripts that start torchtitan of 2026 on a registered Python configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest

from benchmarks.titan_registry import table
from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan

Writer = Callable[[str], Path]
PIPELINE = (
    "#!/bin/bash\n"
    "NGPU=16 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh \\\n"
    "  --parallelism.tensor_parallel_degree=2 --parallelism.pipeline_parallel_degree 4 \\\n"
    "  --parallelism.num_pp_microbatches 8 --training.disable_cuda_graphs\n"
)


@pytest.fixture
def script(tmp_path: Path) -> Writer:
    def write(text: str) -> Path:
        path = tmp_path / "job.sh"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_registered_configuration_is_read_by_its_name(script: Writer) -> None:
    """torchtitan/models/llama3/config_registry.py:267-302 of b5bcd76c."""
    config = read_config(script("torchrun --nproc_per_node=8 --nnodes 4 -m torchtitan.train --module llama3 "
                                "--config llama3_70b\n"))  # fmt: skip
    strategy = config.strategy
    assert (config.launcher, config.model.name) == ("torchtitan-script", "llama3-70b")
    assert (strategy.world_size, strategy.tp, strategy.dp, strategy.mbs) == (32, 8, 4, 8)
    assert config.rules.seq_length == 8192 and config.rules.loss_chunks == 8 and config.plan is not None
    assert config.plan.recompute[FULL] == ((80,),)


def test_options_go_before_what_the_function_sets(script: Writer) -> None:
    config = read_config(script(PIPELINE))
    strategy = config.strategy
    assert (strategy.pp, strategy.tp, strategy.dp, strategy.op) == (4, 2, 2, 2)
    assert (strategy.mbs, strategy.micro_batches, strategy.global_batch) == (1, 8, 16)
    assert config.open_ranks is None


def test_names_come_from_the_environment_too(script: Writer) -> None:
    path = script("torchrun --nproc_per_node=8 -m torchtitan.train --module ${MODULE} --config ${CONFIG}\n")
    with pytest.raises(InputError, match="known only when the job starts"):
        read_config(path)
    with started(ShellStart(None, {"MODULE": "qwen3", "CONFIG": "qwen3_14b"})):
        assert read_config(path).model.name == "qwen3-14b"


def test_ranks_that_nothing_states_stay_open(script: Writer) -> None:
    config = read_config(script("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh\n"))
    assert config.open_ranks is not None and config.strategy.world_size == 8  # run_train.sh:29


def test_a_switch_is_turned_off_by_its_no_form(script: Writer) -> None:
    text = "NGPU=4 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --parallelism.tensor_parallel_degree 2"
    assert read_config(script(text + "\n")).strategy.sp
    assert not read_config(script(text + " --parallelism.no-enable-sequence-parallel\n")).strategy.sp


def test_recompute_is_chosen_by_a_subcommand(script: Writer) -> None:
    text = "NGPU=8 MODULE=llama3 CONFIG=llama3_8b ./run_train.sh activation-checkpoint:{}\n"
    plans = {name: read_config(script(text.format(name))).plan for name in ("none", "full", "selective")}
    assert [plan is not None and (plan.uses("full"), plan.uses("select")) for plan in plans.values()] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    with pytest.raises(InputError, match="the compiler chooses"):
        read_config(script(text.format("memory-budget")))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("MODULE=flux CONFIG=flux_dev ./run_train.sh", "an image model"),
        ("MODULE=graph_trainer.llama3 CONFIG=graph_trainer_llama3_8b ./run_train.sh", "graph trainer"),
        ("MODULE=rl CONFIG=rl_grpo ./run_train.sh", "roll-outs"),
        ("MODULE=llama3 CONFIG=llama3_8bb ./run_train.sh", "name llama3_8b"),
        ("MODULE=my_company.configs CONFIG=a ./run_train.sh", "registered configurations"),
        ("torchrun -m torchtitan.train --job.config_file a.toml", "its TOML file"),
        ("MODULE=llama3 CONFIG=llama3_debugmodel_float8_emulate_lora ./run_train.sh", "low-rank adapters"),
        ("NGPU=6 MODULE=llama3 CONFIG=llama3_70b ./run_train.sh", "no multiple of 8"),
        ("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.num_tokens_per_microbatch_per_dp_rank 9000",
         "no multiple of the 8192 tokens"),
        ("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh --training.max_context_length abc", "whole number"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_for_its_true_reason(script: Writer, command: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config(script(command + "\n"))


def test_options_without_a_figure_and_unknown_ones_are_named(script: Writer) -> None:
    config = read_config(
        script(PIPELINE.rstrip("\n") + " --compile.enable --compile.backend eager --training.newest 3\n")
    )
    names = {each.name for each in config.unmodelled}
    assert {"compile.backend", "training.newest"} <= names and "compile.enable" not in names


def test_a_plan_is_written_as_options_and_nothing_else_changes(script: Writer) -> None:
    path = script(PIPELINE)
    config = read_config(path)
    plan = PipelinePlan({"dense": ((7, 9, 9, 7),)}, {FULL: ((7, 9, 9, 7),)})
    write_plan(config, plan, micro_batches=16)
    text = path.read_text(encoding="utf-8")
    assert text.startswith(PIPELINE.rstrip("\n").replace("num_pp_microbatches 8", "num_pp_microbatches 16"))
    assert "activation-checkpoint:full" in text and "module_fqns_per_model_part" in text
    again = read_config(path)
    assert again.plan is not None and again.plan.layers == plan.layers
    assert again.plan.recompute[FULL] == plan.recompute[FULL] and again.strategy.micro_batches == 16


def test_a_strategy_is_written_with_its_ranks(script: Writer) -> None:
    path = script(PIPELINE)
    config = read_config(path)
    wanted = config.strategy.replace(dp=4, tp=4, pp=2, op=4, micro_batches=4)
    path.write_text(launcher_of(config).with_strategy(config, wanted, None, {}), encoding="utf-8")
    again = read_config(path)
    assert again.strategy == wanted and "NGPU=32 " in path.read_text(encoding="utf-8")


def test_the_table_is_read_off_functions_that_begin_with_others(tmp_path: Path) -> None:
    folder = tmp_path / "torchtitan" / "models" / "llama3"
    folder.mkdir(parents=True)
    (folder / "config_registry.py").write_text(
        "def _change(config, wide=False):\n"
        "    config.parallelism.tensor_parallel_degree = 4\n"
        "    if wide:\n"
        "        config.activation_checkpoint = None\n"
        "def base():\n"
        "    spec = model_registry('8B', converters=[Float8LinearConverter.Config(filter_fqns=['lm_head'])])\n"
        "    return Trainer.Config(model_spec=spec, training=TrainingConfig(max_context_length=2 * 4096),\n"
        "        loss=ChunkedLossWrapper.Config(), optimizer=default_adamw(lr=1e-4),\n"
        "        activation_checkpoint=FullAC.Config())\n"
        "def derived():\n"
        "    config = base()\n"
        "    _change(config, wide=True)\n"
        "    config.compile = CompileConfig(enable=True)\n"
        "    return config\n"
        "def no_configuration():\n"
        "    return 3\n"
        "def harmful():\n"
        "    raise SystemExit\n",
        encoding="utf-8",
    )
    rows = table(tmp_path, "abc")["modules"]["llama3"]
    assert set(rows) == {"base", "derived"}
    assert rows["base"]["training"] == {"max_context_length": 8192} and rows["base"]["recompute"] == "full"
    assert rows["base"]["converters"] == [{"name": "Float8LinearConverter", "filter_fqns": ["lm_head"]}]
    assert rows["derived"]["parallelism"] == {"tensor_parallel_degree": 4}
    assert rows["derived"]["recompute"] == "none" and rows["derived"]["compile"] == {"enable": True}
