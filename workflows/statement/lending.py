"""Lending between stages as a job requests it: which stage keeps whose activations, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taylor.base.errors import InputError
from taylor.cost_model.choices.lending import LendingCosts, leaves_node, lending_costs
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import NONE, kind_of
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.module_choices import priced_choice

LEND, LEND_OVERLAPPED = "lend", "lend:overlapped"
"""Names of the choices: all that a layer keeps, and the tensors whose transfer its computation overlaps."""
FLAG = "--lend"
MIRROR = "mirror"
"""Each stage of the first half keeps activations on its mirror image in the second one, as BPipe pairs them."""
CURE = f"{FLAG} {MIRROR}, or pairs STAGE:LENDER as in 0:7,1:7; a lender keeps its own activations"


def lenders_of(asked: str, stages: int) -> tuple[int, ...]:
    """The lender of each stage, -1 for none, int [stages]; empty where nothing is requested.

    Raises
    ------
    InputError
        When the text is neither `MIRROR` nor pairs of stages, or a stage that lends is a lender too.
    """
    if not asked:
        return ()
    if asked == MIRROR:
        pairs = [(stage, stages - 1 - stage) for stage in range(stages // 2)]
    else:
        pairs = [_pair(asked, part) for part in asked.split(",")]
    lenders = [-1] * stages
    for stage, lender in pairs:
        if not (0 <= stage < stages and 0 <= lender < stages):
            raise InputError(f"the job has stages 0 to {stages - 1}", field=FLAG, value=asked, cure=CURE)
        if lenders[stage] >= 0:
            raise InputError(f"names stage {stage} twice", field=FLAG, value=asked, cure=CURE)
        lenders[stage] = lender
    both = [lender for lender in lenders if lender >= 0 and lenders[lender] >= 0]
    if both:
        raise InputError(f"stage {both[0]} is a lender and lends away itself", field=FLAG, value=asked, cure=CURE)
    if not pairs:
        raise InputError(f"{stages} stage has no other to lend to", field=FLAG, value=asked, cure="leave it out")
    return tuple(lenders)


def _pair(asked: str, part: str) -> tuple[int, int]:
    stage, _, lender = part.strip().partition(":")
    if not (stage.isascii() and lender.isascii() and stage.isdigit() and lender.isdigit() and len(part) < 20):
        raise InputError("is neither mirror nor pairs of stages", field=FLAG, value=asked, cure=CURE)
    return int(stage), int(lender)


def refuse_writing(config: TrainingConfig) -> None:
    """Refuse to write a plan that lends.

    Raises
    ------
    InputError
    """
    raise InputError(
        f"cannot be written into this {launcher_of(config).title}: no release of any framework keeps activations on "
        "another stage (torchtitan's pull request 4764 would)",
        file=config.path,
        field=FLAG,
        cure="solve with -write n",
    )


def with_lending(
    problem: PipelineProblem, config: TrainingConfig, device: DeviceSpec, lenders: tuple[int, ...]
) -> PipelineProblem:
    """The problem in which stages may keep what layers save on their lenders, any number of layers of each chunk."""
    if not lenders:
        return problem
    pairs = [(stage, lender) for stage, lender in enumerate(lenders) if lender >= 0]
    job = (config.strategy, config.rules, device, pairs)
    body = [kind for kind, count in config.model.body_counts.items() if count]
    costs = {kind: lending_costs(config.model, kind, *job) for kind in body}
    names = [LEND]
    if any(0 < one.overlapped.host_mib < one.everything.host_mib for one in costs.values()):
        # With recompute by chunk, both would have too many undominated counts in a chunk to list.
        names = [LEND, LEND_OVERLAPPED] if problem.uniform_recompute else [LEND_OVERLAPPED]
    kinds = tuple(_with_lending(kind, costs, names, config, problem) for kind in problem.kinds)
    return problem.replace(kinds=kinds, choices=(*problem.choices, *names), lenders=lenders)


def _with_lending(
    kind: LayerKind,
    costs: Mapping[str, LendingCosts],
    names: Sequence[str],
    config: TrainingConfig,
    problem: PipelineProblem,
) -> LayerKind:
    own = kind_of(kind.name) if kind_of(kind.name) in costs else config.model.body_kind
    plain_mib = float(activation_bytes(config.model, own, NONE, config.strategy, config.rules)) / MIB
    activation, choices = dict(kind.activation_mib), dict(kind.choices)
    for name in names:
        cost = costs[own].overlapped if name == LEND_OVERLAPPED else costs[own].everything
        activation[name], one = priced_choice(kind, cost, plain_mib, max(1.0, problem.layers / problem.stages))
        choices[name] = replace(one, host_mib=0.0, lent_mib=one.host_mib)
    return replace(kind, activation_mib=activation, choices=choices)


def lending_assumptions(config: TrainingConfig, device: DeviceSpec, lenders: tuple[int, ...]) -> list[str]:
    """Sentence for the values behind the cost of lending; none where nothing is lent."""
    pairs = [(stage, lender) for stage, lender in enumerate(lenders) if lender >= 0]
    if not pairs:
        return []
    out = [pair for pair in pairs if leaves_node(pair, config.strategy, device)]
    way = "between nodes" if out else "inside a node"
    return [
        f"lending: over the link {way}, a layer's transfers beside one layer's computation, of nothing else; lenders "
        "compute no slower and reserve memory for the whole step"
    ]
