"""An encoder of images on several of the first stages: the ways to spread it, and the plan that is the best of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taylor.cost_model.choices.tower_costs import costs_behind, tower_costs
from taylor.cost_model.job.tower import Spread
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, OPTIMAL, PROVEN_GAP, proven_within
from taylor.workflows.statement.stated_file import StatedFile

WRITTEN = "image_encoder.vision_encoder.pipeline_num_layers"
VIRTUAL = "--virtual-pipeline-model-parallel-size"


@dataclass(frozen=True)
class SpreadPlan:
    """The best plan with an encoder on several stages, beside the one with it on the first.

    Parameters
    ----------
    spread : Spread or None
        Chunks of the encoder; None where no way is faster than the first stage.
    step_ms, nested_ms, bound_ms : float
        Its step, that with the encoder on the first stage, and a proven lower bound over all ways and that one.
    layers : tuple of tuple of int
        Layers of the language model by virtual stage and stage.
    ways, solved : int
        Ways that were compared, and those of them that had to be solved.
    schedule : str
    """

    spread: Spread | None
    step_ms: float
    nested_ms: float
    bound_ms: float
    layers: tuple[tuple[int, ...], ...]
    ways: int
    solved: int
    schedule: str

    def to_dict(self, unit_ms: float, note: str) -> dict[str, object]:
        """As a variant of a job whose unit takes `unit_ms`."""
        return {
            "name": f"encoder's layers {self.spread}" if self.spread else "encoder on several stages",
            "interleaves": len(self.layers),
            "schedule": self.schedule,
            "status": OPTIMAL if self.proven else FEASIBLE,
            "objective": self.step_ms / unit_ms,
            "bound": self.bound_ms / unit_ms,
            "note": note,
        }

    @property
    def proven(self) -> bool:
        """Return whether no other way takes less."""
        return proven_within(self.step_ms, self.bound_ms, 2 * PROVEN_GAP)

    def sentence(self, nested_ms: float) -> str:
        """The plan beside one with the encoder on the first stage, of a step of `nested_ms`."""
        gap = 100 * (1 - self.bound_ms / self.step_ms)
        proof = "proven the best" if self.proven else f"at most {gap:.1f} % above the best"
        if self.spread is None:
            return f"no faster on several stages than on the first one; {proof} of {self.ways} ways"
        lists = [self.spread.rows(), [list(row) for row in self.layers]]
        encoder, language = (json.dumps(rows[0] if len(rows) == 1 else rows) for rows in lists)
        virtual = f" with {VIRTUAL} {len(self.layers)}" if len(self.layers) > 1 else ""
        gain = 100 * (1 - self.step_ms / nested_ms)
        return (
            f"{self.step_ms:,.0f} ms a step with the encoder's layers {self.spread}: {gain:.1f} % faster than on the "
            f"first stage; {proof} of {self.ways} ways; "
            f"{WRITTEN} {encoder}, text_decoder.pipeline_num_layers {language}{virtual}"
        )


def spread_as(file: StatedFile, spread: Spread | None) -> StatedFile:
    """The job with its encoder on these chunks; on the first one for None."""
    of = file.running
    assert of.tower is not None
    return replace(file, running=of.replace(tower=replace(of.tower, spread=spread)))


def ways_of(file: StatedFile) -> Iterator[Spread]:
    """The ways to spread a job's encoder that are compared: every number of chunks, and every number of layers on the
    last of them, in front of the language model; the chunks before it share the others evenly by their times.

    Layers of a frozen encoder have no backward on the first chunk, which so takes more of them.
    """
    config, strategy = file.running, file.running.strategy
    assert config.tower is not None
    images, layers = next(config.tower.parts), config.tower.spec.n_layers
    chunks, body = strategy.pp * strategy.vpp, sum(config.model.body_counts.values())
    of = (images, strategy, config.rules, file.device)
    first, behind = (costs.forward_ms + costs.backward_ms for costs in (tower_costs(*of), costs_behind(*of)))
    for lead in range(1, min(chunks, layers) + 1):
        times = [first, *[behind] * (lead - 1)]
        if lead < chunks and chunks - lead <= body:  # the language model begins on a chunk of its own
            yield Spread(strategy.pp, strategy.vpp, _shares(layers, times), lead)
        for last in range(1, layers - lead + 2 if lead > 1 and chunks - lead < body else 0):
            yield Spread(strategy.pp, strategy.vpp, (*_shares(layers - last, times[:-1]), last), lead - 1)


def _shares(total: int, times: Sequence[float]) -> tuple[int, ...]:
    """`total` layers on chunks where one takes `times`, at least one each, so that the busiest has the least."""
    shares = [1] * len(times)
    for _ in range(total - len(times)):
        shares[min(range(len(times)), key=lambda place: (shares[place] + 1) * times[place])] += 1
    return tuple(shares)


def least_step(problem: PipelineProblem, spread: Spread) -> float:
    """Lower bound of the step of a way, body-layer forwards.

    Without virtual stages the stages in front of the embedding hold the encoder alone: each does its work, and the
    others do all the rest, between the first forward and the last backward of those in front.
    """
    least, lead = least_step_time(problem), spread.begins
    if problem.interleaves > 1 or problem.lenders or not lead:
        return least
    ahead = [kind for kind in problem.kinds if kind.pinned_first and problem.places_of(kind)[0] < lead]
    works = [kind.count * (kind.forward * (1 + problem.backward_ratio) + sum(kind.added)) for kind in ahead]
    kinds = tuple(
        replace(kind, places=tuple(at - lead for at in kind.places if at > lead or not kind.pinned_first))
        for kind in problem.kinds
        if kind not in ahead
    )
    rest = problem.replace(
        stages=problem.stages - lead,
        kinds=kinds,
        static_mib=problem.static_mib[lead:],
        limit_mib=problem.limit_mib[lead:],
        host_limit_mib=(),
        lags=(),
        lag=0.0,
        tail=problem.tail[lead:],
        fixed_layers={},
        max_layers={},
    )
    return max(least, problem.micro_batches * max(works), sum(works) + least_step_time(rest))
