"""OLMo-core's launches by published script and overrides, and its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable

import pytest

from benchmarks.olmo_scripts import Script, row_of
from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.olmo.read import stage_sizes
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.fields import Fields
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import require_legal

Writer = Callable[[str], Path]
LAUNCH = "torchrun --nproc-per-node=8 --nnodes=4 src/scripts/{} train run01 local{}\n"
SEVEN = "train/OLMo2/OLMo2-7B.py"


@pytest.fixture
def script(tmp_path: Path) -> Writer:
    def write(text: str) -> Path:
        path = tmp_path / "job.sh"
        path.write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
        return path

    return write


def saved(**train_module: Any) -> dict[str, Any]:
    """A config.json of a small model, as a run saves it."""
    return {
        "_CLASS_": "olmo_core.script_utils.ExperimentConfig",
        "model": {
            "_CLASS_": "olmo_core.nn.transformer.config.TransformerConfig",
            "d_model": 1024,
            "vocab_size": 100352,
            "n_layers": 8,
            "block": {
                "name": "reordered_norm",
                "sequence_mixer": {"n_heads": 16, "bias": False, "qk_norm": {"name": "rms"}},
                "feed_forward": {"hidden_size": 4096, "bias": False},
                "layer_norm": {"name": "rms"},
            },
            "lm_head": {"layer_norm": {"name": "rms"}, "bias": False},
        },
        "data_loader": {"global_batch_size": 64 * 4096},
        "train_module": {
            "rank_microbatch_size": 4096,
            "max_sequence_length": 4096,
            "compile_model": True,
            "optim": {"_CLASS_": "olmo_core.optim.adamw.AdamWConfig", "lr": 3e-4},
            "dp_config": {"name": "hsdp", "param_dtype": "bfloat16", "reduce_dtype": "float32"},
            **train_module,
        },
    }


@pytest.fixture
def record(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def write(data: dict[str, Any]) -> Path:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(data), encoding="utf-8")
        return path

    return write


def test_a_published_script_is_read_by_its_name(script: Writer) -> None:
    """src/scripts/train/OLMo2/OLMo2-7B.py of fa6c5014; its own code counts these parameters."""
    config = read_config(script(LAUNCH.format(SEVEN, "")))
    strategy = config.strategy
    assert (config.launcher, config.model.n_layers, total_parameters(config.model)) == ("olmo", 32, 7_298_617_344)
    assert (strategy.dp, strategy.op, strategy.mbs, strategy.micro_batches) == (32, 8, 2, 16)
    assert strategy.global_batch * config.rules.seq_length == 4 * 1024 * 1024
    assert config.rules.compiled and (config.rules.param_bytes, config.rules.compute_bytes) == (4, 2)


def test_windows_and_delta_nets_stand_where_their_patterns_put_them(script: Writer) -> None:
    config = read_config(script(LAUNCH.format("train/OLMo3/OLMo3-7B.py", "")))
    assert config.model.body_counts == {"attn-4096+dense": 24, "attn+dense": 8}
    hybrid = read_config(script(LAUNCH.format("official/OLMo-hybrid/OLMo-hybrid-7B-pretrain.py", "")))
    assert hybrid.model.body_counts["gdn+dense"] == 24


def test_overrides_go_before_what_the_script_sets(script: Writer) -> None:
    overrides = (
        " --train_module.rank_microbatch_size=$((4*4096)) --data_loader.global_batch_size=2097152"
        " --train_module.dp_config.shard_degree=16 --model.n_layers=16 --train_module.tp_config='{degree: 2}'"
    )
    config = read_config(script(LAUNCH.format(SEVEN, overrides)))
    strategy = config.strategy
    assert (strategy.tp, strategy.dp, strategy.op, strategy.mbs) == (2, 16, 16, 4)
    assert config.model.n_layers == 16 and strategy.global_batch == 512


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LAUNCH.format("train/OLMo2/OLMo2-7Bx.py", ""), "name train/OLMo2/OLMo2-7B.py"),
        (LAUNCH.format("train/template.py", ""), "config.json that a run of it saves"),
        (LAUNCH.format(SEVEN, "").replace(" train ", " dry_run "), "trains nothing"),
        (LAUNCH.format(SEVEN, " --train_module.rank_microbatch_size=$SIZE"), "known only when the job starts"),
        (LAUNCH.format(SEVEN, " --train_module.rank_microbatch_size=5000"), "no multiple of the 4096 tokens"),
        (LAUNCH.format(SEVEN, " --train_module.dp_config.shard_degree=5"), "must divide the 32 ranks"),
        (LAUNCH.format(SEVEN, " --data_loader.global_batch_size=4096"), "must be a multiple of"),
        (LAUNCH.format(SEVEN, " --model.d_model.deeper=3"), "is no section"),
        (LAUNCH.format(SEVEN, " --model.n_layers='[1'"), "cannot be read"),
        (LAUNCH.format("train/nGPT-1B.py", ""), "type of model that is not read"),
    ],
)
def test_what_is_not_read_is_refused_for_its_true_reason(script: Writer, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_config(script(text))


def test_the_file_that_a_run_saves_is_read(record: Callable[[dict[str, Any]], Path]) -> None:
    config = read_config(record(saved(ac_config={"mode": "selected_modules", "modules": ["blocks.*.feed_forward"]})))
    assert config.launcher == "olmo-config" and config.open_ranks is not None
    # d_model 1024: 4 projections, 2 norms of queries and keys over all heads, an MLP of 3 matrices, 2 norms.
    layer = 4 * 1024**2 + 2 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    assert total_parameters(config.model) == 8 * layer + 2 * 1024 * 100352 + 1024
    assert config.plan is not None and config.plan.uses("select") and not config.plan.uses(FULL)
    assert not [each for each in config.unmodelled if each.name != "train_module.dp_config.reduce_dtype"]


def test_every_nth_block_counts_from_the_first(record: Callable[[dict[str, Any]], Path]) -> None:
    """nn/transformer/model.py: ``block_idx % block_interval == 0``."""
    config = read_config(record(saved(ac_config={"mode": "selected_blocks", "block_interval": 3})))
    assert config.plan is not None and config.plan.recompute[FULL] == ((3,),)  # Blocks 0, 3 and 6 of eight.


def test_the_split_is_even_and_the_middle_parts_take_the_rest() -> None:
    """train/train_module/transformer/config.py:61-94, worked out by hand."""
    module = Fields({"pp_config": {"degree": 4}}, Path("a"))
    assert stage_sizes(module, 10, 4) == [2, 3, 3, 2]
    stated = Fields({"pp_config": {"degree": 3, "split_points": [0, 2]}}, Path("a"))
    assert stage_sizes(stated, 4, 3) == [0, 2, 2]


def test_plan_and_strategy_are_written_as_overrides(script: Writer) -> None:
    path = script(LAUNCH.format(SEVEN, " --train_module.optim.lr=6e-3"))
    before = path.read_text(encoding="utf-8").rstrip("\n")
    config = read_config(path)
    wanted = config.strategy.replace(dp=8, pp=4, op=8, mbs=1, micro_batches=128)
    path.write_text(launcher_of(config).with_strategy(config, wanted, None, {}), encoding="utf-8")
    again = read_config(path)
    assert again.strategy.replace(vpp=1) == wanted.replace(vpp=1)
    assert path.read_text(encoding="utf-8").startswith(before) and again.plan is not None
    layers = PipelinePlan({"attn+dense": ((7, 9, 9, 7),)}, {FULL: ((7, 9, 9, 7),)})
    write_plan(again, layers)
    last = read_config(path)
    assert last.plan is not None and last.plan.layers == layers.layers and last.plan.recompute[FULL] == ((7, 9, 9, 7),)


def test_a_record_cannot_be_written(record: Callable[[dict[str, Any]], Path]) -> None:
    config = read_config(record(saved()))
    assert config.plan is not None
    with pytest.raises(InputError, match="record of a run"):
        write_plan(config, PipelinePlan(config.plan.layers, {FULL: ((8,),)}))


def test_the_table_says_what_the_text_of_a_script_says(tmp_path: Path) -> None:
    models = tmp_path / "config.py"
    models.write_text(
        "class TransformerConfig:\n"
        "    def tiny(cls, vocab_size: int, **kwargs):\n"
        "        return cls.like(d_model=64, vocab_size=vocab_size, n_layers=kwargs.pop('n_layers', 2), **kwargs)\n"
        "    def like(cls, *, d_model, vocab_size, n_layers, heads=4, **kwargs):\n"
        "        hidden = ensure_multiple_of(int(8 * d_model / 3), 64)\n"
        "        return cls(d_model=d_model, vocab_size=vocab_size, n_layers=n_layers, block={'heads': heads,\n"
        "                   'hidden': hidden}, **kwargs)\n",
        encoding="utf-8",
    )
    job = tmp_path / "job.py"
    job.write_text(
        "LENGTH = 2 * 1024\n"
        "def build_model_config(common):\n"
        "    config = TransformerConfig.tiny(vocab_size=common.tokenizer.padded_vocab_size(), n_layers=3)\n"
        "    config.d_model -= 16\n"
        "    return config\n"
        "def build_train_module_config(common):\n"
        "    size = common.max_sequence_length\n"
        "    if common.launch is not None:\n"
        "        size *= 2\n"
        "    return TransformerTrainModuleConfig(rank_microbatch_size=4 * size, dp_config=DP(name=DataType.hsdp),\n"
        "        ac_config=AC(modules=[f'blocks.{i}.feed_forward' for i in range(2)]))\n"
        "if __name__ == '__main__':\n"
        "    partial(build_config, global_batch_size=8 * LENGTH, max_sequence_length=LENGTH)\n"
        "    raise SystemExit\n",
        encoding="utf-8",
    )
    row = row_of(Script(job, {"TransformerConfig": Script(models)}), "job.py")
    assert row is not None and "reason" not in row
    assert row["model"] == {"d_model": 48, "vocab_size": 100352, "n_layers": 3, "block": {"heads": 4, "hidden": 192}}
    assert row["train_module"]["rank_microbatch_size"] == 8192 and row["global_batch_size"] == 16384
    assert row["train_module"]["dp_config"] == {"name": "hsdp"}
    assert row["train_module"]["ac_config"] == {"modules": ["blocks.0.feed_forward", "blocks.1.feed_forward"]}


def test_a_file_that_breaks_a_start_up_check_is_refused_by_its_name(record: Callable[[dict[str, Any]], Path]) -> None:
    config = read_config(record(saved(ac_config={"mode": "selected_modules", "modules": ["blocks.*.feed_forward"]})))
    assert not config.misfits
    config = read_config(record(saved(ac_config={"mode": "budget"}, compile_model=False)))
    with pytest.raises(InputError, match="breaks the rule budget-needs-compiler"):
        require_legal(config, choose_device(config).spec)
