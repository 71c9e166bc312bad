"""A config.json as a training file: what its own section says, written and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.read import read_config
from taylor.parsers.registry import is_training_file, launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 8,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
SECTION = {
    "parallel": {"dp": 2, "tp": 2, "pp": 4},
    "batch": {"global": 32, "micro": 1, "sequence": 1024},
    "plan": {"layers": [[3, 2, 2, 1]], "recompute": {"full": [[1, 0, 0, 0]]}},
}


def written(folder: Path, section: Any = None, **changes: Any) -> Path:
    path = folder / "config.json"
    data = {**LLAMA, **changes} | ({} if section is None else {"taylor": section})
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_a_bare_model_is_one_rank_and_says_what_it_assumes(tmp_path: Path) -> None:
    config = read_config(written(tmp_path))
    assert config.strategy == Strategy(1, 1, 1, sp=False)
    assert config.rules.seq_length == 2048  # no more than the model knows
    assert config.plan is None
    assert any("one rank" in note for note in config.notes)
    assert any("2048 tokens are assumed" in note for note in config.notes)


def test_its_section_says_degrees_batch_and_plan(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, SECTION))
    assert config.strategy == Strategy(2, 2, 4, op=2, sp=True, micro_batches=16)
    assert config.rules.seq_length == 1024
    assert config.plan is not None
    assert config.plan.total_layers() == ((3, 2, 2, 1),)
    assert config.plan.recomputed(FULL) == ((1, 0, 0, 0),)
    assert not any("assumed" in note for note in config.notes)


def test_a_plan_is_written_and_read_back_and_the_model_stays(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, SECTION))
    kind = config.model.body_kind
    plan = PipelinePlan({kind: as_grid([[2, 2, 2, 2]])}, {FULL: as_grid([[2, 1, 0, 0]])})
    target = write_plan(config, plan, output=tmp_path / "planned.json")
    again = read_config(target)
    assert again.plan == plan
    assert (again.strategy, again.rules, again.model.replace(name=config.model.name)) == (
        config.strategy, config.rules, config.model,
    )  # fmt: skip
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (config.path, target))
    assert {name for name in after if after[name] != before.get(name)} == {"taylor"}


def test_another_strategy_is_written_without_a_plan(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, SECTION))
    strategy = Strategy(1, 1, 2, sp=False, vpp=2, micro_batches=32)
    path = tmp_path / "other.json"
    path.write_text(launcher_of(config).with_strategy(config, strategy, None, {}), encoding="utf-8")
    again = read_config(path)
    assert again.strategy == strategy
    assert again.schedule.name == "megatron-interleaved"
    assert again.plan is None


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"parallel": {"tensor": 2}}, "taylor.parallel.tensor"),
        ({"paralel": {}}, "taylor.paralel"),
        ({"parallel": {"dp": 0}}, "taylor.parallel.dp"),
        ({"parallel": {"dp": 4}, "batch": {"global": 6}}, "taylor.batch.global"),
        ({"framework": "unheard-of"}, "taylor.framework"),
        ({"schedule": "unheard-of"}, "taylor.schedule"),
        ({"plan": {"layers": [[8, 1]]}}, "taylor.plan.layers"),
        ({"plan": {"layers": [[9]]}}, "taylor.plan"),
        ({"plan": {"layers": [[True]]}}, "taylor.plan.layers"),
        ([], "taylor"),
    ],
)
def test_a_wrong_section_is_refused_by_field(tmp_path: Path, section: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        read_config(written(tmp_path, section))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"model_type": "llama", "a": ' + "[" * 60 + "]" * 60 + "}", '{"hidden_size": ' + "9" * 5000 + "}"],
)
def test_hostile_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        read_config(path)


def test_other_json_is_no_training_file(tmp_path: Path) -> None:
    assert is_training_file(written(tmp_path))
    other = tmp_path / "emitted.json"
    other.write_text('["config.json"]', encoding="utf-8")
    assert not is_training_file(other)


def test_nothing_starts_it(tmp_path: Path) -> None:
    config = read_config(written(tmp_path))
    launcher = launcher_of(config)
    assert not launcher.starts_training
