"""Plans written into the JSON of MindSpeed-MM's ``--mm-model``: layers of every stage, and recompute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.tower import Spread
from taylor.parsers.megatron import recompute
from taylor.parsers.megatron.model_file import MAX_BYTES
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.tower_file import AUDIO_ENCODER, DECODER, ENCODER, PLACES, VIRTUAL, part_of
from taylor.parsers.megatron.write import means_plan
from taylor.parsers.text.json_edit import edit_json
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan

if TYPE_CHECKING:
    from taylor.parsers.megatron.script import Script

_GRANULARITY = "recompute_granularity"


def with_plan(script: Script, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> tuple[str, str]:
    """The text of a script's JSON before and after a plan is written into it; the script stays as it is.

    Where the configuration spreads its encoder over stages (`TowerRun.spread`), so does the JSON.

    Raises
    ------
    InputError
        When the script would have to change too, or the JSON cannot state the plan.
    """
    home = script.plan_home
    assert home is not None
    current = config_from_launch(script)
    current.refuse_other_stages(plan, "--pipeline-model-parallel-size")
    plan, modules = recompute.by_module(plan)
    _refuse_change_of_script(script, current, config, plan, micro_batches)
    if modules:
        problem, cure = "names no modules that run again", "solve without choices by module, or with -write n"
        raise InputError(problem, file=home, field=f"{DECODER}.{_GRANULARITY}", cure=cure)
    old = read_text(home, limit_bytes=MAX_BYTES)
    data = json.loads(old)
    wanted = _recompute(data[DECODER], plan)
    spread = None if config.tower is None else config.tower.spread
    if plan.stages > 1:
        wanted |= _layers(data, plan, spread)
    new = edit_json(old, wanted)
    written = script.with_model_text(new)
    changed = config_from_launch(written)
    moved = (None if changed.tower is None else changed.tower.spread) != spread
    if moved or not means_plan(changed, plan, config.schedule, current.model):
        cure = "export the plan as JSON instead"
        raise InputError("cannot express the plan", file=home, field=f"{DECODER}.{PLACES}", cure=cure)
    for note in written.notes:
        if note not in script.notes:
            log.warning("%s: %s", home, note)
    return old, new


def _refuse_change_of_script(
    script: Script, current: TrainingConfig, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None
) -> None:
    """Refuse a plan that another value of a flag in the script goes with."""
    own = current.strategy
    if plan.interleaves != own.vpp:
        problem = f"lets a stage have {own.vpp} chunks, and the plan has {plan.interleaves}"
        cure = f"set it to {plan.interleaves} and solve again, or solve with -write n"
        raise script.flags.error(VIRTUAL, problem, cure=cure)
    if micro_batches not in (None, own.micro_batches):
        cure = f"set it to {own.dp * own.mbs * micro_batches} there"
        raise script.flags.error("global-batch-size", "is not written: the plan goes into the JSON alone", cure=cure)
    if config.added:
        name, _ = config.added[0]
        raise script.flags.error(name, "is not written: the plan goes into the JSON alone", cure="set it there")


def _layers(data: Mapping[str, Any], plan: PipelinePlan, spread: Spread | None) -> dict[tuple[str, ...], object]:
    """Layers of the language model and of the encoders beside it, by chunk."""
    stages, interleaves = plan.stages, plan.interleaves
    wanted: dict[tuple[str, ...], list[list[int]]] = {(DECODER, PLACES): [list(row) for row in plan.total_layers()]}
    begins = 0 if spread is None else spread.begins
    for section, name in (("image_encoder", ENCODER), (AUDIO_ENCODER, AUDIO_ENCODER)):
        layers = part_of(data, name, section).get("num_layers")
        if not isinstance(layers, int):
            continue  # no encoder, or one without its sizes, which stays where it is
        if name == ENCODER and spread is not None:
            rows = spread.rows()
        else:
            rows = [[0] * stages for _ in range(interleaves)]
            rows[begins // stages][begins % stages] = layers
        wanted[section, name, PLACES] = rows
    return {names: rows if interleaves > 1 else rows[0] for names, rows in wanted.items()}


def _recompute(decoder: Mapping[str, Any], plan: PipelinePlan) -> dict[tuple[str, ...], object]:
    """Recompute of the language model, of the first layers of every chunk; keys that it does not need become null."""
    full = plan.recomputed(FULL)
    most = max(map(max, full))
    values: dict[str, object] = dict.fromkeys((_GRANULARITY, "recompute_method", "recompute_num_layers"))
    if plan.uses(SELECT):
        values[_GRANULARITY] = "selective"
    elif most and full == plan.total_layers():
        values = {_GRANULARITY: "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    elif most:
        values = {_GRANULARITY: "full", "recompute_method": "block", "recompute_num_layers": most}
    return {(DECODER, name): value for name, value in values.items() if value is not None or name in decoder}
