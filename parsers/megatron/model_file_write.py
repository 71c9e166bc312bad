"""Plans written into the JSON of MindSpeed-MM's ``--mm-model``: layers of every stage, and recompute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.tower import Spread
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.model_file import MAX_BYTES
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.tower_file import AUDIO_ENCODER, DECODER, ENCODER, PLACES, VIRTUAL
from taylor.parsers.megatron.write import means_plan
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.json_edit import edit_json
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan

_VISION = "image_encoder"


def with_plan(
    launch: Launch,
    config: TrainingConfig,
    plan: PipelinePlan,
    micro_batches: int | None,
    modules: Mapping[str, Setting],
) -> tuple[str, str]:
    """The text of a launch's JSON before and after a plan is written into it; the script stays as it is.

    Where the configuration spreads its encoder over stages (`TowerRun.spread`), so does the JSON.

    Parameters
    ----------
    modules : mapping
        Flags that name modules to recompute.

    Raises
    ------
    InputError
        When the script would have to change too, or the JSON cannot state the plan.
    """
    home = launch.plan_home
    assert home is not None
    current = config_from_launch(launch)
    current.refuse_other_stages(plan, "--pipeline-model-parallel-size")
    own = current.strategy
    if plan.interleaves != own.vpp:
        problem = f"lets a stage have {own.vpp} chunks, and the plan has {plan.interleaves}"
        cure = f"set it to {plan.interleaves} and solve again, or solve with -write n"
        raise launch.flags.error(VIRTUAL, problem, cure=cure)
    if micro_batches not in (None, own.micro_batches):
        cure = f"set it to {own.dp * own.mbs * micro_batches} there"
        raise launch.flags.error("global-batch-size", "is not written: the plan goes into the JSON alone", cure=cure)
    if modules:
        problem = "names no modules that run again"
        cure = "solve without choices by module, or with -write n"
        raise InputError(problem, file=home, field=f"{DECODER}.recompute_granularity", cure=cure)
    old = read_text(home, limit_bytes=MAX_BYTES)
    data = json.loads(old)
    wanted = _recompute(data[DECODER], plan)
    spread = None if config.tower is None else config.tower.spread
    if own.pp > 1:
        wanted |= _layers(data, plan, spread)
    new = edit_json(old, wanted)
    found = launch.with_model_text(new)
    changed = config_from_launch(found)
    if (changed.tower and changed.tower.spread) != spread or not means_plan(changed, plan, config.schedule):
        cure = "export the plan as JSON instead"
        raise InputError("cannot express the plan", file=home, field=f"{DECODER}.{PLACES}", cure=cure)
    for note in found.notes:
        if note not in launch.notes:
            log.warning("%s: %s", home, note)
    return old, new


def _layers(data: Mapping[str, Any], plan: PipelinePlan, spread: Spread | None) -> dict[tuple[str, ...], object]:
    """Layers of the language model and of the encoders beside it, by chunk."""
    stages, interleaves = plan.stages, plan.interleaves
    wanted: dict[tuple[str, ...], list[list[int]]] = {(DECODER, PLACES): [list(row) for row in plan.total_layers()]}
    for section, name in ((_VISION, ENCODER), (AUDIO_ENCODER, AUDIO_ENCODER)):
        part = (data.get(section) or {}).get(name)
        if not part:
            continue
        if section == _VISION and spread is not None:
            rows = spread.rows()
        else:
            rows = [[0] * stages for _ in range(interleaves)]
            virtual, stage = divmod(spread.begins if spread is not None else 0, stages)
            rows[virtual][stage] = part["num_layers"]
        wanted[section, name, PLACES] = rows
    return {names: rows if interleaves > 1 else rows[0] for names, rows in wanted.items()}


def _recompute(decoder: Mapping[str, Any], plan: PipelinePlan) -> dict[tuple[str, ...], object]:
    """Recompute of the language model, of the first layers of every chunk; keys that it does not need become null."""
    full = plan.recomputed(FULL)
    most = max(map(max, full))
    values: dict[str, object] = dict.fromkeys(("recompute_granularity", "recompute_method", "recompute_num_layers"))
    if plan.uses(SELECT):
        values["recompute_granularity"] = "selective"
    elif most:
        uniform = full == plan.total_layers()
        values = {
            "recompute_granularity": "full",
            "recompute_method": "uniform" if uniform else "block",
            "recompute_num_layers": 1 if uniform else most,
        }
    return {(DECODER, name): value for name, value in values.items() if value is not None or name in decoder}
