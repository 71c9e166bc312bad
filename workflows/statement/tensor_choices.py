"""Adds choices by saved tensor to a pipeline problem: some kept, some made again, some on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.cost_model.choices.layer_graph import LayerGraph
from taylor.cost_model.choices.module_choices import ModuleCost, spread
from taylor.cost_model.choices.operator_times import with_times
from taylor.cost_model.choices.tensor_sets import LayerTimes, TensorSet, tensor_front
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.time.step import layer_time
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, kind_of
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.dryrun_backend import beyond_stage_model
from taylor.workflows.statement.module_choices import priced_choice, unchanged_by, with_host_limit
from taylor.workflows.statement.problem import uniform_choices

FLAG = "--tensors"
MOST_SETS = 4
"""Sets of tensors that a kind of layer is offered at most; more make solves longer and plans little better."""


@dataclass(frozen=True)
class TensorChoices:
    """Sets of tensors by kind of layer, by rising time, and the layers that they are of.

    A kind through which no gradient passes saves nothing and has no sets.
    """

    sets: Mapping[str, Sequence[TensorSet]]
    graphs: Mapping[str, LayerGraph]
    times: Mapping[str, LayerTimes]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the choices: a kind with fewer sets has its last one under the rest of them."""
        return tuple(f"tensors_{number + 1}" for number in range(max(map(len, self.sets.values()), default=0)))

    def cost(self, kind: str, number: int) -> ModuleCost:
        """Cost of a choice in a layer of a kind."""
        one, times = self.sets[kind][min(number, len(self.sets[kind]) - 1)], self.times[kind]
        ahead, behind = times.added(one.again_ms, one.host_mib)
        link = 0.0 if times.mib_per_ms is None else one.host_mib / times.mib_per_ms
        return ModuleCost(
            float(ahead) / times.forward,
            float(behind) / times.forward,
            link / times.forward,
            one.kept_mib,
            one.host_mib,
        )

    def lines(self) -> list[str]:
        """A line for each set of a kind: its time, its memory and its tensors."""
        return [
            f"{name} of {kind} layers: {_text(one, self.graphs[kind])}"
            for kind in self.sets
            for name, one in zip(self.names, self.sets[kind], strict=False)
        ]


def _text(one: TensorSet, graph: LayerGraph) -> str:
    """A set in words."""
    figures = (
        f"{one.added_ms:,.3g} ms more, keeps {one.kept_mib:,.0f} of {graph.kept_mib:,.0f} MiB, {one.host_mib:,.0f} on "
        "the host"
    )
    return figures + _named(graph, "; made again: ", one.again) + _named(graph, "; moved: ", one.moved)


def _named(graph: LayerGraph, words: str, tensors: Sequence[int]) -> str:
    """Tensors by the operators that make them."""
    made = graph.producer
    names = [f"{graph.operators[made[one]].name} {made[one]}" if one in made else "input" for one in tensors]
    return words + ", ".join(names) if names else ""


def refuse_tensors(config: TrainingConfig, *, several_devices: bool) -> None:
    """Refuse choices by tensor of a job whose layers the stage model of torch cannot run.

    Raises
    ------
    InputError
    """
    from taylor.dryrun.torch_backend import require_torch  # its data models take time

    require_torch(FLAG, "y")
    beyond = beyond_stage_model(config.replace(tower=None))
    if several_devices:
        beyond = beyond or "stages on several kinds of devices"
    if beyond:
        problem = f"lists tensors of layers that torch's stage model runs for one kind of device; this job has {beyond}"
        raise InputError(problem, file=config.path, field=FLAG, value="y", cure=f"leave out {FLAG}")


def refuse_writing_tensors(config: TrainingConfig) -> None:
    """Refuse to write a plan that chooses by tensor.

    Raises
    ------
    InputError
    """
    raise InputError(
        f"cannot be written into this {launcher_of(config).title}: no release of any framework keeps, recomputes or "
        "offloads tensors one by one (torchtitan's pull request 3943 would)",
        file=config.path,
        field=FLAG,
        cure="solve with -write n",
    )


def tensor_choices(config: TrainingConfig, device: DeviceSpec) -> TensorChoices:
    """The sets that a job's layers are offered: those between which the front of all has its largest steps."""
    from taylor.dryrun.torch_stage.saved_graph import layer_graph  # torch takes seconds

    model, strategy, rules = config.model, config.strategy, config.rules
    link = device.host_link_gb_s
    rate = None if link is None else 1e6 * HOST_LINK_SHARE * link / MIB
    sets: dict[str, Sequence[TensorSet]] = {}
    graphs: dict[str, LayerGraph] = {}
    times: dict[str, LayerTimes] = {}
    for kind in [kind for kind, count in model.body_counts.items() if count]:
        time = layer_time(model, kind, strategy, rules, device)
        graph = layer_graph(model, kind, strategy, rules)
        graph = with_times(graph, model, kind, (strategy, rules, device), float(time.recompute[FULL]))
        beside = LayerTimes(float(time.forward), float(time.backward), rate)
        front = [one for one in tensor_front(graph, beside) if one.again or one.moved]
        sets[kind] = [one for _, _, one in spread([(one.added_ms, one.kept_mib, one) for one in front], MOST_SETS)]
        graphs[kind], times[kind] = graph, beside
    return TensorChoices(sets, graphs, times)


def with_tensor_choices(
    problem: PipelineProblem, config: TrainingConfig, device: DeviceSpec, found: TensorChoices | None
) -> PipelineProblem:
    """Problem with the choices by tensor behind its others; a rule of one choice for all chunks holds for them too."""
    if found is None or not found.names:
        return problem
    per_stage = max(1.0, problem.layers / problem.stages)
    kinds = tuple(_with_sets(kind, config, found, per_stage) for kind in problem.kinds)
    choices = (*problem.choices, *found.names)
    uniform = uniform_choices(config, (*problem.searched_modes, *found.names))
    return with_host_limit(problem.replace(kinds=kinds, choices=choices, uniform_recompute=uniform), device)


def _with_sets(kind: LayerKind, config: TrainingConfig, found: TensorChoices, per_stage: float) -> LayerKind:
    own = kind_of(kind.name) if kind_of(kind.name) in found.sets else config.model.body_kind
    if not found.sets[own]:
        return unchanged_by(kind, found.names)
    activation, choices = dict(kind.activation_mib), dict(kind.choices)
    for number, name in enumerate(found.names):
        cost = found.cost(own, number)
        activation[name], choices[name] = priced_choice(kind, cost, found.graphs[own].kept_mib, per_stage)
    return replace(kind, activation_mib=activation, choices=choices)
