"""Evaluates the reinforcement-learning job of a file: memory and time of every phase, and the iteration they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.cost_model.profile import MemorySource
from taylor.parsers.registry import launcher_of
from taylor.parsers.rl_iteration import (
    COPY,
    ENGINE,
    RESHARDING,
    ROLLOUT,
    WEIGHTS,
    Critic,
    RlIteration,
)
from taylor.parsers.tables.generation import GenerationSpeed
from taylor.parsers.training_config import TrainingConfig
from taylor.workflows.rl.memory import (
    CACHE,
    FITS,
    OVER,
    RISK,
    PhaseMemory,
    phase_memory,
    samples_cached,
    stages_of,
    states_of,
)
from taylor.workflows.rl.times import (
    COPIES,
    SampleTokens,
    copied_ms,
    critic_ms,
    phase_times,
    rollout_ms,
    timed_config,
    timed_iteration,
)
from taylor.workflows.showing.fit import Fit, FitVerdict
from taylor.workflows.showing.verdict_data import VerdictFacts, figures_fit
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.options import NO_ORIGIN, FileJob, Origin
from taylor.workflows.statement.stated_file import StatedFile


@dataclass(frozen=True)
class RlChoice:
    """What the file does not say of its roll-outs.

    Parameters
    ----------
    speed : GenerationSpeed
        Of one engine.
    mean_prompt, mean_answer : int or None
        Mean tokens; the longest when None.
    """

    speed: GenerationSpeed
    mean_prompt: int | None = None
    mean_answer: int | None = None

    def tokens(self, iteration: RlIteration) -> SampleTokens:
        """Mean tokens of a sample.

        Raises
        ------
        InputError
            When a mean is longer than the longest.
        """
        return SampleTokens(
            _mean("prompt", self.mean_prompt, iteration.prompt_tokens),
            _mean("answer", self.mean_answer, iteration.answer_tokens),
        )


def _mean(name: str, stated: int | None, longest: int) -> int:
    if stated is None:
        return longest
    if stated > longest:
        cure = f"state at most {longest:,}, or raise the file's limit"
        raise InputError(f"is longer than the longest {name}", field=f"--mean_{name}", value=stated, cure=cure)
    return stated


@dataclass(frozen=True)
class RlResult:
    """An iteration of a job.

    Parameters
    ----------
    memory : tuple of PhaseMemory
        Of every phase.
    times_ms : mapping of str to float or None
        Of every phase, ms; None where the device's host link is not known.
    typical : tuple of PhaseMemory
        Of every phase with samples of the mean length; empty where that is the longest.
    cached : int
        Samples of the mean length that one engine's cache holds at once.
    assumed : tuple of str
        Sentences on what nobody stated, and on what is not included.
    """

    config: TrainingConfig
    iteration: RlIteration
    chosen: ChosenDevice
    choice: RlChoice
    tokens: SampleTokens
    memory: tuple[PhaseMemory, ...]
    times_ms: Mapping[str, float | None]
    typical: tuple[PhaseMemory, ...]
    cached: int
    assumed: tuple[str, ...]

    @property
    def cards(self) -> int:
        """Cards of the job."""
        own = self.config.strategy.world_size
        return own if self.iteration.colocated else own + self.iteration.rollout_cards

    @property
    def known_ms(self) -> dict[str, float]:
        """Times that are known, ms."""
        return {phase: ms for phase, ms in self.times_ms.items() if ms is not None}

    @property
    def iteration_ms(self) -> float:
        """Time of an iteration: one phase after the other, or roll-outs beside everything else of an earlier one."""
        known = self.known_ms
        if not self.iteration.staleness:
            return sum(known.values())
        rest = sum(known.values()) - known[ROLLOUT] - known[RESHARDING]
        return max(known[ROLLOUT], rest) + known[RESHARDING]

    @property
    def verdict(self) -> str:
        """Worst of the phases' verdicts; an engine without a cache does not fit."""
        return worst(self.memory) if self.cached > 0 else OVER

    @property
    def longest(self) -> str:
        """Phase that takes the most time."""
        known = self.known_ms
        return max(known, key=lambda phase: known[phase])

    @property
    def fullest(self) -> PhaseMemory:
        """Phase with the least free memory."""
        return fullest(self.memory)

    @property
    def samples_a_second(self) -> float:
        """Trained samples a second."""
        return self.iteration.samples / (1e-3 * self.iteration_ms)

    def hours(self, length: TrainingLength) -> dict[str, float]:
        """Hours of the whole job and of an epoch of its prompts, as far as they are stated."""
        return iteration_hours(self.iteration, self.iteration_ms, length)

    def verdict_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Verdict on all phases; a stage that is named is the fullest of its phase."""
        # What an engine allots itself has no risk: it is judged where it is too much.
        judged = [one for one in self.memory if not one.allotted or one.verdict == OVER]
        known = self.config.memory_error(MemorySource.ESTIMATE)
        limits = [one.usable_mib if one.allotted else one.limit_mib for one in judged]
        solution, fit = figures_fit([one.total_mib for one in judged], limits, self.config, known)
        if self.cached < 1:
            reason = "the engine's weights leave no key-value cache"
            fit = FitVerdict(Fit.DOES_NOT_FIT, reason=reason, cure="raise its share of memory or its ranks")
        elif judged:
            fullest_one = max(judged, key=lambda one: one.total_mib / one.usable_mib)
            phase = fullest_one.phase
            fit = replace(fit, reason="; ".join(part for part in (fit.reason, f"the fullest phase is {phase}") if part))
        facts = VerdictFacts(self.config, self.chosen.spec, fit, solution, known, None, True, origin=origin)
        data = facts.to_dict()
        data["tight_stages"] = [{**one, "stage": judged[one["stage"]].stage} for one in data["tight_stages"]]
        return data

    def to_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Figures as plain data."""
        return {
            "file": str(self.config.path),
            "model": self.config.model.name,
            "device": self.chosen.spec.name,
            "strategy": self.config.strategy.name,
            "colocated": self.iteration.colocated,
            "training_cards": self.config.strategy.world_size,
            "rollout_cards": self.iteration.rollout_cards,
            "engine": {
                "name": self.iteration.engine.name,
                "cards": self.iteration.engine.cards,
                "samples": self.cached,
            },
            "critic": None if self.iteration.critic is None else _critic_dict(self.iteration.critic),
            "samples": self.iteration.samples,
            "updates": self.iteration.updates,
            "mean_tokens": {"prompt": self.tokens.prompt, "answer": self.tokens.answer},
            "phases": [
                {
                    "phase": one.phase,
                    "ms": self.times_ms[one.phase],
                    "stage": one.stage,
                    "peak_mib": one.total_mib,
                    "limit_mib": one.limit_mib,
                    "usable_mib": one.usable_mib,
                    "verdict": one.verdict,
                    "parts_mib": dict(one.parts),
                }
                for one in self.memory
            ],
            "copies_ms": self.times_ms.get(COPIES),
            "iteration_ms": self.iteration_ms,
            "longest_phase": self.longest,
            "fullest_phase": self.fullest.phase,
            "verdict": self.verdict_dict(origin),
            "verdict_at_mean_length": worst(self.typical) if self.typical else None,
            "samples_per_second": self.samples_a_second,
            "tokens_per_second": self.samples_a_second * self.tokens.total,
            "assumed": list(self.assumed),
        }


def iteration_hours(iteration: RlIteration, iteration_ms: float, length: TrainingLength) -> dict[str, float]:
    """Hours of a whole job (`hours`) and of an epoch (`epoch_hours`) at a time of an iteration, as far as stated."""
    seconds = 1e-3 * iteration_ms
    rate = iteration.prompts / seconds
    hours = {"hours": length.run_hours(seconds, rate), "epoch_hours": length.epoch_hours(rate)}
    return {name: value for name, value in hours.items() if value is not None}


def _critic_dict(critic: Critic) -> dict[str, Any]:
    """A critic as plain data."""
    config = critic.config
    return {"model": config.model.name, "strategy": config.strategy.name, "updates": critic.iteration.updates}


def worst(memory: Sequence[PhaseMemory]) -> str:
    """Worst verdict of some phases."""
    found = {one.verdict for one in memory}
    return next(word for word in (OVER, RISK, FITS) if word in found)


def fullest(memory: Sequence[PhaseMemory]) -> PhaseMemory:
    """Phase with the least free memory."""
    return min(memory, key=lambda one: one.usable_mib - one.total_mib)


def evaluate_iteration(job: FileJob, choice: RlChoice) -> RlResult:
    """Evaluate the iteration of the job in a file, with the plan in it.

    Raises
    ------
    InputError
        When the file is of no reinforcement-learning job, cannot be read, or states a wrong value.
    """
    file = StatedFile.read(replace(job, dryrun=False, check=False)).as_it_recomputes()
    return evaluated(file.running, launcher_of(file.config).iteration(file.config), file.chosen, choice)


def evaluated(config: TrainingConfig, iteration: RlIteration, chosen: ChosenDevice, choice: RlChoice) -> RlResult:
    """Iteration of a configuration, with its plan; the even plan where it has none."""
    tokens, stages = choice.tokens(iteration), stages_of(config)
    memory = phase_memory(config, iteration, chosen.spec, stages)
    others = next(one.parts for one in memory if one.phase == ROLLOUT)
    resident = sum(mib for name, mib in others.items() if name not in (ENGINE, CACHE)) if iteration.colocated else 0.0
    cached = samples_cached(config, iteration, chosen.spec, tokens.total, resident)
    timed = timed_config(config, iteration, tokens)
    cards = iteration.rollout_cards
    generated = rollout_ms(iteration, choice.speed, tokens, cards, max(1, min(cached, iteration.engine.concurrent)))
    critic = iteration.critic
    copies = _copies_ms(config, iteration, stages, chosen)
    if critic is not None:
        beside = _copies_ms(critic.config, critic.iteration, stages_of(critic.config), chosen)
        copies = None if copies is None or beside is None else copies + beside
    of_critic = {} if critic is None else critic_ms(critic, chosen, tokens)
    times = phase_times(timed, iteration, chosen, generated, copies, of_critic)
    shorter = timed.rules.seq_length < config.rules.seq_length
    scored = timed_iteration(iteration, timed, tokens)
    return RlResult(
        config,
        iteration,
        chosen,
        choice,
        tokens,
        tuple(memory),
        times,
        tuple(phase_memory(timed, scored, chosen.spec, stages_of(timed))) if shorter else (),
        cached,
        _assumed(iteration, choice, times, tokens),
    )


def _copies_ms(
    config: TrainingConfig, iteration: RlIteration, stages: Sequence[StageBreakdown], chosen: ChosenDevice
) -> float | None:
    """Time of the moves of a role's states to and from the host, ms; None without the host link's speed."""
    states = max((states_of(stage, config.rules) for stage in stages), key=lambda each: each[WEIGHTS])
    return copied_ms(iteration.resident, {**states, COPY: states[WEIGHTS]}, chosen.spec)


def _assumed(
    iteration: RlIteration, choice: RlChoice, times: Mapping[str, float | None], tokens: SampleTokens
) -> tuple[str, ...]:
    said = list(iteration.left_out)
    if choice.mean_answer is None:
        said.append(f"every answer is as long as it may be, {tokens.answer:,} tokens; --mean_answer states the mean")
    if choice.speed.alone is None:
        said.append("roll-outs end together: the speed of one sample alone, which bounds the longest, is not stated")
    if times.get(COPIES, 0.0) is None:
        said.append("the device's link to its host has no registered speed: moves of states take no time here")
    said.append("rewards, checkpoints and evaluation are not included")
    return tuple(said)
