"""One iteration of a reinforcement-learning job beside its training step: roll-outs, phases, and what each keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taylor.cost_model.memory.rollout_engine import RolloutEngine
from taylor.parsers.text.flags import Flags

ROLLOUT, LOG_PROBS, REFERENCE, TRAINING, RESHARDING = "rollout", "log-probs", "reference", "training", "resharding"
PHASES = (ROLLOUT, LOG_PROBS, REFERENCE, TRAINING, RESHARDING)
"""Phases of an iteration in the order in which they run."""

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
        `WEIGHTS`, `GRADIENTS`, `OPTIMIZER`, `COPY` and `ENGINE` on a training card in each phase that runs. Apart from
        an engine that sleeps through it, a phase that does not run is absent.
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
    left_out: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Samples of an iteration."""
        return self.prompts * self.answers

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases that run, in order."""
        return tuple(phase for phase in PHASES if phase in self.resident)


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
