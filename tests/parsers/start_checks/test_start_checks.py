"""Start-up rules of keys: broken once and refused by name and place, obeyed once and accepted.

What the programs' own checks say of the same settings is recorded in record.yaml, which
`python -m benchmarks.start_checks` writes by running them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.start_checks.cases import JSON, Case, read_cases
from taylor.base.errors import InputError
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.parsers.axolotl import start_rules as axolotl
from taylor.parsers.gptneox import start_rules as gptneox
from taylor.parsers.llamafactory import start_rules as llamafactory
from taylor.parsers.read import read_config
from taylor.parsers.start_rules import KeyRule, of_mapping
from taylor.parsers.trainer import start_rules as trainer
from taylor.parsers.training_config import TrainingConfig
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import require_legal

RECORD = yaml.safe_load(Path(__file__).with_name("record.yaml").read_text(encoding="utf-8"))
CASES = read_cases()
RULES: dict[str, tuple[KeyRule, ...]] = {
    "deepspeed": trainer.DEEPSPEED_CHECKS,
    "trainer": (*trainer.TRAINER_CHECKS, *trainer.MATCHES),
    "llamafactory": llamafactory.START_RULES,
    "axolotl": axolotl.START_RULES,
    "gpt-neox": gptneox.START_RULES,
}
WITHOUT_CASE = {
    "trainer": {"fsdp-without-deepspeed", "one-recompute"},
    "llamafactory": {"lora-without-projected-gradients"},
    "axolotl": {"nemotron-h-recompute-needs-packing"},
    "gpt-neox": {"gradients-whole-in-pipeline"},
}
"""Rules that a program checks once it has a model or ranks, or whose model is not registered."""
READ_AS_CHECKED = {"kv-groups-in-heads", "heads-in-hidden"}
"""Rules without which the reader has no model: it refuses their key itself."""


def written(folder: Path, settings: dict[str, Any]) -> Path:
    """A training file with settings, and DeepSpeed's JSON beside it."""
    data = dict(settings)
    zero = data.pop(JSON, None)
    if zero is not None:
        (folder / "zero.json").write_text(json.dumps(zero))
        data[JSON] = "zero.json"
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def names(config: TrainingConfig) -> list[str]:
    return [misfit.rule for misfit in config.misfits]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.program} {case.rule} {case.how}")
def test_a_rule_says_of_settings_what_the_program_says(case: Case) -> None:
    said = RECORD[case.program][f"{case.rule} {case.how}"]
    keys = of_mapping(case.settings)
    broken = {rule.name: rule for rule in RULES[case.program] if rule.broken(keys)}
    assert (case.rule in broken) == (said != "starts") == (case.how == "broken")
    if said != "starts":
        place = broken[case.rule].source.rpartition("/")[2].partition(":")[0]
        assert place in said
    elif case.how == "obeyed":
        assert not broken


def test_every_rule_has_a_case() -> None:
    for program, rules in RULES.items():
        shared = set() if program in ("deepspeed", "trainer") else {
            rule.name for rule in (*trainer.DEEPSPEED_CHECKS, *trainer.TRAINER_CHECKS, *trainer.MATCHES)
        }  # fmt: skip
        own = {rule.name for rule in rules} - shared | {case.rule for case in CASES if case.program == program} & shared
        assert own - WITHOUT_CASE.get(program, set()) == {case.rule for case in CASES if case.program == program}


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.program in ("llamafactory", "axolotl", "gpt-neox")],
    ids=lambda case: f"{case.program} {case.rule} {case.how}",
)
def test_a_file_that_breaks_a_rule_is_refused_by_its_name_and_one_that_obeys_is_planned(
    case: Case, tmp_path: Path
) -> None:
    file = written(tmp_path, dict(case.settings))
    if case.how == "broken" and case.rule in READ_AS_CHECKED:
        with pytest.raises(InputError):
            read_config(file)
        return
    config = read_config(file)
    device = choose_device(config).spec
    if case.how == "obeyed":
        assert names(config) == []
        if case.rule == "accumulation-or-batch":
            assert config.strategy.micro_batches == 4
        return
    assert case.rule in names(config)
    with pytest.raises(InputError, match=f"breaks the rule {names(config)[0]}") as refused:
        require_legal(config, device)
    assert "source: " in str(refused.value)
    allowed = require_legal(config, device, tuple(names(config)))
    assert any(case.rule in note for note in allowed.notes)


def test_waiving_one_broken_rule_leaves_the_other(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.rule == "pure-bf16-without-zero-3" and case.how == "broken")
    config = read_config(written(tmp_path, {**case.settings, "use_rslora": True}))
    assert names(config) == ["pure-bf16-without-zero-3", "use-rslora-needs-lora"]
    with pytest.raises(InputError, match="use-rslora-needs-lora"):
        require_legal(config, choose_device(config).spec, ("pure-bf16-without-zero-3",))


def test_a_search_refuses_what_no_strategy_mends_and_goes_on_past_what_one_does(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.rule == "pure-bf16-without-zero-3" and case.how == "broken")
    config = read_config(written(tmp_path, dict(case.settings)))
    device = choose_device(config).spec
    with pytest.raises(InputError, match="pure-bf16-without-zero-3"):
        search(config, device, SearchOptions())


def test_the_batch_of_deepspeed_s_json_states_the_ranks(tmp_path: Path) -> None:
    base = next(case.settings for case in CASES if case.program == "llamafactory" and case.how == "obeyed")
    zero = {"train_batch_size": 64, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    settings = {**base, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, JSON: zero}
    config = read_config(written(tmp_path, settings))
    assert (config.strategy.world_size, config.strategy.global_batch, names(config)) == (16, 64, [])
    config = read_config(written(tmp_path, {**settings, JSON: {**zero, "train_batch_size": 65}}))
    assert names(config) == ["deepspeed-batch-as-stated"]
