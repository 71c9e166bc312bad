"""An encoder of images or sound in front of the language model: its layers in the problem, and what commands say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from taylor.base.errors import InputError
from taylor.cost_model.choices.tower_costs import TowerCosts, costs_behind, tower_costs
from taylor.cost_model.job.tower import Spread, TowerRun
from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.step import layer_time
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import NONE, run_names
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.register.adapters import BESIDE
from taylor.register.device import DeviceSpec
from taylor.register.tower import AUDIO, EMBEDDING, VISION

FLAG, AUDIO_FLAG = "--images", "--audio_seconds"
CURE = f"{FLAG} IMAGES or IMAGES x PATCHES, as in 1.5 or 1.5x1024: images a sample on average, patches an image"
AUDIO_CURE = f"{AUDIO_FLAG} SECONDS or CLIPS x SECONDS, as in 30 or 1.5x30: clips a sample on average, seconds a clip"
SECOND = "s"
"""What stands behind the seconds of clips among a sample's inputs (`with_images`)."""
AND = "+"
MOST = 2**20
MOST_SECONDS = 3600.0


def inputs_text(images: str, audio_seconds: str) -> str:
    """A sample's inputs as `with_images` takes them, from the texts of both flags.

    Raises
    ------
    InputError
        When one of the flags states what the other one is for.
    """
    for flag, text, kind, cure in ((FLAG, images, "images", CURE), (AUDIO_FLAG, audio_seconds, "sound", AUDIO_CURE)):
        if AND in text or text.endswith(SECOND):
            raise InputError(f"states no {kind}", field=flag, value=text, cure=cure)
    return AND.join(filter(None, [images, audio_seconds and audio_seconds + SECOND]))


def with_images(config: TrainingConfig, asked: str) -> TrainingConfig:
    """The configuration with the images and the sound that a user states; the same where none are stated.

    Parameters
    ----------
    asked : str
        Images, clips of sound, or both: ``1.5x1024``, ``2x30s``, ``1.5x1024+2x30s``.

    Raises
    ------
    InputError
        When the text states none, or the job has no encoder of the kind that is known.
    """
    parts = asked.split(AND) if asked else []
    if len(parts) > 2 or (len(parts) > 1 and parts[0].endswith(SECOND) == parts[1].endswith(SECOND)):
        raise InputError("states images or sound twice", field=FLAG, value=asked, cure=CURE)
    for part in parts:
        sound = part.endswith(SECOND)
        run = _heard(config, part.removesuffix(SECOND)) if sound else _seen(config, part)
        kind = AUDIO if sound else VISION
        known = config.tower or _of_model(config)
        assert known is not None
        towers = [run if one.spec.kind == kind else one for one in known.parts]
        config = config.replace(tower=replace(towers[0], further=tuple(towers[1:])))
        if config.tower is not None and config.tower.tokens * config.strategy.mbs > MOST:
            flag, cure = (AUDIO_FLAG, AUDIO_CURE) if sound else (FLAG, CURE)
            raise InputError("states more tokens than a micro-batch can have", field=flag, value=part, cure=cure)
    return config


def _seen(config: TrainingConfig, asked: str) -> TowerRun:
    """The job's encoder of images with those that are stated."""
    found = re.fullmatch(r"(\d{1,4}(?:\.\d{1,4})?)(?:x(\d{1,7}))?", asked.replace(" ", ""))
    images, patches = (float(found[1]), found[2]) if found else (0.0, None)
    if not (images > 0 and (patches is None or 1 <= int(patches) <= MOST)):
        raise InputError("states no images", field=FLAG, value=asked, cure=CURE)
    tower = _known(config, VISION)
    if tower is None:
        problem = "asks for images, and no encoder of images is known of this job"
        raise InputError(problem, file=config.path, field=FLAG, value=asked, cure=f"leave out {FLAG}")
    source = f"by {FLAG}" if patches else f"images by {FLAG}; patches {tower.source}"
    return replace(tower, images=images, patches=int(patches or tower.patches), source=source)


def _heard(config: TrainingConfig, asked: str) -> TowerRun:
    """The job's encoder of sound with the clips that are stated."""
    found = re.fullmatch(r"(?:(\d{1,4}(?:\.\d{1,4})?)x)?(\d{1,4}(?:\.\d{1,4})?)", asked.replace(" ", ""))
    clips, seconds = (float(found[1] or 1), float(found[2])) if found else (0.0, 0.0)
    if not (clips > 0 and 0 < seconds <= MOST_SECONDS):
        raise InputError("states no sound", field=AUDIO_FLAG, value=asked, cure=AUDIO_CURE)
    tower = _known(config, AUDIO)
    if tower is None:
        problem = "asks for sound, and no encoder of sound is known of this job"
        raise InputError(problem, file=config.path, field=AUDIO_FLAG, value=asked, cure=f"leave out {AUDIO_FLAG}")
    patches = max(1, round(seconds * tower.spec.patches_per_s))
    return replace(tower, images=clips, patches=patches, source=f"by {AUDIO_FLAG}")


def _known(config: TrainingConfig, kind: str) -> TowerRun | None:
    """The job's encoder of a kind; None where it has none that is known."""
    towers = config.tower or _of_model(config)
    return None if towers is None else next((one for one in towers.parts if one.spec.kind == kind), None)


def _of_model(config: TrainingConfig) -> TowerRun | None:
    """The encoder that the model itself has, where its layers are known; every rank of TP runs all of it."""
    spec = config.model.tower
    if spec is None or config.model.extra_parameters < spec.parameters:
        return None
    return TowerRun(spec, trained=BESIDE not in config.rules.frozen and config.rules.adapters is None, counted=True)


def flag_of_inputs(config: TrainingConfig) -> str | None:
    """The flag that states the inputs of the job's encoder; None where there is no encoder, or it has some."""
    tower = config.tower or _of_model(config)
    if tower is None or (config.tower is not None and config.tower.tokens):
        return None
    return AUDIO_FLAG if tower.spec.kind == AUDIO else FLAG


def costs_of(config: TrainingConfig, tower: TowerRun, device: DeviceSpec) -> TowerCosts:
    """Costs of a job's encoder on one rank."""
    return tower_costs(tower, config.strategy, config.rules, device)


def tower_mib(
    config: TrainingConfig, device: DeviceSpec, stage: int = 0, alive: Sequence[float] | None = None
) -> float:
    """Memory of a job's encoder on a stage beyond what its model's figures count, MiB; 0 where it has none there.

    With an encoder on several chunks the embedding moves behind it: the first stage has that much less.

    Parameters
    ----------
    alive : sequence of float, optional
        Micro-batches alive in each of the stage's chunks; the most when omitted.
    """
    tower, strategy = config.tower, config.strategy
    if tower is None:
        return 0.0
    if alive is None:
        schedule = build_schedule(config.schedule, strategy.pp, strategy.vpp, strategy.micro_batches)
        alive = alive_vectors(schedule)[stage].max(axis=0, initial=0.0).tolist()
    spread = tower.spread_over(strategy.pp, strategy.vpp)
    if spread is None:
        here = costs_of(config, tower, device)
        return _uncounted_mib(config, device) + here.kept_mib * alive[0] if stage == 0 else 0.0
    chunks, total = config.schedule.placement(strategy.pp, strategy.vpp).chunks, 0.0
    for place, (_, _, costs) in _runs(config, device, tower, spread):
        v, s = chunks[place]
        total += (costs.states_mib + costs.kept_mib * alive[v]) * (s == stage)
    return total - _embedding_mib(config, device) * (stage == 0)


def _runs(
    config: TrainingConfig, device: DeviceSpec, tower: TowerRun, spread: Spread
) -> Iterator[tuple[int, tuple[str, int, TowerCosts]]]:
    """Position, kind, layers and costs of the runs of an encoder on several chunks, and of the embedding behind them,
    with which encoders of sound lie."""
    images, *others = tower.parts
    of = (images, config.strategy, config.rules, device)
    first, behind = tower_costs(*of), costs_behind(*of)
    for place, (name, count) in enumerate(zip(run_names(VISION, len(spread.layers)), spread.layers, strict=True)):
        yield place, (name, count, (behind if place else first).part(count / images.spec.n_layers))
    beside = sum((costs_of(config, one, device) for one in others), TowerCosts(0.0, 0.0, 0.0, 0.0))
    moved = beside.states_mib + _embedding_mib(config, device)
    yield spread.begins, (EMBEDDING, 1, replace(beside, states_mib=moved))


def _embedding_mib(config: TrainingConfig, device: DeviceSpec) -> float:
    """What the first stage holds for the embedding, MiB."""
    memory = estimate_memory(config, device)
    return max(0.0, memory.static_first_mib - memory.static_middle_mib)


def _uncounted_mib(config: TrainingConfig, device: DeviceSpec) -> float:
    """States of the job's encoders that its model does not count, MiB."""
    parts = () if config.tower is None else config.tower.parts
    return sum(costs_of(config, one, device).states_mib for one in parts if not one.counted)


def with_tower(
    problem: PipelineProblem, config: TrainingConfig, device: DeviceSpec, source: MemorySource
) -> PipelineProblem:
    """The problem with the encoder's layers in front of the embedding: on the first chunk, or where the job has them.

    Memory that was measured or given has the encoder's in it.
    """
    tower = config.tower
    if tower is None:
        return problem
    spread = tower.spread_over(problem.stages, problem.interleaves)
    if spread is not None:
        return _with_spread(problem, config, device, source, tower, spread)
    costs = replace(costs_of(config, tower, device), states_mib=_uncounted_mib(config, device))
    return _in_front(problem, [_kind(problem, config, device, source, VISION, tower.spec.n_layers, costs)])


def _with_spread(
    problem: PipelineProblem,
    config: TrainingConfig,
    device: DeviceSpec,
    source: MemorySource,
    tower: TowerRun,
    spread: Spread,
) -> PipelineProblem:
    """The problem with an encoder on several chunks: a run of its layers on each, and the embedding behind them.

    Chunks hand over patches inside the encoder, and tokens where the language model begins on a chunk of its own: a
    transfer takes the time of its share of the usual one's bytes.
    """
    images, rules = next(tower.parts), config.rules
    kinds = [_kind(problem, config, device, source, *run, place) for place, run in _runs(config, device, tower, spread)]
    ahead = problem.embedding_forward
    kinds[-1] = replace(
        kinds[-1],
        added_forward=kinds[-1].added_forward + ahead,
        added_backward=kinds[-1].added_backward + ahead * problem.backward_ratio,
    )
    usual = rules.seq_length * config.model.hidden
    number, patches = images.ran
    inside, behind = number * patches * images.spec.hidden / usual, tower.own_tokens / rules.seq_length
    lags = list(problem.lags or (problem.lag,) * (problem.stages * problem.interleaves - 1))
    for place in range(spread.begins):
        lags[place] *= inside if place < len(spread.layers) - 1 else behind
    static = list(problem.static_mib)
    static[0] -= min(static[0], _embedding_mib(config, device)) if source == MemorySource.ESTIMATE else 0.0
    return _in_front(problem, kinds).replace(
        static_mib=tuple(static),
        embedding_forward=0.0,
        lag=max(lags, default=0.0),
        lags=tuple(lags) if len(set(lags)) > 1 else (),
        entries_alone=False,
    )


def _in_front(problem: PipelineProblem, kinds: list[LayerKind]) -> PipelineProblem:
    at = sum(not one.pinned for one in problem.kinds)
    return problem.replace(kinds=(*problem.kinds[:at], *kinds, *problem.kinds[at:]))


def _kind(
    problem: PipelineProblem,
    config: TrainingConfig,
    device: DeviceSpec,
    source: MemorySource,
    name: str,
    count: int,
    costs: TowerCosts,
    place: int = 0,
) -> LayerKind:
    """`count` layers with these costs together, in front of the chunk at a place."""
    body = float(layer_time(config.model, config.model.body_kind, config.strategy, config.rules, device).forward)
    own = source == MemorySource.ESTIMATE
    kept = costs.kept_mib / count if own else 0.0
    forward, backward = costs.forward_ms / body, costs.backward_ms / body
    # The problem's backward is one multiple of all forwards: what is beyond it, or has none, counts apart.
    common = min(forward, backward / problem.backward_ratio) if problem.backward_ratio else 0.0
    return LayerKind(
        name,
        count,
        common / count,
        costs.states_mib / count if own else 0.0,
        dict.fromkeys((NONE, *problem.recompute_ratio, *problem.choices), kept),
        places=(place,) if place else (),
        pinned_first=True,
        choices={name: LayerChoice() for name in problem.choices},
        added_forward=(forward - common) / count,
        added_backward=max(0.0, backward - problem.backward_ratio * common) / count,
    )


def tower_lines(config: TrainingConfig, device: DeviceSpec) -> tuple[str, ...]:
    """A line on each encoder and its inputs; none where the job has none."""
    if config.tower is None:
        return ()
    lines = tuple(_line(config, one, device) for one in config.tower.parts)
    if config.tower.tokens > config.rules.seq_length:
        more = f"; they are {config.tower.tokens:,.0f} tokens, more than a sequence of {config.rules.seq_length:,}"
        lines = (*lines[:-1], lines[-1] + more)
    return lines


def _line(config: TrainingConfig, tower: TowerRun, device: DeviceSpec) -> str:
    costs, many = costs_of(config, tower, device), "s" * (tower.images != 1)
    state = "trained" if tower.trained else "frozen"
    back = f" and {costs.backward_ms:,.4g} ms backward" if tower.trained else ""
    kept = f", {costs.kept_mib:,.0f} MiB kept a micro-batch" if tower.trained else ""
    inputs = f"{tower.images:g} image{many} of {tower.patches:,} patches a sample ({tower.source})"
    if tower.spec.kind == AUDIO:
        seconds = tower.patches / tower.spec.patches_per_s
        inputs = f"{tower.images:g} clip{many} of {seconds:g} s a sample ({tower.source})"
        if not tower.images:
            inputs = f"no sound is stated, so it does not run ({AUDIO_FLAG} states some)"
    assert config.tower is not None
    spread = config.tower.spread_over(config.strategy.pp, config.strategy.vpp)
    where = "on the first stage"
    if spread and tower.spec.kind == AUDIO:
        where = f"with the embedding on chunk {spread.begins}"
    elif spread:
        where = f"layers {spread}, the language model from chunk {spread.begins} on"
    return (
        f"{tower.spec.kind} encoder of {tower.spec.parameters / 1e6:,.0f} M parameters, {state}, {where}: "
        f"{inputs}; {costs.forward_ms:,.4g} ms forward{back} a micro-batch, {costs.states_mib:,.0f} MiB of states{kept}"
    )
