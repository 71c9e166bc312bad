"""One iteration of a reinforcement-learning job beside its training step: roll-outs, phases, and what each keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.memory.rollout_engine import RolloutEngine
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import TrainingConfig
from taylor.register.model import ModelSpec

ROLLOUT, LOG_PROBS, REFERENCE, TRAINING, RESHARDING = "rollout", "log-probs", "reference", "training", "resharding"
VALUES, CRITIC = "values", "critic"
"""A critic's phases: the values of all samples, and its own training."""

WEIGHTS, GRADIENTS, OPTIMIZER, COPY, ENGINE = "weights", "gradients", "optimizer", "reference", "engine"
STATES = frozenset({WEIGHTS, GRADIENTS, OPTIMIZER})
"""States of the training engine that a phase may keep on the card. `COPY` is a second set of weights, the reference's;
`ENGINE` the roll-out engine's weights, with its key-value cache where the phase is the roll-out or nothing is
released."""


@dataclass(frozen=True)
class RlIteration:
    """What a file says of an iteration beside the training step.

    Parameters
    ----------
    prompts, answers : int
        Prompts of an iteration, and samples of each.
    prompt_tokens, answer_tokens : int
        Most tokens of both.
    updates : int
        Steps of the optimizer an iteration.
    colocated : bool
        Training and roll-outs share the cards.
    rollout_cards : int
        Cards of all engines.
    resident : mapping of phase to frozenset of str
        `WEIGHTS`, `GRADIENTS`, `OPTIMIZER`, `COPY` and `ENGINE` on a training card in each phase, in the order in which
        the phases run. Apart from an engine that sleeps through it, a phase that does not run is absent.
    keeps_cache : bool
        The engine keeps its key-value cache while others run.
    log_prob_samples : int
        Samples of a micro-batch of log-probabilities on a data-parallel rank.
    packed_tokens, log_prob_tokens : int or None
        Tokens that a training and a log-probability micro-batch is packed to; None where samples are counted.
    bucket_mib : float
        Weights that are gathered at once on their way to the engine, MiB.
    staleness : int
        Iterations that training may lag behind generation when the two have cards of their own.
    iterations : int or None
        Iterations of the whole job, where the file states them.
    critic : Critic or None
        The critic that trains on the policy's cards.
    left_out : tuple of str
        Sentences on what costs and is not included.
    """

    prompts: int
    answers: int
    prompt_tokens: int
    answer_tokens: int
    updates: int
    colocated: bool
    rollout_cards: int
    engine: RolloutEngine
    resident: Mapping[str, frozenset[str]]
    keeps_cache: bool = False
    log_prob_samples: int = 1
    packed_tokens: int | None = None
    log_prob_tokens: int | None = None
    bucket_mib: float = 512.0
    staleness: int = 0
    iterations: int | None = None
    critic: Critic | None = None
    left_out: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Samples of an iteration."""
        return self.prompts * self.answers

    def length(self, iterations: int | None = None, prompts: int | None = None) -> TrainingLength:
        """The job's length, counted in prompts.

        Parameters
        ----------
        iterations : int, optional
            Of the whole job; the file's when omitted.
        prompts : int, optional
            Of the data set.
        """
        return TrainingLength(epoch_samples=prompts, steps=iterations or self.iterations)

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases that run, in order."""
        return tuple(self.resident)


@dataclass(frozen=True)
class Critic:
    """A critic on the cards of the policy.

    Parameters
    ----------
    config : TrainingConfig
        Its training: a model with a value head, a layout and micro-batches of its own.
    iteration : RlIteration
        The iteration as the critic has it: its updates, its micro-batches, and its own states in each phase.
    own_process : bool
        It runs in processes beside the policy's, each with its own memory outside the allocator.
    """

    config: TrainingConfig
    iteration: RlIteration
    own_process: bool = False

    def on_cards(self, cards: int) -> Critic:
        """The same layout on another number of cards: data parallelism follows.

        Raises
        ------
        InputError
            When its degrees do not divide the cards, or its micro-batches not the batch.
        """
        own = self.config.strategy
        if cards == own.world_size:
            return self
        unit = own.tp * own.pp * own.cp
        if cards % unit:
            problem = f"has {cards:,} cards, no multiple of its TP x PP x CP = {unit:,}"
            raise InputError(problem, file=self.config.path, field="critic", cure="change its degrees or the cards")
        dp, batch = cards // unit, own.global_batch
        if batch % dp:
            problem = f"trains {batch:,} samples a step, no multiple of its DP = {dp:,}"
            raise InputError(problem, file=self.config.path, field="critic", cure="change its batch or the cards")
        each = batch // dp
        mbs = max(count for count in range(1, min(own.mbs, each) + 1) if each % count == 0)
        shards = dp * own.cp if own.op == own.dp * own.cp else min(own.op, dp * own.cp)
        strategy = own.replace(dp=dp, op=shards, mbs=mbs, micro_batches=each // mbs)
        return replace(self, config=self.config.replace(strategy=strategy))


def with_value_head(model: ModelSpec) -> ModelSpec:
    """A critic's model: the layers and the embedding of a policy, and a head of its own that gives one value a token.

    verl-project/verl 1dda039b verl/models/mcore/bridge.py:51-80 (``make_value_model``: a linear layer to one output in
    place of the head) and verl/workers/engine/fsdp/transformer_impl.py:272-287 (token classification, one label);
    THUDM/slime 624b824a slime/backends/megatron_utils/model_provider.py:109, 149.
    """
    return model.replace(value_head=True, tied_embedding=False, mtp_layers=0)


def stated_share(flags: Flags, name: str, default: float) -> float:
    """A fraction of memory, above 0 and up to 1.

    Raises
    ------
    InputError
        When it is none.
    """
    share = float(flags.number(name, default=default))
    if not 0 < share <= 1:
        raise flags.error(name, "is no fraction of the memory", share, "write a number above 0, up to 1")
    return share
