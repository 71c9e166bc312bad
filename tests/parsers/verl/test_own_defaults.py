"""A critic's defaults as verl's own configuration states them, with a clone (`benchmarks/reliability`)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, source
from taylor.parsers.verl.programs import CRITIC, MIRRORED, PPO

REVISION = "1dda039b"


def section(name: str) -> Any:
    try:
        return yaml.safe_load(source("verl", REVISION, f"verl/trainer/config/{name}.yaml"))
    except NotHere as here:
        pytest.skip(str(here))


def at(data: Any, key: str) -> Any:
    for name in key.split("."):
        data = data[name]
    return data


def test_a_critics_defaults_are_those_of_verls_own_files() -> None:
    critic = section("critic/critic")
    model, megatron, fsdp = (section(name) for name in ("model/hf_model", "engine/megatron", "engine/fsdp"))
    whole = {
        **critic,
        "model": model,
        "megatron": megatron,
        "fsdp": fsdp,
        "strategy": section("critic/dp_critic")["strategy"],
    }
    for key, value in CRITIC.defaults.items():
        assert at({"critic": whole}, key) == yaml.safe_load(value), key
    assert section("critic/megatron_critic")["strategy"] == "megatron"


def test_a_critic_takes_the_policys_batch_packing_and_epochs() -> None:
    critic = section("critic/critic")
    for key, of in MIRRORED.items():
        text = at({"critic": critic}, key)
        assert text.startswith(f"${{oc.select:{of},"), key
        if of in PPO.defaults:
            assert text == f"${{oc.select:{of},{PPO.defaults[of]}}}"
    mirrored = {f"critic.{key}" for key, value in critic.items() if "actor_rollout_ref.actor." in str(value)}
    # The rest sets no figure.
    assert mirrored - set(MIRRORED) == {"critic.shuffle", "critic.loss_agg_mode", "critic.loss_scale_factor"}
