"""Primus' experiments of the Megatron-Bridge backend, against what the recipes themselves made of their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.primus.recipe_job import own_table, recipes
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.register.adapters import JOINED_QKV, OUTPUT

RECORD = yaml.safe_load(Path(__file__).with_name("recipe_record.yaml").read_text(encoding="utf-8"))
BATCH = {"micro_batch_size": 1, "global_batch_size": 32, "seq_length": 4096}


def written(folder: Path, given: dict[str, Any]) -> Path:
    """An experiment with all its options, as `primus-cli --export_config` writes it."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"modules": {"post_trainer": {"framework": "megatron_bridge", **given}}}))
    return path


@pytest.mark.parametrize("row", RECORD, ids=lambda row: "-".join(map(str, list(row["given"].values())[:6])))
def test_a_job_is_what_the_recipes_own_function_makes_of_the_file(row: dict[str, Any], tmp_path: Path) -> None:
    config = read_config(written(tmp_path, row["given"]))
    made = row["made"]
    if made is None:
        assert [misfit.rule for misfit in config.misfits] == ["one-model-name"]
        return
    strategy, rules = config.strategy, config.rules
    assert not config.misfits and config.launcher == "primus-bridge" and config.plan is not None
    assert (strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.sp) == tuple(
        made[name] for name in ("tp", "pp", "cp", "ep", "sp")
    )
    assert (strategy.mbs, strategy.global_batch, rules.seq_length) == (made["mbs"], made["gbs"], made["seq"])
    assert config.plan.uses(FULL) == made["full"] and rules.parallel_optimizer == made["dist"]
    assert (rules.adapters.rank if rules.adapters else None) == made["lora"]


def test_options_that_no_argument_and_no_section_takes_are_reported(tmp_path: Path) -> None:
    given = {"flavor": "qwen3_8b_finetune_config", "recompute_granularity": "full", "peft_dim": 64, **BATCH}
    config = read_config(written(tmp_path, given))
    assert config.rules.adapters is not None and config.rules.adapters.rank == 32
    assert any("recompute_granularity, peft_dim: no argument of the recipe" in note for note in config.notes)
    mixed = read_config(
        written(tmp_path, {"flavor": "qwen3_30b_a3b_finetune_config", "tensor_model_parallel_size": 1, **BATCH})
    )
    assert mixed.strategy.tp == 4 and mixed.rules.adapters is not None
    assert mixed.rules.adapters.targets == (OUTPUT, JOINED_QKV)
    assert any("tensor_model_parallel_size 1: the recipe takes no such argument" in note for note in mixed.notes)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"flavor": "zebra_llama_1b_finetune_config"}, "flavor: is a recipe in Python.*known are qwen3_8b_pretrain"),
        ({"flavor": "qwen3_8b_finetune_cfg"}, "did you mean qwen3_8b_finetune_config"),
        ({"flavor": 3}, "flavor: is a recipe in Python"),
        ({"flavor": "qwen3_8b_finetune_config", "peft": "dora"}, "peft: trains adapters of another kind"),
        ({"flavor": "qwen3_8b_finetune_config", "seq_length": None}, "seq_length: is missing"),
        ({"flavor": "qwen3_8b_finetune_config", "hf_path": "a/Unknown"}, "hf_path: is no registered model"),
        ({"flavor": "qwen3_8b_finetune_config", "micro_batch_size": [2]}, "micro_batch_size"),
        ({"flavor": "qwen3_8b_finetune_config", "tensor_model_parallel_size": "many"}, "tensor_model_parallel_size"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_option(given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=reason):
        read_config(written(tmp_path, {**BATCH, **given}))


def test_no_plan_is_written_into_a_recipe(tmp_path: Path) -> None:
    config = read_config(
        written(tmp_path, {"flavor": "qwen3_8b_pretrain_config", "tensor_model_parallel_size": 1, **BATCH})
    )
    assert config.plan is not None and launcher_of(config).name == "primus-bridge"
    with pytest.raises(InputError, match="states its plan by a recipe of Megatron-Bridge"):
        write_plan(config, PipelinePlan(config.plan.layers, {FULL: as_grid([[36]])}))


def test_an_unknown_option_is_named_and_every_row_has_its_source(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, {"flavor": "qwen3_8b_pretrain_config", "micro_batch_sise": 2, **BATCH}))
    assert [found.meant for found in config.unmodelled if found.name == "micro_batch_sise"] == ["micro_batch_size"]
    assert all(
        row.source.startswith(("Primus fd1eeabb", "Megatron-Bridge 9577b128")) for row in own_table().rows.values()
    )
    assert all(".py:" in recipe.source for recipe in recipes().values())
