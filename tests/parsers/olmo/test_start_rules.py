"""Start-up checks of OLMo-core: settings of recompute that its configurations refuse, by the rule's name."""

from __future__ import annotations

import pytest

from taylor.parsers.olmo.start_rules import START_RULES
from taylor.parsers.start_rules import misfits_of, of_mapping


def broken(model: dict, module: dict) -> list[str]:
    return [misfit.rule for misfit in misfits_of(START_RULES, of_mapping({"model": model, "train_module": module}))]


@pytest.mark.parametrize(
    ("broken_by", "obeyed_by", "rule"),
    [
        ({"ac_config": {"mode": "budget"}}, {"ac_config": {"mode": "budget"}, "compile_model": True},
         "budget-needs-compiler"),
        ({"ac_config": {"mode": "selected_blocks"}}, {"ac_config": {"mode": "selected_blocks", "block_interval": 2}},
         "interval-of-recomputed-blocks"),
        ({"ac_config": {"mode": "selected_modules"}}, {"ac_config": {"mode": "selected_modules", "modules": ["a"]}},
         "modules-of-recompute"),
        ({"cp_config": {"degree": 2, "ring": {}, "uly": {}}}, {"cp_config": {"degree": 2, "ring": {}}},
         "one-context-style"),
    ],
)  # fmt: skip
def test_a_setting_that_olmo_core_refuses_is_refused_by_name(broken_by: dict, obeyed_by: dict, rule: str) -> None:
    dense = {"block": {"name": "reordered_norm"}}
    assert broken(dense, broken_by) == [rule]
    assert broken(dense, obeyed_by) == []


def test_blocks_of_experts_are_not_recomputed_whole() -> None:
    experts = {"block": {"name": "moe_reordered_norm"}}
    assert broken(experts, {"ac_config": {}}) == ["experts-without-block-recompute"]
    assert broken(experts, {"ac_config": {"mode": "selected_modules", "modules": ["a"]}}) == []
    assert broken({"block": {"name": "default"}}, {"ac_config": {}}) == []
    assert broken(experts, {}) == []
