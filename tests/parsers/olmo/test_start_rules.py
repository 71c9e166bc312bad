"""Start-up checks of OLMo-core: recompute of experts; `tests/parsers/start_checks` has a case a rule."""

from __future__ import annotations

from taylor.parsers.olmo.start_rules import START_RULES
from taylor.parsers.start_rules import misfits_of, of_mapping


def broken(model: dict, module: dict) -> list[str]:
    return [misfit.rule for misfit in misfits_of(START_RULES, of_mapping({"model": model, "train_module": module}))]


def test_blocks_of_experts_are_not_recomputed_whole() -> None:
    experts = {"block": {"name": "moe_reordered_norm"}}
    assert broken(experts, {"ac_config": {}}) == ["experts-without-block-recompute"]
    assert broken(experts, {"ac_config": {"mode": "selected_modules", "modules": ["a"]}}) == []
    assert broken({"block": {"name": "default"}}, {"ac_config": {}}) == []
    assert broken(experts, {}) == []
