"""Peak of one stage's tensors under one plan, over the moments of a micro-batch's backward.

`statics` and `backward_workspace` have one figure for every plan of a strategy, which the solver needs: the most of
each part, as if they met. In a plan they follow each other. The loss is over when the last layer's backward begins; a
layer's backward finds the activations of the layers before it alone; the embedding's gradient comes when they are all
gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from taylor.cost_model.job.parameters import ParameterGroups
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.alive import alive_micro_batches, heavy_backwards
from taylor.cost_model.memory.backward_workspace import entering_bytes, keeps_gradients, kind_workspace_bytes
from taylor.cost_model.memory.states import group_bytes
from taylor.cost_model.memory.statics import (
    HOST_BUFFERS,
    body_groups,
    embedding_groups,
    gathered_bytes,
    head_groups,
    kept_bytes,
    layer_input_bytes,
    logits_bytes,
    makes_gradients_late,
    passes_weights,
    postponed_gradient_bytes,
    stays_whole,
)
from taylor.pipeline.alive import BackwardStart
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.adapters import EMBEDDING, HEAD
from taylor.register.model import ModelSpec, kind_of

Layer = tuple[str, str]
"""Kind and recompute mode."""


@dataclass(frozen=True)
class Block:
    """Parameters that FSDP gathers and reduces together: a layer, the embedding or the head; bytes of a rank.

    Parameters
    ----------
    whole : float
        Gathered for its use, as GEMMs take them; 0 where it stays gathered, among the stage's weights
        (`statics.stays_whole`).
    pending : float
        Their new gradients before they are reduced.
    reducing : float
        The same in the type of the reduction.
    shard : float
        Gradients that the block's backward leaves where the step began without (`StateRules.fresh_gradients`).
    """

    whole: float = 0.0
    pending: float = 0.0
    reducing: float = 0.0
    shard: float = 0.0


@dataclass(frozen=True)
class PlanPeak:
    """Peak of one stage under one plan, bytes.

    Parameters
    ----------
    model, strategy, rules, plan, schedule
        The job, its plan, and the order that it runs in with `strategy.vpp` virtual stages.
    stage : int
    on_host : mapping of kind to float
        Bytes that a layer without full recompute moves to the host.
    """

    model: ModelSpec
    strategy: Strategy
    rules: TrainingRules
    plan: PipelinePlan
    schedule: ScheduleSpec
    stage: int
    on_host: Mapping[str, float]

    def bytes(self) -> float:
        """Most that is alive beside weights, optimizer states and gradients that are there before the step."""
        running = self.schedule.for_interleaves(self.strategy.vpp, self.rules.framework)
        starts = heavy_backwards(running, self.strategy.pp, self.strategy.vpp, self.strategy.micro_batches)
        postponed = float(postponed_gradient_bytes(self.model, self.strategy, self.rules, self.schedule))
        if self.rules.inputs_on_host:
            postponed += HOST_BUFFERS * float(layer_input_bytes(self.model, self.strategy, self.rules))
        return postponed + max([*map(self._most, starts[self.stage]), *self._behind_forwards(running)])

    def _behind_forwards(self, running: ScheduleSpec) -> Iterator[float]:
        """Bytes that are alive behind a forward; where weight gradients are separate, one may come before a backward.

        Of whole gradients none is missing: such a weight gradient is behind a backward.
        """
        if running.traits.split_backward:
            counts = alive_micro_batches(running, self.strategy.pp, self.strategy.vpp, self.strategy.micro_batches)
            yield from (self._kept_by(alive) + self._transfers(alive) for alive in counts[self.stage])

    def _kept_by(self, alive: Sequence[float]) -> float:
        """Bytes that micro-batches keep, of every virtual stage as many as are alive."""
        return sum(count * sum(map(self.kept, self._layers[v])) for v, count in enumerate(alive))

    def _most(self, start: BackwardStart) -> float:
        """Most that is alive during one backward, bytes."""
        missing = 0.0
        if self._makes_whole:
            missing = sum(
                block.reducing for v, begun in enumerate(start.begun) if not begun for block in self._blocks(v)
            )
        most = max(self._moments(start), default=0.0)  # a chunk without layers has no moment of its own
        return self._kept_by(start.alive) - missing + self._transfers(start.alive) + most

    def _moments(self, start: BackwardStart) -> Iterator[float]:
        """Bytes of every moment of a backward, beside what all micro-batches keep."""
        v = start.interleave
        layers, blocks = self._layers[v], self._blocks(v)
        own = min(1.0, start.alive[v]) if self.schedule.seq_splits == 1 else 1 / self.schedule.seq_splits
        new = [self._new(block, first=not start.begun[v]) for block in blocks]
        if self._last(v):
            yield self._at_loss()
            yield self._behind_head(blocks)
        gone, made = 0.0, new[-1] if self._last(v) else 0.0
        for place in reversed(range(len(layers))):
            at = place + self._first(v)
            last = place == len(layers) - 1
            incoming = 0.0 if last and self.strategy.pp > 1 else self._boundary
            yield made - gone + incoming + self._needs(layers[place]) + self._passing(blocks, at)
            gone += own * self.kept(layers[place])
            made += new[at]
        if self._first(v):
            yield made - gone + self._at_embedding(blocks)

    def _blocks(self, v: int) -> list[Block]:
        """A virtual stage's blocks in order, embedding and head among them."""
        layers = [self._block(layer) for layer in self._layers[v]]
        return [*([self._embedding] if self._first(v) else []), *layers, *([self._head] if self._last(v) else [])]

    def _new(self, block: Block, *, first: bool) -> float:
        """Bytes of gradients that stay behind a block's backward and were not there before."""
        if self._late:
            return block.shard
        return block.reducing if self._makes_whole and first else 0.0

    @property
    def _makes_whole(self) -> bool:
        """Whole gradients are made in a virtual stage's first backward (`StateRules.whole_in_pipeline`)."""
        states = self.rules.framework.states
        piped = self.strategy.pp > 1 and self.rules.parameter_shard
        return piped and states.whole_in_pipeline and states.fresh_gradients

    @cached_property
    def _layers(self) -> list[list[Layer]]:
        """Layers of every virtual stage, in order."""
        by_kind = self.plan.recompute_by_kind()
        return [
            [
                (kind_of(run), mode)
                for run, modes in by_kind.items()
                for mode in (*self.plan.modes, NONE)
                for _ in range(modes[mode][v][self.stage])
            ]
            for v in range(self.plan.interleaves)
        ]

    def _first(self, v: int) -> bool:
        return v == 0 and self.stage == 0

    def _last(self, v: int) -> bool:
        return v == self.plan.interleaves - 1 and self.stage == self.schedule.head_stage(self.strategy.pp)

    @cached_property
    def _costs(self) -> dict[tuple[str, Layer], float]:
        return {}

    def kept(self, layer: Layer) -> float:
        """Bytes that a layer keeps of a micro-batch on the device."""
        key = ("kept", layer)
        if key not in self._costs:
            kind, mode = layer
            kept = float(kept_bytes(self.model, kind, mode, self.strategy, self.rules))
            self._costs[key] = kept if mode == FULL else max(0.0, kept - self.on_host.get(kind, 0.0))
        return self._costs[key]

    def _needs(self, layer: Layer) -> float:
        """Bytes of a layer's backward beyond what it keeps."""
        key = ("needs", layer)
        if key not in self._costs:
            self._costs[key] = float(kind_workspace_bytes(self.model, *layer, self.strategy, self._by_operator))
        return self._costs[key]

    @cached_property
    def _by_operator(self) -> TrainingRules:
        """The rules with the tensors of every operator (`StaticRules.counted_as_fitted`)."""
        framework = self.rules.framework
        statics = replace(framework.statics, counted_as_fitted=False)
        return self.rules.replace(framework=replace(framework, statics=statics))

    @cached_property
    def _boundary(self) -> float:
        return float(entering_bytes(self.model, self.strategy, self.rules))

    def _transfers(self, alive: tuple[float, ...]) -> float:
        """Bytes that came from and go to the neighbours.

        A stage keeps the gradient that it received last and the one that it sent; where each micro-batch has buffers
        (`StaticRules.buffers_every_micro_batch`), those of input and gradient, and outputs until their backward.
        """
        if self.strategy.pp == 1:
            return 0.0
        chunks = range(self.plan.interleaves)
        if not self.rules.framework.statics.buffers_every_micro_batch:
            received, sent = not all(map(self._last, chunks)), not all(map(self._first, chunks))
            return self._boundary * (received + sent)
        count = 0.0
        for v in chunks:
            inputs, outputs = not self._first(v), not self._last(v)
            # The inputs in use are layer inputs, which activations have.
            count += self.strategy.micro_batches * (inputs + outputs) + alive[v] * (outputs - inputs)
        return self._boundary * (count + (not all(map(self._first, chunks))))

    def _at_loss(self) -> float:
        """Bytes of the logits and of the head."""
        logits = float(logits_bytes(self.model, self.strategy, self._loss_rules))
        return logits + (self._head.whole if self._passes else 0.0)

    @cached_property
    def _loss_rules(self) -> TrainingRules:
        return self.rules if self.rules.interleaved_parts > 1 else self._by_operator

    def _behind_head(self, blocks: list[Block]) -> float:
        """Bytes while the head's gradient is reduced, and the last layer is gathered."""
        if not (self._passes and keeps_gradients(self.rules)):
            return 0.0
        before = blocks[-2].whole if len(blocks) > 1 else 0.0
        return self._boundary + self._head.pending + self._head.reducing + self._head.whole + before

    def _passing(self, blocks: list[Block], at: int) -> float:
        """Bytes of FSDP at a block's backward: it and the one before are gathered, the one behind is being reduced."""
        if not self._passes:
            return 0.0
        gathered = blocks[at].whole + (blocks[at - 1].whole if at else 0.0)
        return gathered + (blocks[at + 1].reducing if at + 1 < len(blocks) else 0.0)

    def _at_embedding(self, blocks: list[Block]) -> float:
        """Bytes of the table's new gradient, when nothing else of the micro-batch is left."""
        table = self._embedding
        made = table.pending if self.rules.parameter_shard else 0.0
        added_late = self.model.tied_embedding and self._late and not self.rules.parameter_shard
        if added_late and self.rules.trains(EMBEDDING):
            made = self._table.total * self.rules.gradient_bytes
        if not self._passes:
            return made
        behind = blocks[1].reducing if len(blocks) > 1 else 0.0
        return table.whole + made + max(table.reducing, behind) + (table.shard if self._late else 0.0)

    @cached_property
    def _passes(self) -> bool:
        return bool(passes_weights(self.rules, self.strategy))

    @cached_property
    def _late(self) -> bool:
        return bool(makes_gradients_late(self.strategy, self.rules))

    @cached_property
    def _table(self) -> ParameterGroups:
        return embedding_groups(self.model, self.strategy, self.rules)

    @cached_property
    def _embedding(self) -> Block:
        block = self._sharded(self._table, self.rules.at(EMBEDDING), in_layer=False)
        if not (self.rules.trains(EMBEDDING) and self.rules.framework.states.gathers_embedding_gradient):
            return block
        # Its gradient has the rows of all ranks of TP until it is reduced.
        return replace(block, pending=self._table.total * self.rules.compute_bytes)

    @cached_property
    def _head(self) -> Block:
        block = self._sharded(head_groups(self.model, self.strategy, self.rules), self.rules.at(HEAD), in_layer=False)
        return replace(block, shard=0.0) if self.model.tied_embedding and not self.rules.saves(HEAD) else block

    def _block(self, layer: Layer) -> Block:
        kind = layer[0]
        if kind not in self._known_blocks:
            self._known_blocks[kind] = self._sharded(
                body_groups(self.model, kind), self.rules.within(self.model.layers_of(kind)), in_layer=True
            )
        return self._known_blocks[kind]

    @cached_property
    def _known_blocks(self) -> dict[str, Block]:
        return {}

    def _sharded(self, groups: ParameterGroups, rules: TrainingRules, *, in_layer: bool) -> Block:
        shard = float(group_bytes(groups, self.strategy, rules, in_layer=in_layer).gradients)
        if not rules.parameter_shard:
            return Block(shard=shard)
        gathered = gathered_bytes(groups, self.strategy, rules, in_layer=in_layer)
        whole = 0.0 if stays_whole(rules, in_layer=in_layer) else float(gathered.weights)
        pending = float(gathered.weights) if rules.adapters is None else 0.0
        return Block(whole, pending, float(gathered.gradients), shard)
