"""DPO trains on pairs of answers beside a frozen reference model."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import layer_state_bytes
from taylor.cost_model.time.step import lag_ms, layer_time
from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from tests.conftest import ROOT


def test_a_pair_has_twice_the_tokens_and_a_frozen_model_beside(tmp_path: Path) -> None:
    text, device = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text().rstrip(), Registry.load().device("910b")
    jobs = {}
    for name, more in (("plain", ""), ("twice", ""), ("dpo", "--stage dpo")):
        (tmp_path / f"{name}.sh").write_text(f"{text} {more}\n")
        jobs[name] = read_config(tmp_path / f"{name}.sh")
    plain, dpo = jobs["plain"], jobs["dpo"]
    twice = jobs["twice"].strategy.replace(mbs=2 * plain.strategy.mbs)
    assert dpo.rules.pairs and not plain.rules.pairs

    states = [layer_state_bytes(one.model, "dense", one.strategy, one.rules) for one in (plain, dpo)]
    shard = states[0].weights / plain.rules.param_bytes
    assert states[1].weights == pytest.approx(states[0].weights + shard * dpo.rules.param_bytes)
    assert (states[1].gradients, states[1].optimizer) == (states[0].gradients, states[0].optimizer)

    kept = activation_bytes(dpo.model, "dense", "none", dpo.strategy, dpo.rules)
    assert kept == activation_bytes(plain.model, "dense", "none", twice, plain.rules)
    trained = layer_time(plain.model, "dense", twice, plain.rules, device)
    paired = layer_time(dpo.model, "dense", dpo.strategy, dpo.rules, device)
    assert paired.forward == pytest.approx(2 * trained.forward) and paired.backward == pytest.approx(trained.backward)
    assert paired.recompute["full"] == pytest.approx(trained.forward)
    one, four = (lag_ms(job.model, job.strategy, job.rules, device) for job in (plain, dpo))
    assert four - 1e-3 * device.link_latency_us == pytest.approx(4 * (one - 1e-3 * device.link_latency_us))
