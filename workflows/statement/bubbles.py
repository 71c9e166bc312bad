"""An encoder in the bubbles of the language model's pipeline: its work on the ranks of a stage, and the problem.

Every stage has a whole encoder. Its micro-batches are spread over the stages; one lies on the ranks of one stage, as
TP splits the encoder in the file, or with whole images on each of these ranks. No launcher's file states such a plan:
Megatron-LM lays modules on the same ranks without a pipeline alone (d98e8a64 megatron/core/models/mimo/config/role.py:
92-101, ``_colocated``), and MindSpeed-MM lays an encoder's layers on chunks (`parsers.megatron.tower_file`).
"""

from __future__ import annotations

from dataclasses import dataclass

from taylor.cost_model.choices.tower_costs import tower_costs
from taylor.cost_model.job.tower import TowerRun
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.network.collectives import all_reduce_ms, gather_ms
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.insertion import EncoderWork, Insertion
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, OPTIMAL, PROVEN_GAP, proven_within
from taylor.register.device import DeviceSpec
from taylor.register.tower import VISION
from taylor.workflows.statement.own_ranks import without_tower

WORDS = "no launcher's file states one"


@dataclass(frozen=True)
class BubbleJob:
    """A way to run the encoder on the ranks of every stage.

    Parameters
    ----------
    name : str
        In words, for the log.
    work : EncoderWork
    problem : PipelineProblem
        The language model alone; its stages' memory and tails have the encoder's states and the reduction of its
        gradients over all ranks in them.
    """

    name: str
    work: EncoderWork
    problem: PipelineProblem

    def with_kept(self, micro_batches: int) -> PipelineProblem:
        """The problem that leaves memory for some of the encoder's micro-batches on every stage."""
        more = micro_batches * self.work.kept_mib
        return self.problem.replace(static_mib=tuple(mib + more for mib in self.problem.static_mib))

    @property
    def least_step(self) -> float:
        """Lower bound on the step by the work of all stages."""
        problem = self.problem
        alone = sum(
            kind.count * (kind.forward * (1 + problem.backward_ratio) + sum(kind.added)) for kind in problem.kinds
        )
        alone += (problem.head_forward + problem.embedding_forward) * (1 + problem.backward_ratio)
        work = problem.micro_batches * (alone + self.work.time)
        return (work + sum(problem.tail)) / problem.stages


@dataclass(frozen=True)
class BubblePlan:
    """The best plan with an encoder in bubbles; times in body-layer forward times.

    Parameters
    ----------
    job : BubbleJob
    plan : PipelinePlan
        Of the language model.
    insertion : Insertion
    alone : float
        Step of the language model by this plan, without the encoder.
    bound : float
        Proven lower bound over all plans of the language model, ways and insertions.
    peak_mib : tuple of float [S]
        Peak of each stage with the encoder's states, without what its micro-batches keep.
    """

    job: BubbleJob
    plan: PipelinePlan
    insertion: Insertion
    alone: float
    bound: float
    peak_mib: tuple[float, ...]

    @property
    def unit_ms(self) -> float:
        """Real time of a unit, 1 where it is not known."""
        return self.job.problem.unit_ms or 1.0

    @property
    def step_ms(self) -> float:
        """Step time, ms."""
        return self.insertion.step * self.unit_ms

    @property
    def proven(self) -> bool:
        """Return whether no other plan of this kind takes less."""
        return proven_within(self.insertion.step, self.bound, PROVEN_GAP)

    def to_dict(self, unit_ms: float, note: str) -> dict[str, object]:
        """As a variant of a job whose unit takes `unit_ms`."""
        return {
            "name": "encoder in bubbles",
            "interleaves": self.plan.interleaves,
            "schedule": self.job.problem.schedule.name,
            "status": OPTIMAL if self.proven else FEASIBLE,
            "objective": self.step_ms / unit_ms,
            "bound": self.bound * self.unit_ms / unit_ms,
            "note": note,
            "insertion": {
                "delay": self.insertion.delay,
                "layers": {kind: [list(row) for row in grid] for kind, grid in self.plan.layers.items()},
                "recompute": {mode: [list(row) for row in grid] for mode, grid in self.plan.recompute.items()},
                "peak_memory": list(self.peak_mib),
                "runs": [
                    [run.stage, run.start, run.micro_batch, run.direction, run.pieces] for run in self.insertion.runs
                ],
            },
        }

    def sentence(self, nested_ms: float) -> str:
        """The plan beside one with the encoder on the first stage, of a step of `nested_ms`."""
        gap = 100 * (1 - self.bound / self.insertion.step)
        proof = "proven the best" if self.proven else f"at most {gap:.1f} % above the best"
        gain = 100 * (1 - self.step_ms / nested_ms)
        than = f"{gain:.1f} % faster" if gain > 0 else f"{-gain:.1f} % slower"
        behind = max(0.0, self.insertion.step - self.insertion.delay - self.alone)
        stages = "+".join(map(str, self.insertion.micro_batches_by_stage(self.plan.stages)))
        chunks = "/".join("+".join(map(str, row)) for row in self.plan.total_layers())
        return (
            f"{self.step_ms:,.0f} ms a step with the encoder in bubbles, {self.job.name}: the language model's "
            f"{self.alone * self.unit_ms:,.0f} ms begin {self.insertion.delay * self.unit_ms:,.0f} ms later, and "
            f"{behind * self.unit_ms:,.0f} ms follow; micro-batches by stage {stages}, layers {chunks}: {than} than on "
            f"the first stage; {proof}; {WORDS}"
        )


def bubble_jobs(config: TrainingConfig, problem: PipelineProblem, device: DeviceSpec) -> list[BubbleJob]:
    """The ways to run a job's encoder in bubbles.

    Parameters
    ----------
    problem : PipelineProblem
        The job's, with the encoder on the first stage, from estimated memory.
    """
    tower, strategy = config.tower, config.strategy
    assert tower is not None
    kinds = tuple(kind for kind in problem.kinds if kind.name != VISION)
    static = list(problem.static_mib)
    static[0] -= _counted_mib(config, device)
    alone = problem.replace(kinds=kinds, static_mib=tuple(static))
    ranks = strategy.tp * strategy.cp
    ways = {"as TP splits it": (tower, strategy.tp if tower.split else 1, 1)}
    together = min(ranks, max(1, int(tower.fewest * strategy.mbs)))
    if together > 1:
        ways[f"whole images on {together} ranks of a stage"] = (tower.unsplit(), 1, together)
    return [_job(name, config, alone, device, *way) for name, way in ways.items()]


def _job(
    name: str,
    config: TrainingConfig,
    problem: PipelineProblem,
    device: DeviceSpec,
    tower: TowerRun,
    split: int,
    together: int,
) -> BubbleJob:
    """The way in which `split` ranks share a layer, and `together` ranks the images of a micro-batch."""
    rules, strategy = config.rules, config.strategy
    copies = strategy.world_size // split
    ranks = strategy.replace(dp=copies, tp=split, cp=1, ep=1, op=copies if strategy.op > 1 else 1)
    costs = tower_costs(tower, ranks, rules, device)
    body = float(layer_time(config.model, config.model.body_kind, strategy, rules, device).forward)
    tokens = tower.tokens * strategy.mbs
    results = problem.micro_batches * tokens * config.model.hidden * rules.compute_bytes / MIB
    static = [mib + costs.states_mib for mib in problem.static_mib]
    static[0] += results / (strategy.tp if strategy.sp else 1)
    tail = _reduction_ms(tower, split, copies, config, device) / body if tower.any_trained else 0.0
    tails = [one + tail for one in problem.tail or (0.0,) * problem.stages]
    lag = max(problem.lags or (problem.lag,)) * tower.tokens / rules.seq_length if problem.stages > 1 else 0.0
    work = EncoderWork(
        tower.spec.n_layers,
        costs.forward_ms / body / together / tower.spec.n_layers,
        costs.backward_ms / body / together / tower.spec.n_layers,
        lag,
        costs.kept_mib / together,
    )
    return BubbleJob(name, work, problem.replace(static_mib=tuple(static), tail=tuple(tails)))


def _reduction_ms(tower: TowerRun, split: int, copies: int, config: TrainingConfig, device: DeviceSpec) -> float:
    """Reduction of the encoder's gradients over all its copies, and the weights that come back, beside nothing, ms."""
    rules, share = config.rules, Speed.of(device, config.rules).network
    parameters = sum(one.spec.parameters for one in tower.parts if one.trained) / split
    if not rules.parallel_optimizer:
        return float(all_reduce_ms(parameters * rules.gradient_bytes, copies, split, device, share))
    moved = parameters * (rules.gradient_bytes + rules.compute_bytes)
    return float(gather_ms(moved, copies, split, device, share))


def _counted_mib(config: TrainingConfig, device: DeviceSpec) -> float:
    """States of the encoder that the estimate of the first stage has in it, MiB."""
    if config.tower is None or not config.tower.counted_parameters:
        return 0.0
    whole, alone = (estimate_memory(one, device) for one in (config.replace(tower=None), without_tower(config)))
    return whole.static_first_mib - alone.static_first_mib
