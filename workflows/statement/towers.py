"""An encoder of images in front of the language model: its layers in the pipeline problem, and what a command says."""

from __future__ import annotations

import re
from dataclasses import replace

from taylor.base.errors import InputError
from taylor.cost_model.choices.tower_costs import TowerCosts, tower_costs
from taylor.cost_model.job.tower import TowerRun
from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.step import layer_time
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import NONE
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.register.adapters import BESIDE
from taylor.register.device import DeviceSpec
from taylor.register.tower import VISION

FLAG = "--images"
CURE = f"{FLAG} IMAGES or IMAGES x PATCHES, as in 1.5 or 1.5x1024: images a sample on average, patches an image"
MOST = 2**20


def with_images(config: TrainingConfig, asked: str) -> TrainingConfig:
    """The configuration with the images that a user states; the same where none are stated.

    Raises
    ------
    InputError
        When the text states no images, or the job has no encoder that is known.
    """
    if not asked:
        return config
    found = re.fullmatch(r"(\d{1,4}(?:\.\d{1,4})?)(?:x(\d{1,7}))?", asked.replace(" ", ""))
    images, patches = (float(found[1]), found[2]) if found else (0.0, None)
    if not (images > 0 and (patches is None or 1 <= int(patches) <= MOST)):
        raise InputError("states no images", field=FLAG, value=asked, cure=CURE)
    tower = config.tower or _of_model(config)
    if tower is None:
        problem = "asks for images, and no encoder of images is known of this job"
        raise InputError(problem, file=config.path, field=FLAG, value=asked, cure=f"leave out {FLAG}")
    source = f"by {FLAG}" if patches else f"images by {FLAG}; patches {tower.source}"
    tower = replace(tower, images=images, patches=int(patches or tower.patches), source=source)
    if tower.tokens * config.strategy.mbs > MOST:
        raise InputError("states more tokens of images than a micro-batch can have", field=FLAG, value=asked, cure=CURE)
    return config.replace(tower=tower)


def _of_model(config: TrainingConfig) -> TowerRun | None:
    """The encoder that the model itself has, where its layers are known; every rank of TP runs all of it."""
    spec = config.model.tower
    if spec is None or config.model.extra_parameters < spec.parameters:
        return None
    return TowerRun(spec, trained=BESIDE not in config.rules.frozen and config.rules.adapters is None, counted=True)


def costs_of(config: TrainingConfig, tower: TowerRun, device: DeviceSpec) -> TowerCosts:
    """Costs of a job's encoder on one rank."""
    return tower_costs(tower, config.strategy, config.rules, device)


def tower_mib(config: TrainingConfig, device: DeviceSpec, alive: float | None = None) -> float:
    """Memory of a job's encoder on the first stage beyond what its model's figures count, MiB; 0 where it has none.

    Parameters
    ----------
    alive : float, optional
        Micro-batches alive in the first chunk; the most when omitted.
    """
    tower, strategy = config.tower, config.strategy
    if tower is None:
        return 0.0
    costs = costs_of(config, tower, device)
    states = 0.0 if tower.counted else costs.states_mib
    if alive is None:
        schedule = build_schedule(config.schedule, strategy.pp, strategy.vpp, strategy.micro_batches)
        alive = float(alive_vectors(schedule)[0][:, 0].max(initial=0.0))
    return states + costs.kept_mib * alive


def with_tower(
    problem: PipelineProblem, config: TrainingConfig, device: DeviceSpec, source: MemorySource
) -> PipelineProblem:
    """The problem with the encoder's layers on the first chunk, in front of the embedding.

    Memory that was measured or given has the encoder's in it.
    """
    if config.tower is None:
        return problem
    costs, count = costs_of(config, config.tower, device), config.tower.spec.n_layers
    body = float(layer_time(config.model, config.model.body_kind, config.strategy, config.rules, device).forward)
    own = source == MemorySource.ESTIMATE
    kept = costs.kept_mib / count if own else 0.0
    forward, backward = costs.forward_ms / body, costs.backward_ms / body
    # The problem's backward is one multiple of all forwards: what is beyond it, or has none, counts apart.
    common = min(forward, backward / problem.backward_ratio) if problem.backward_ratio else 0.0
    kind = LayerKind(
        VISION,
        count,
        common / count,
        costs.states_mib / count if own and not config.tower.counted else 0.0,
        dict.fromkeys((NONE, *problem.recompute_ratio, *problem.choices), kept),
        pinned_first=True,
        choices={name: LayerChoice() for name in problem.choices},
        added_forward=(forward - common) / count,
        added_backward=max(0.0, backward - problem.backward_ratio * common) / count,
    )
    at = sum(not one.pinned for one in problem.kinds)
    return problem.replace(kinds=(*problem.kinds[:at], kind, *problem.kinds[at:]))


def tower_lines(config: TrainingConfig, device: DeviceSpec) -> tuple[str, ...]:
    """Line on the encoder and its images; none where the job has none."""
    tower = config.tower
    if tower is None:
        return ()
    costs = costs_of(config, tower, device)
    state = "trained" if tower.trained else "frozen"
    back = f" and {costs.backward_ms:,.4g} ms backward" if tower.trained else ""
    kept = f", {costs.kept_mib:,.0f} MiB kept a micro-batch" if tower.trained else ""
    if tower.tokens > config.rules.seq_length:
        kept += f"; they are {tower.tokens:,.0f} tokens, more than a sequence of {config.rules.seq_length:,}"
    images = f"{tower.images:g} image{'s' * (tower.images != 1)} of {tower.patches:,} patches a sample ({tower.source})"
    return (
        f"vision encoder of {tower.spec.parameters / 1e6:,.0f} M parameters, {state}, on the first stage: {images}; "
        f"{costs.forward_ms:,.4g} ms forward{back} a micro-batch, {costs.states_mib:,.0f} MiB of states{kept}",
    )
