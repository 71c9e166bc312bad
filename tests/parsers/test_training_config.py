"""A configuration tells a reader what it is."""

from __future__ import annotations

from taylor.parsers.read import read_config
from tests.conftest import ROOT


def test_a_configuration_shows_its_file_model_strategy_and_batch():
    told = repr(read_config(ROOT / "config" / "pretrain_llama2_7b.yaml"))
    assert "pretrain_llama2_7b.yaml (mindformers" in told and "with a plan" in told
    assert "32 dense layers" in told and "Strategy(dp=2, tp=2, pp=2, op=2, micro_batches=64)" in told
    assert "8 ranks, 128 samples of 4096 tokens a step, 1f1b" in told
