"""Costs of a job by strategy without measurements: the analytical model of a model on a device."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.measured.cost_table import CostSetting
from taylor.cost_model.measured.estimate import EstimatedCosts
from taylor.parsers.read import read_config
from taylor.register.frameworks import UNDER_GALVATRON
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.workflows.layerwise.measured_costs import CostAnswer, CostRequest, costs_of


def named_model(name: str) -> ModelSpec:
    """Registered model, or that of a ``config.json``.

    Raises
    ------
    InputError
        When there is no such model.
    """
    path = Path(name)
    return read_config(path).model if path.suffix == ".json" else Registry.load().model(name)


def estimate_costs(model: ModelSpec, device: str, request: CostRequest) -> CostAnswer:
    """Costs of a layer under every strategy of a stage, and of embedding and head, by the analytical model.

    Parameters
    ----------
    device : str
        A registered device, or its file, as `taylor calibrate` writes it.

    Raises
    ------
    InputError
        When the device is unknown, or none of the strategies can be costed.
    """
    setting: CostSetting = request.setting
    if setting.hidden != model.hidden:
        raise InputError(
            f"is not the width of {model.name}, {model.hidden}", field="--hidden", value=setting.hidden,
            cure="leave it out",
        )  # fmt: skip
    card = Registry.load().device(device)
    provider = EstimatedCosts(model, TrainingRules(framework=UNDER_GALVATRON), card)
    return costs_of(provider, request, f"{model.name} on {request.world} {card.name}")
