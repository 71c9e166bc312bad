"""Random small jobs of reinforcement learning, and the least iteration over every split, layout and plan of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from benchmarks.brute_force import enumerate_optimum
from taylor.base.errors import TaylorError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.rl_iteration import CRITIC, LOG_PROBS, REFERENCE, VALUES, Critic, RlIteration, with_value_head
from taylor.parsers.tables.generation import GenerationSpeed
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.workflows.rl.evaluate import RlChoice, RlResult
from taylor.workflows.rl.memory import FITS, phase_memory, stages_of
from taylor.workflows.rl.split import Layout, layout_of
from taylor.workflows.rl.times import critic_ms, rollout_ms, scoring_ms


class Job(NamedTuple):
    """One job to split."""

    config: TrainingConfig
    iteration: RlIteration
    choice: RlChoice
    cards: int


def random_job(found: RlResult, rng: np.random.Generator) -> Job:
    """A job of a few layers on a few cards: other sizes, speeds and lengths, a tight memory at times, or a critic."""
    config, iteration = found.config, found.iteration
    layers, cards = int(rng.integers(2, 7)), int(rng.integers(2, 7))
    model = config.model.replace(n_layers=layers)
    mbs = int(rng.choice([1, 2]))
    batch = mbs * int(rng.choice([12, 24]))
    strategy = config.strategy.replace(dp=1, tp=1, pp=1, op=1, mbs=mbs, micro_batches=batch // mbs)
    limit = None if rng.random() < 0.4 else float(rng.uniform(4500, 11000))
    config = config.replace(model=model, strategy=strategy, plan=None, device_limit_mib=limit)
    length, answer = int(rng.choice([1024, 2048])), int(rng.choice([256, 900]))
    config = config.replace(rules=config.rules.replace(seq_length=length))
    engine = replace(iteration.engine, tp=int(rng.choice([1, 1, 2])))
    phases = dict(iteration.resident)
    if rng.random() < 0.5:
        phases[REFERENCE] = phases[LOG_PROBS]
    iteration = replace(
        iteration,
        prompts=int(rng.integers(2, 5)) * batch // 4,
        answers=4,
        prompt_tokens=length - answer,
        answer_tokens=answer,
        updates=int(rng.integers(1, 4)),
        engine=engine,
        resident=phases,
    )
    if rng.random() < 0.4:
        phases |= {VALUES: phases[LOG_PROBS], CRITIC: phases[LOG_PROBS]}
        critic = config.replace(model=with_value_head(model.replace(n_layers=int(rng.integers(1, layers + 1)))))
        iteration = replace(iteration, resident=phases)
        iteration = replace(iteration, critic=Critic(critic, iteration))
    speed = GenerationSpeed.of(float(rng.choice([3e3, 3e4, 3e5])))
    return Job(config, iteration, RlChoice(speed, length - answer, answer), cards)


def strategies(config: TrainingConfig, cards: int) -> Iterator[Strategy]:
    """Every layout: the degrees that divide what they split, by arithmetic alone."""
    model, own = config.model, config.strategy
    for tp in range(1, cards + 1):
        for pp in range(1, cards // tp + 1):
            dp, rest = divmod(cards, tp * pp)
            split = (model.n_heads, model.n_kv_heads, model.ffn_hidden, model.hidden)
            if rest or any(size % tp for size in split) or pp > model.n_layers or own.global_batch % (dp * own.mbs):
                continue
            count = own.global_batch // (dp * own.mbs)
            yield own.replace(dp=dp, tp=tp, pp=pp, op=dp, sp=tp > 1, micro_batches=count)


def least_iteration(job: Job, found: RlResult) -> float:
    """The least iteration of all splits, layouts and plans, ms; infinity where none fits."""
    best, tokens = math.inf, job.choice.tokens(job.iteration)
    for training in range(1, job.cards):
        rollout = job.cards - training
        if rollout % job.iteration.engine.cards:
            continue
        critic = job.iteration.critic
        own = replace(job.iteration, colocated=False, staleness=1, rollout_cards=rollout)
        beside = 0.0
        if critic is not None:
            try:
                own = replace(own, critic=critic.on_cards(training))
            except TaylorError:
                continue
            beside = sum(critic_ms(own.critic, found.chosen, tokens).values())
        generated = rollout_ms(own, job.choice.speed, tokens, rollout, own.engine.concurrent)
        for strategy in strategies(job.config, training):
            try:
                layout = layout_of(job.config, strategy, own, found.chosen, tokens, beside)
            except TaylorError:
                continue  # Its weights alone are more than the card has.
            for step, scored in _plans(layout, found):
                best = min(best, max(generated, own.updates * step + scored + beside) + layout.sync_ms)
    return best


def _plans(layout: Layout, found: RlResult) -> Iterator[tuple[float, float]]:
    """Step and further passes of the best plan of every distribution of the layers, ms."""
    pp, problem, iteration = layout.strategy.pp, layout.problem, layout.iteration
    passes = sum(phase in iteration.resident for phase in (LOG_PROBS, REFERENCE))
    for sizes in _sizes(layout.config.model.n_layers, pp):
        truth = enumerate_optimum(problem.replace(fixed_layers={(0, s): count for s, count in enumerate(sizes)}))
        assert truth is not None
        if truth.plan is None or not _fits(layout, truth.plan, found):
            continue
        layers = PipelinePlan({"dense": as_grid([sizes])}, {})
        scored = passes * scoring_ms(layout.timed.replace(plan=layers), iteration, found.chosen.spec)
        yield truth.objective * problem.unit_ms, scored


def _fits(layout: Layout, plan: PipelinePlan, found: RlResult) -> bool:
    if layout.iteration.critic is None:
        return True
    config = layout.config.replace(plan=plan)
    memory = phase_memory(config, layout.iteration, found.chosen.spec, stages_of(config))
    return all(one.verdict == FITS for one in memory if one.phase in (VALUES, CRITIC))


def _sizes(total: int, parts: int) -> Iterator[list[int]]:
    if parts == 1:
        yield [total]
        return
    for first in range(1, total - parts + 2):
        for rest in _sizes(total - first, parts - 1):
            yield [first, *rest]
