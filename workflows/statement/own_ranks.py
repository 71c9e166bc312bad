"""An encoder of images on ranks of its own: the splits of the ranks, and the pipeline problem of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.cost_model.choices.tower_costs import tower_costs
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.tower import TowerRun
from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.step import layer_time
from taylor.dryrun.estimate import estimate_memory
from taylor.nd_search.stated import broken_rules
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import NONE
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, OPTIMAL, PROVEN_GAP, proven_within
from taylor.register.device import DeviceSpec
from taylor.register.tower import VISION
from taylor.workflows.statement.options import NESTED
from taylor.workflows.statement.problem import build_problem
from taylor.workflows.statement.stated_file import StatedFile
from taylor.workflows.statement.time_ratios import settle_ratios
from taylor.workflows.statement.towers import flag_of_inputs

FLAG, SPREAD, BESIDE, BUBBLES, BEST = "--encoder", "spread", "beside", "bubbles", "best"
PLACES = (NESTED, SPREAD, BESIDE, BUBBLES, BEST)
"""Places of an encoder: the first stage, or as the file has it; several of the first ones; ranks of its own; the
pipeline's bubbles; all of them compared."""
_WHERE = {SPREAD: "on several stages", BUBBLES: "in the pipeline's bubbles"}


@dataclass(frozen=True)
class RankSplit:
    """A split of a job's ranks.

    Parameters
    ----------
    ranks : int
        Ranks of the encoder; each runs whole images.
    strategy : Strategy
        Degrees of the language model on the others, without virtual stages.
    """

    ranks: int
    strategy: Strategy

    @property
    def share(self) -> float:
        """Replicas of the language model for each rank of the encoder."""
        return self.strategy.dp / self.ranks

    def __str__(self) -> str:
        model = self.strategy
        return (
            f"{self.ranks} of {self.ranks + model.world_size} ranks, DP{model.dp} TP{model.tp} PP{model.pp} behind it"
        )


@dataclass(frozen=True)
class BesidePlan:
    """The best plan with an encoder on ranks of its own.

    Parameters
    ----------
    split : RankSplit
    step_ms, bound_ms : float
        Its step, and a proven lower bound over all splits that were considered.
    layers : tuple of int
        Layers of the language model by stage, the encoder's stage left out.
    peak_mib : tuple of float
        Peak memory by stage, the encoder's first.
    splits, solved : int
        Splits that start, and those of them that had to be solved.
    schedule : str
    """

    split: RankSplit
    step_ms: float
    bound_ms: float
    layers: tuple[int, ...]
    peak_mib: tuple[float, ...]
    splits: int
    solved: int
    schedule: str

    def to_dict(self, unit_ms: float, note: str) -> dict[str, object]:
        """As a variant of a job whose unit takes `unit_ms`."""
        return {
            "name": f"encoder on {self.split}",
            "interleaves": 1,
            "schedule": self.schedule,
            "status": OPTIMAL if self.proven else FEASIBLE,
            "objective": self.step_ms / unit_ms,
            "bound": self.bound_ms / unit_ms,
            "note": note,
        }

    @property
    def proven(self) -> bool:
        """Return whether no other split or plan takes less."""
        # The bound and the step are of two solves, each with its gap.
        return proven_within(self.step_ms, self.bound_ms, 2 * PROVEN_GAP)

    def sentence(self, nested_ms: float) -> str:
        """The plan beside one with the encoder on the first stage, of a step of `nested_ms`."""
        gap = 100 * (1 - self.bound_ms / self.step_ms)
        proof = "proven the best" if self.proven else f"at most {gap:.1f} % above the best"
        gain = 100 * (1 - self.step_ms / nested_ms)
        than = f"{gain:.1f} % faster" if gain > 0 else f"{-gain:.1f} % slower"
        layers = "+".join(map(str, self.layers))
        return (
            f"{self.step_ms:,.0f} ms a step with the encoder on {self.split}, layers {layers}: {than} than on the "
            f"first stage; {proof} of {self.splits} splits; no file states one"
        )


def require_place(encoder: str) -> str:
    """The place of an encoder, one of `PLACES`.

    Raises
    ------
    InputError
        When it is none.
    """
    if encoder not in PLACES:
        cure = f"use {', '.join(PLACES[:-1])} or {PLACES[-1]}"
        raise InputError("is no place of an encoder", field=FLAG, value=encoder, cure=cure)
    return encoder


def refuse_places(file: StatedFile, source: MemorySource = MemorySource.ESTIMATE) -> None:
    """Refuse to place an encoder elsewhere than on the first stage where there is none, or its memory is unknown.

    Parameters
    ----------
    source : MemorySource, optional
        Of the job's memory, once it is known.

    Raises
    ------
    InputError
        When the job has no encoder, or one without an input, or what it rests on covers its own strategy alone.
    """
    path, asked = file.config.path, file.job.encoder
    if asked == NESTED:
        return
    cure = f"leave out {FLAG} {asked}"
    what = _WHERE.get(asked, "on ranks of its own")
    if flag := flag_of_inputs(file.config):
        problem = f"asks for an encoder {what}, and the job's has no input"
        raise InputError(problem, file=path, field=FLAG, value=asked, cure=f"state some by {flag}, or {cure}")
    if file.config.tower is None:
        problem = f"asks for an encoder {what}, and none is known of this job"
        raise InputError(problem, file=path, field=FLAG, value=asked, cure=cure)
    if asked == SPREAD and (why := why_not_spread(file)):
        raise InputError(f"asks for an encoder {what}: {why}", file=path, field=FLAG, value=asked, cure=cure)
    if source != MemorySource.ESTIMATE or file.stages is not None:
        does = "puts the encoder on every stage" if asked == BUBBLES else "splits the ranks differently"
        does = "moves the embedding" if asked == SPREAD else does
        problem = f"{does}, and a given memory profile or list of devices covers the file's split"
        raise InputError(problem, file=path, field=FLAG, value=asked, cure=cure)


def why_not_spread(file: StatedFile) -> str:
    """Why a job's encoder cannot lie on several stages; empty where it can."""
    tower = file.config.tower
    if tower is None or tower.spreadable is None:
        return "its launcher cannot state that"
    return tower.spreadable or ("there is one stage" if file.config.strategy.pp == 1 else "")


def splits_of(file: StatedFile) -> Iterator[RankSplit]:
    """The splits of a job's ranks with its TP, CP, EP and micro-batch, with which its framework starts."""
    config, own = file.config, file.config.strategy
    each, batch = own.tp * own.cp, own.global_batch
    for pp in range(1, min(own.pp, config.model.n_layers) + 1):
        for dp in range(1, (own.world_size - 1) // (each * pp) + 1):
            if batch % (dp * own.mbs):
                continue
            op = dp * own.cp if own.op == own.dp * own.cp else own.op
            strategy = own.replace(pp=pp, dp=dp, op=op, vpp=1, micro_batches=batch // (dp * own.mbs))
            if (dp * own.cp) % op or broken_rules(behind(config, strategy), file.device, file.job.allow_illegal):
                continue
            yield RankSplit(own.world_size - strategy.world_size, strategy)


def behind(config: TrainingConfig, strategy: Strategy) -> TrainingConfig:
    """The job of the language model alone, with a strategy and no plan."""
    alone = without_tower(config).replace(
        strategy=strategy, plan=None, by_module=None, stage_devices=(), open_ranks=None
    )
    return alone.replace(schedule=alone.schedule_for(1))


def without_tower(config: TrainingConfig) -> TrainingConfig:
    """The job without its encoder."""
    model, tower = config.model, config.tower
    if tower is not None and tower.counted_parameters:
        model = model.replace(extra_parameters=model.extra_parameters - tower.counted_parameters, tower=None)
    return config.replace(model=model, tower=None)


def beside_problem(file: StatedFile, tower: TowerRun, split: RankSplit) -> PipelineProblem:
    """The pipeline with the encoder as its first stage, on ranks of its own.

    Its ranks share the images of all replicas: a micro-batch takes them its time by the ranks of one replica. Where
    several share one micro-batch, whole images are split, and the first result comes later by the rest.
    """
    device, config = file.device, behind(file.config, split.strategy)
    memory, ratios = estimate_memory(config, device), settle_ratios(file.job.ratios, config, device).ratios
    problem = build_problem(config, memory, ratios, device=device)
    encoder = tower.unsplit()
    ranks = split.strategy.replace(dp=split.ranks, tp=1, cp=1, ep=1, pp=split.strategy.pp + 1)
    ranks = ranks.replace(op=split.ranks if split.strategy.op > 1 else 1)
    costs = tower_costs(encoder, ranks, config.rules, device)
    body = float(layer_time(config.model, config.model.body_kind, split.strategy, config.rules, device).forward)
    forward, count = costs.forward_ms / body, tower.spec.n_layers
    together = max(1.0, min(1 / split.share, float(int(tower.fewest * split.strategy.mbs))))
    late = max(0.0, forward / together - forward * split.share)
    kind = LayerKind(
        VISION,
        count,
        0.0,
        costs.states_mib / count,
        dict.fromkeys((NONE, *problem.recompute_ratio), costs.kept_mib * min(1.0, split.share) / count),
        pinned_first=True,
        added_forward=forward * split.share / count,
        added_backward=costs.backward_ms / body * split.share / count,
    )
    lags = problem.lags or (problem.lag,) * (problem.stages - 1)
    lag = lags[0] if lags else _lag(file, split, device)
    shifted = [replace(one, places=tuple(at + 1 for at in one.places)) for one in problem.kinds]
    at = sum(not one.pinned for one in shifted)
    tail = (0.0 if not tower.any_trained else problem.tail[0], *problem.tail) if problem.tail else ()
    return problem.replace(
        stages=problem.stages + 1,
        kinds=(*shifted[:at], kind, *shifted[at:]),
        static_mib=(memory.static_middle_mib, *problem.static_mib),
        limit_mib=(problem.limit_mib[0], *problem.limit_mib),
        lags=(lag + late, *lags),
        lag=max([lag + late, *lags]),
        tail=tail,
        fixed_layers={(0, 0): 0},
    )


def _lag(file: StatedFile, split: RankSplit, device: DeviceSpec) -> float:
    """Transfer between the encoder and a model on one stage, in body-layer forwards: as between two stages."""
    two = behind(file.config, split.strategy.replace(pp=2))
    return settle_ratios(file.job.ratios, two, device).ratios.lag
