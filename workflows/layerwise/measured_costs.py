"""Costs of a job by strategy from a folder of profiles: the usable profiles, the missing ones, the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostProvider, CostRow, CostSetting, EndCosts, cost_table
from taylor.cost_model.measured.costs import MeasuredCosts
from taylor.cost_model.measured.fits import MeasuredLaw
from taylor.cost_model.measured.galvatron.hetu import HetuCosts
from taylor.cost_model.measured.galvatron.inputs import MEMORY_MODES, TIME_MODES, galvatron_inputs
from taylor.cost_model.measured.galvatron.paddle import PaddleCosts
from taylor.cost_model.measured.laws import ModelLaws
from taylor.layerwise.space import SpaceLimits
from taylor.parsers.galvatron.folder import MeasuredModel, ProfileFolder

PROVIDERS = ("taylor", "galvatron")
"""Sources of costs on a folder of profiles; `workflows.layerwise.estimated_costs` is the one without."""


@dataclass(frozen=True)
class CostRequest:
    """Request for a table of costs.

    Parameters
    ----------
    world : int
        Ranks.
    setting : CostSetting
    layers : int
        Layers of the model.
    model : str or None
        Name of the model or a part of it.
    provider : str
        One of `PROVIDERS`.
    time_mode, memory_mode : str or None
        Galvatron's modes; None: as the profiles allow.
    by_bandwidth : bool
        Option of its port to Paddle: collectives among TP ranks by bandwidth (``--sp_space tp``).
    """

    world: int
    setting: CostSetting
    layers: int
    model: str | None = None
    provider: str = "taylor"
    time_mode: str | None = None
    memory_mode: str | None = None
    by_bandwidth: bool = False


@dataclass(frozen=True)
class CostAnswer:
    """Table of costs.

    Parameters
    ----------
    title : str
        Model, cluster, job and source in one line.
    rows : tuple of CostRow
    ends : mapping of str to EndCosts
        Of embedding and head, by the strategy's name.
    left_out : tuple of str
        Strategies without a cost, each with the missing figure.
    warnings : tuple of str
    """

    title: str
    rows: tuple[CostRow, ...]
    ends: Mapping[str, EndCosts]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Table as plain data."""
        return {
            "title": self.title,
            "layers": [asdict(row) | {"name": row.strategy.name} for row in self.rows],
            "ends": {name: asdict(costs) for name, costs in self.ends.items()},
            "left_out": list(self.left_out),
            "warnings": list(self.warnings),
        }


def model_laws(model: MeasuredModel) -> ModelLaws:
    """Laws of a model that has both profiles.

    Raises
    ------
    InputError
        When a profile is missing.
    """
    computation, memory = model.computation, model.memory
    if computation is None or memory is None:
        lacking = "computation_profiling" if computation is None else "memory_profiling"
        raise InputError(
            f"has no {lacking}_{model.name}*.json, and costs need it",
            field="--model",
            value=model.name,
            cure="run that profiler, or choose another model",
        )
    split = True in memory.tables or not memory.tables
    return ModelLaws.of(computation, memory, model.rules, sequence_parallel=split)


def known_laws(model: MeasuredModel) -> tuple[MeasuredLaw, ...]:
    """Laws of a model's times; none where a profile is missing or raw runs do not determine a layer."""
    try:
        return model_laws(model).laws
    except InputError:
        return ()


def answer_costs(folder: ProfileFolder, request: CostRequest) -> CostAnswer:
    """Costs of a layer under every strategy of a stage, and of embedding and head under the same.

    Raises
    ------
    InputError
        When no profile serves, or none of the strategies can be costed.
    """
    cluster, _ = folder.cluster(request.world)
    model = folder.model(request.model)
    provider, modes, warnings = provider_of(folder, model, request)
    of = f"{model.name} on {cluster}"
    return costs_of(provider, request, of, modes=modes, warnings=warnings, source=folder.folders[0])


def costs_of(
    provider: CostProvider,
    request: CostRequest,
    of: str,
    *,
    modes: str = "",
    warnings: tuple[str, ...] = (),
    source: Path | None = None,
) -> CostAnswer:
    """Table of one source of costs.

    Parameters
    ----------
    of : str
        Model and cluster, for the title.
    modes : str
        Modes of the source, for the title.
    source : Path or None
        Folder at fault where none of the strategies can be costed.

    Raises
    ------
    InputError
        When none of the strategies can be costed.
    """
    setting = request.setting
    rows: list[CostRow] = []
    ends: dict[str, EndCosts] = {}
    left_out: list[str] = []
    space = SpaceLimits(disable_cp=True)
    served = setting.stages in space.stage_numbers(request.world, request.layers)
    for strategy in space.layers(request.world // setting.stages) if served else ():
        try:
            rows += cost_table(provider, provider.kinds, (strategy,), setting)
            ends.setdefault(strategy.end.name, provider.ends(strategy.end, setting))
        except InputError as error:
            left_out.append(f"{strategy.name}: {error}")
    if not rows:
        why = left_out[0] if left_out else f"{request.world} ranks make no {setting.stages} stages"
        raise InputError(f"none of the strategies can be costed: {why}", file=source)
    title = (
        f"{of}: {setting.stages} stages, batch {setting.global_batch} in "
        f"{setting.micro_batches} micro-batches, {setting.tokens} tokens; costs of {provider.name}{modes}"
    )
    return CostAnswer(title, tuple(rows), ends, tuple(left_out), warnings)


def provider_of(
    folder: ProfileFolder, model: MeasuredModel, request: CostRequest
) -> tuple[CostProvider, str, tuple[str, ...]]:
    """Source of costs, its modes for the title, and its warnings.

    Raises
    ------
    InputError
        When a profile is missing.
    """
    _, hardware = folder.cluster(request.world)
    laws, setting = model_laws(model), request.setting
    if request.provider == "taylor":
        return MeasuredCosts(laws, hardware), "", laws.warnings(setting.tokens)
    assert model.computation is not None and model.memory is not None
    times = next(iter(model.computation.layer_ms.values()))
    measured = any(shape.tokens == setting.tokens for shape in times)
    lengths = next(iter(laws.memory.table(laws.sequence_parallel).layer.values()))
    time_mode = request.time_mode or ("static" if measured else "sequence")
    memory_mode = request.memory_mode or ("static" if setting.tokens in lengths else "sequence")
    for field, mode, known in (("--time_mode", time_mode, TIME_MODES), ("--memory_mode", memory_mode, MEMORY_MODES)):
        if mode not in known:
            raise InputError("is no mode of Galvatron", field=field, value=mode, cure=f"take {', '.join(known)}")
    inputs = galvatron_inputs(
        model.computation,
        model.memory,
        setting.tokens,
        time_mode=time_mode,
        memory_mode=memory_mode,
        sequence_parallel=laws.sequence_parallel,
    )
    modes = f", {time_mode} times and {memory_mode} memory"
    if model.rules.name == "paddle":
        return PaddleCosts(inputs, hardware, request.by_bandwidth), modes, ()
    return HetuCosts(inputs, hardware, dict.fromkeys(inputs.layer, request.layers)), modes, ()


def folder_record(folder: ProfileFolder) -> dict[str, Any]:
    """Contents of some folders, as plain data."""
    return {
        "folders": [str(each) for each in folder.folders],
        "clusters": [
            {"nodes": cluster.nodes, "cards": cluster.cards, "missing": list(profile.missing())}
            for cluster, profile in folder.hardware.items()
        ],
        "models": [
            {
                "name": model.name,
                "profiler": model.rules.name,
                "computation": model.computation is not None,
                "memory": model.memory is not None,
                "laws": [
                    {"of": law.of, "cause": law.cause, "unit": law.unit, "powers": law.powers,
                     "coefficients": law.coefficients, "scale": law.scale, "residuals": law.residuals}
                    for law in known_laws(model)
                ],
            }
            for model in folder.models.values()
        ],
        "strategies": [str(path) for path in folder.strategies],
    }  # fmt: skip


def is_folder(paths: list[Path]) -> bool:
    """Return whether folders are meant, and not one strategy file.

    Raises
    ------
    InputError
        When both are given, or several files.
    """
    files = [path for path in paths if not path.is_dir()]
    if files and len(paths) > 1:
        raise InputError(
            "stands beside others", field=str(files[0]), cure="give folders of profiles, or one strategy file"
        )
    return not files
