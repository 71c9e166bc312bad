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
from taylor.nd_search.rules import built_in_rules
from taylor.nd_search.search import search
from taylor.parsers.axolotl import start_rules as axolotl
from taylor.parsers.gptneox import start_rules as gptneox
from taylor.parsers.llamafactory import start_rules as llamafactory
from taylor.parsers.nemo_rl import start_rules as nemo_rl
from taylor.parsers.olmo import start_rules as olmo
from taylor.parsers.read import read_config
from taylor.parsers.start_rules import KeyRule, Keys, of_mapping
from taylor.parsers.trainer import start_rules as trainer
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.verl import start_rules as verl
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
    "verl": verl.START_RULES,
    "nemo-rl": nemo_rl.START_RULES,
    "olmo": olmo.START_RULES,
}
WITHOUT_CASE = {
    "trainer": {"fsdp-without-deepspeed", "one-recompute"},
    "axolotl": {"nemotron-h-recompute-needs-packing"},
    "gpt-neox": {"gradients-whole-in-one-stage"},
}
"""Rules that a program checks once it has a model or ranks, or whose model is not registered."""

SAID = {
    rule.name: (f"ds {rule.field.removeprefix(trainer.BELOW)}=", *rule.problem.rpartition(" ")[2:])
    for rule in trainer.MATCHES
}
"""Words of a program's message that tell one of its refusals from others at the same place."""


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


def keys_of(case: Case) -> Keys:
    """Keys of a case's settings, and the ranks that train a policy of NeMo RL."""
    keys = of_mapping(case.settings)
    ranks = case.settings["cluster"] if case.program == "nemo-rl" else None
    return keys if ranks is None else nemo_rl.with_ranks(keys, ranks["gpus_per_node"] * ranks["num_nodes"])


def names(config: TrainingConfig) -> list[str]:
    return [misfit.rule for misfit in config.misfits]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.program} {case.rule} {case.how}")
def test_a_rule_says_of_settings_what_the_program_says(case: Case) -> None:
    said = RECORD[case.program][f"{case.rule} {case.how}"]
    keys = keys_of(case)
    broken = {rule.name: rule for rule in RULES[case.program] if rule.broken(keys)}
    assert (case.rule in broken) == (said != "starts") == (case.how == "broken")
    if said != "starts":
        source = broken[case.rule].source
        file, _, lines = source[source.index("/") :].rpartition(":")
        first, _, last = lines.partition("-")
        assert any(f"{file}:{line} " in f"/{said}" for line in range(int(first), int(last or first) + 1))
        assert all(word in said for word in SAID.get(case.rule, ()))
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
    config = read_config(file)
    device = choose_device(config).spec
    if case.how == "obeyed":
        assert names(config) == []
        if case.rule == "accumulation-or-batch":
            assert config.strategy.micro_batches == 1  # By the default, which comes before batch_size.
        return
    assert case.rule in names(config)
    with pytest.raises(InputError, match=f"breaks the rule {names(config)[0]}") as refused:
        require_legal(config, device)
    assert "source: " in str(refused.value)
    allowed = require_legal(config, device, tuple(names(config)))
    assert any(case.rule in note for note in allowed.notes)


MBS = "per_device_train_batch_size"
MINE = {
    "llamafactory": {
        "model_name_or_path": "Qwen/Qwen3-8B", "stage": "sft", "do_train": True, "finetuning_type": "full",
        "dataset": "identity", "cutoff_len": 2048,
    },
    "axolotl": {
        "base_model": "Qwen/Qwen3-8B", "datasets": [{"path": "a/b", "type": "alpaca"}], "sequence_len": 2048,
        "optimizer": "adamw_torch_fused", "gradient_checkpointing": True, "bf16": True, "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
    },
    "script": {"model_name_or_path": "Qwen/Qwen3-8B", "block_size": 2048, "output_dir": "out"},
    "newer": {"model": "Qwen/Qwen3-8B", "train_dataset": "data.yaml", "cutoff_len": 2048},
    "gpt-neox": next(case.settings for case in CASES if case.program == "gpt-neox" and case.how == "obeyed"),
}  # fmt: skip
"""What a file of each launcher needs beside the settings of the Trainer's and DeepSpeed's cases."""


def shared_file(folder: Path, launcher: str, case: Case) -> Path:
    """A file with a case's settings, in a launcher's own form; DeepSpeed's JSON lies beside it."""
    if launcher in ("llamafactory", "axolotl"):
        mbs = "micro_batch_size" if launcher == "axolotl" else MBS
        own = {(mbs if key == MBS else key): value for key, value in case.settings.items()}
        return written(folder, {**MINE[launcher], **own})
    settings = dict(case.settings)
    zero = settings.pop(JSON, None)
    named = {} if zero is None else {JSON: "zero.json"}
    (folder / "zero.json").write_text(json.dumps(zero))
    if launcher == "newer":
        return written(folder, {**MINE[launcher], "dist_config": {"name": "deepspeed", "config_file": "zero.json"}})
    if launcher == "gpt-neox":
        return written(folder, {**MINE[launcher], "precision": None, **zero})
    start = "torchrun --nproc_per_node=8"
    if launcher == "accelerate":
        start, named = "accelerate launch --config_file started.yaml", {}
        sharded = {"deepspeed_config": {"deepspeed_config_file": "zero.json"}}
        started = {"distributed_type": "DEEPSPEED", "num_processes": 8, **sharded}
        (folder / "started.yaml").write_text(yaml.safe_dump(started))
    options = {MBS: 1, **MINE["script"], **named, **settings}
    words = "".join(f" --{name} '{value}'" for name, value in options.items())
    (folder / "job.sh").write_text(f"#!/bin/bash\n{start} run_clm.py{words}\n")
    return folder / "job.sh"


ASKED = [
    (launcher, case)
    for launcher, left_out in {
        "llamafactory": set(),
        "script": set(),
        "accelerate": set(),
        "axolotl": {"one-half-type", "deepspeed-fp16-as-stated", "deepspeed-bf16-as-stated"},
        "newer": set(),
        "gpt-neox": {"deepspeed-one-half-type", "deepspeed-sum-without-stage-3"},
    }.items()
    for case in CASES
    if case.rule not in left_out
    and (case.program == "deepspeed" or case.program == "trainer" and launcher not in ("newer", "gpt-neox"))
    and (launcher != "accelerate" or JSON in case.settings)
]
"""Launchers and cases of what they hand on: axolotl leaves fp16 out beside bf16, and gpt-neox knows no operation."""


@pytest.mark.parametrize(
    ("launcher", "case"), ASKED, ids=lambda of: of if isinstance(of, str) else f"{of.rule} {of.how}"
)
def test_checks_of_trainer_and_deepspeed_are_asked_of_every_launcher_that_makes_them(
    launcher: str, case: Case, tmp_path: Path
) -> None:
    asked = names(read_config(shared_file(tmp_path, launcher, case)))
    assert (case.rule in asked) == (case.how == "broken")


def test_no_check_of_keys_has_the_name_of_a_rule_of_strategies() -> None:
    of_keys = {rule.name for rules in RULES.values() for rule in rules}
    assert not of_keys & {rule.name for rule in built_in_rules()}


@pytest.mark.parametrize("said", [True, 3])
def test_a_word_in_place_of_deepspeed_s_json_is_refused(said: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="deepspeed: must be the path of a JSON file"):
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**MINE["llamafactory"], "deepspeed": said}))
        read_config(tmp_path / "job.yaml")


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
        search(config, device, SearchOptions(world_size=8))
    case = next(case for case in CASES if case.rule == "packed-context-has-one-sample" and case.how == "broken")
    config = read_config(written(tmp_path, {**case.settings, "base_model": "Qwen/Qwen3-0.6B"}))
    assert names(config) == [case.rule]
    assert len(search(config, device, SearchOptions(world_size=8)).candidates)


def test_the_batch_of_deepspeed_s_json_states_the_ranks(tmp_path: Path) -> None:
    base = next(case.settings for case in CASES if case.program == "llamafactory" and case.how == "obeyed")
    zero = {"train_batch_size": 64, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    settings = {**base, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, JSON: zero}
    config = read_config(written(tmp_path, settings))
    assert (config.strategy.world_size, config.strategy.global_batch, names(config)) == (16, 64, [])
    config = read_config(written(tmp_path, {**settings, JSON: {**zero, "train_batch_size": 65}}))
    assert names(config) == ["deepspeed-batch-as-stated"]
