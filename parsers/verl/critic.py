"""The critic of a verl script: its model, layout and micro-batches, and what it leaves on the cards.

Source: verl-project/verl 1dda039b. It trains where ``critic.enable`` or, unless that is stated, the advantage estimator
``gae`` says so (verl/trainer/ppo/utils.py:96-107), on the policy's cards and in its processes
(verl/trainer/ppo/v1/trainer_base.py:248-302, ``create_colocated_worker_cls``). Its values follow the
log-probabilities, its training stands before the policy's (trainer_base.py:569-585), with a batch of
``critic.ppo_mini_batch_size`` prompts (1699-1709). States leave the card as the policy's do, by its own options.
"""

from __future__ import annotations

from taylor.parsers.policy.job import packed_samples
from taylor.parsers.policy.options import Options
from taylor.parsers.policy.sharded import sharded_config
from taylor.parsers.rl_iteration import (
    CRITIC,
    GRADIENTS,
    OPTIMIZER,
    STATES,
    VALUES,
    WEIGHTS,
    Critic,
    RlIteration,
    with_value_head,
)
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.verl import programs
from taylor.parsers.verl.job import VerlMegatronJob, VerlStart, own_table, sharded_job

_PACKED = (
    "the critic's micro-batches are those that critic.* states; verl 0.9's default trainer packs them up to 32,768 "
    "tokens whatever it states (verl 1dda039b verl/trainer/ppo/v1/trainer_base.py:251)"
)


def trains_critic(options: Options) -> bool:
    """Return whether a critic trains beside the policy."""
    if options.has("critic.enable"):
        return options.is_on("critic.enable")
    return bool(options.text("algorithm.adv_estimator", default="gae") == "gae")


def kept_states(options: Options, program: programs.Program, kind: str) -> frozenset[str]:
    """States that a role keeps on the card while it does not work; its gradients leave with its parameters."""
    by_megatron = kind == programs.MEGATRON
    prefix = program.engine if by_megatron else program.sharding
    leaves, optimizer_leaves = (options.is_on(f"{prefix}{name}_offload") for name in ("param", "optimizer"))
    kept = set() if leaves else {WEIGHTS, GRADIENTS} if by_megatron else {WEIGHTS}
    return frozenset(kept | (set() if optimizer_leaves else {OPTIMIZER}))


def critic_of(policy: VerlStart, config: TrainingConfig, iteration: RlIteration) -> Critic:
    """The critic of a script whose policy has this configuration and iteration.

    Raises
    ------
    InputError
        When its model is not named, or a value is wrong or does not suit the policy's cards.
    """
    paths = [policy.options.by_name.get(key) for key in (policy.program.model[0], programs.CRITIC.model[0])]
    same = len({None if path is None else path.values[0].text for path in paths}) == 1
    start = VerlStart(policy.command.script, model=with_value_head(config.model) if same else None, critic=True)
    options, program = start.options, start.program
    trained = _config(start).replace(model=start.model)
    context, strategy = trained.strategy.cp, trained.strategy
    each = max(1, iteration.samples // strategy.dp)
    packed = options.is_on(program.dynamic)
    tokens = int(options.integer(program.tokens, high=MAX_SIZE)) * context if packed else None
    scored = None
    if tokens is not None:
        scored = int(options.integer("critic.forward_max_token_len_per_gpu", default=tokens // context)) * context
    counted = options.integer("critic.forward_micro_batch_size_per_gpu", default=strategy.mbs)
    kept = kept_states(options, program, start.kind)
    resident = dict.fromkeys(iteration.resident, kept)
    mini = int(options.integer(program.samples, high=2**31))
    own = RlIteration(
        iteration.prompts,
        iteration.answers,
        iteration.prompt_tokens,
        iteration.answer_tokens,
        updates=max(1, iteration.prompts // mini) * int(options.integer("critic.ppo_epochs", default=1)),
        colocated=iteration.colocated,
        rollout_cards=iteration.rollout_cards,
        engine=iteration.engine,
        resident={**resident, VALUES: kept | {WEIGHTS}, CRITIC: kept | STATES},
        log_prob_samples=int(counted) if scored is None else packed_samples(scored, trained.rules.seq_length, each),
        packed_tokens=tokens,
        log_prob_tokens=scored,
        left_out=(_PACKED, *_unknown(start)),
    )
    return Critic(trained, own).on_cards(config.strategy.world_size)


def _unknown(start: VerlStart) -> list[str]:
    """Sentences on options of the critic's layout that verl does not have: they are the policy's by the same names."""
    table, found = own_table(), []
    sections = {start.program.engine: programs.PPO.engine, start.program.sharding: programs.PPO.sharding}
    for each in start.options.by_name.values():
        own = next((own for own in sections if each.name.startswith(own)), None)
        if own is None or each.name.startswith(f"{own}override_"):
            continue
        name = sections[own] + each.name.removeprefix(own)
        if table.find(name) is None:
            sentence = table.unknown(name, each.values[0].text).sentence
            found.append(sentence.replace(sections[own], own))
    return found


def _config(start: VerlStart) -> TrainingConfig:
    """The critic's training, with the model as the script names it."""
    if start.kind == programs.MEGATRON:
        return VerlMegatronJob(start).config()
    names = {"dp": "trainer.n_gpus_per_node", "gbs": start.program.samples}
    return sharded_config(sharded_job(start), start.notes, (), names)
