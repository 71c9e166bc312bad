"""Chunks where embedding, head and MTP layers of a job may lie, by what its kind of file can state."""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.time.mtp_entry import MtpEntry
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import run_names
from taylor.pipeline_solver.model.places import settled
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.register.model import MTP

MOST_AHEAD = 4
"""Chunks before the head on which MTP layers are placed one by one: each choice of places is a subproblem."""


def may_stand_alone(config: TrainingConfig) -> bool:
    """Return whether the configuration's kind of file can give embedding, head and MTP layers chunks of their own."""
    return launcher_of(config).mtp_places(config) is not None


def entry_lines(config: TrainingConfig) -> tuple[str, ...]:
    """Line on the places of embedding, head and MTP layers that are tried; none where they are as given."""
    if not may_stand_alone(config) or config.strategy.pp == 1:
        return ()
    names = "embedding and head"
    if MTP not in config.model.layer_counts():
        return (f"{names} may have chunks of their own, as the layout can name them",)
    if _lie_apart(config):
        return (f"{names} may have chunks of their own, each MTP layer lies with the head or on a chunk before it",)
    return (f"{names} may have chunks of their own, MTP layers lie with the head or a chunk before it",)


def _lie_apart(config: TrainingConfig) -> bool:
    """Return whether the plan in the file has MTP layers on several chunks, so that each may be placed on its own."""
    grid = () if config.plan is None else config.plan.layers.get(MTP, ())
    return sum(count > 0 for row in grid for count in row) > 1


def with_mtp_places(problem: PipelineProblem, config: TrainingConfig, device: DeviceSpec) -> PipelineProblem:
    """Problem with the file's MTP layers beside the head or in a chunk before it; what moves with them counts as
    theirs.

    Where the file has them on several chunks, each is a run of its own, up to `MOST_AHEAD` chunks before the head.
    """
    mtp = next((kind for kind in problem.kinds if kind.name == MTP and kind.pinned_last and kind.count), None)
    allowed = launcher_of(config).mtp_places(config)
    last = problem.stages * problem.interleaves - 1
    if mtp is None or allowed is None or problem.stages == 1:
        return problem
    plan = config.plan
    same = plan is not None and (plan.interleaves, plan.stages) == (problem.interleaves, problem.stages)
    own = settled(problem, plan) if plan is not None and same else problem
    places = {last - 1, last, *(place for kind in own.pinned_kinds for place in kind.places)}
    entry = MtpEntry.of(config.model, config.strategy, config.rules, device)
    projections = min(entry.projection_forward, problem.head_forward)
    beside = min(entry.states_mib, problem.static_mib[-1])
    apart = _lie_apart(config)
    copy = min(entry.embedding_mib, beside) if apart else 0.0
    if apart:
        places.update(range(max(0, last - min(mtp.count, MOST_AHEAD)), last))
    kind = replace(
        mtp,
        forward=mtp.forward + projections / mtp.count,
        layer_mib=mtp.layer_mib + (beside - copy) / mtp.count,
        places=tuple(sorted(places.intersection(allowed))),
        hand_over=float(mtp.count),
        shared_mib=copy,
    )
    runs = [replace(kind, name=run, count=1, hand_over=1.0) for run in run_names(MTP, mtp.count)] if apart else [kind]
    return problem.replace(
        kinds=tuple(one for each in problem.kinds for one in (runs if each is mtp else [each])),
        head_forward=problem.head_forward - projections,
        static_mib=(*problem.static_mib[:-1], problem.static_mib[-1] - beside),
    )
