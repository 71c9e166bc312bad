"""What files of reinforcement learning say of an iteration: engine, phases, and what each leaves on the cards."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.rl_iteration import (
    COPY,
    CRITIC,
    ENGINE,
    GRADIENTS,
    LOG_PROBS,
    OPTIMIZER,
    REFERENCE,
    RESHARDING,
    ROLLOUT,
    STATES,
    TRAINING,
    VALUES,
    WEIGHTS,
)
from taylor.register.adapters import BESIDE
from tests.parsers.nemo_rl import files as nemo_rl
from tests.parsers.swift.files import SLIME, SLIME_MODEL
from tests.parsers.verl import files as verl


def iteration(tmp_path, text, name="run.sh"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    (tmp_path / "models").mkdir(exist_ok=True)
    (tmp_path / "models" / "small.sh").write_text(SLIME_MODEL, encoding="utf-8")
    config = read_config(path)
    return launcher_of(config).iteration(config)


def with_option(text, *options):
    return text.replace(
        "    trainer.nnodes=", "".join(f"    {option} \\\n" for option in options) + "    trainer.nnodes="
    )


def test_a_verl_script_that_offloads_nothing_keeps_all_states_in_every_phase(tmp_path):
    found = iteration(tmp_path, verl.MEGATRON)
    assert found.resident[ROLLOUT] == STATES | {ENGINE} and found.resident[LOG_PROBS] == STATES
    assert REFERENCE not in found.resident
    assert (found.samples, found.updates, found.colocated) == (512 * 16, 16, True)
    assert (found.engine.name, found.engine.tp, found.engine.memory_share) == ("vllm", 2, 0.5)


def test_verls_offload_takes_gradients_with_the_parameters(tmp_path):
    text = with_option(verl.MEGATRON, "actor_rollout_ref.actor.megatron.param_offload=True")
    found = iteration(tmp_path, text)
    assert found.resident[ROLLOUT] == {OPTIMIZER, ENGINE}
    assert found.resident[LOG_PROBS] == {WEIGHTS, OPTIMIZER}
    assert found.resident[TRAINING] == STATES
    assert found.resident[RESHARDING] == {WEIGHTS, OPTIMIZER, ENGINE}


def test_verls_reference_stays_on_the_card_unless_it_is_offloaded_too(tmp_path):
    kl = "actor_rollout_ref.actor.use_kl_loss=True"
    assert COPY in iteration(tmp_path, with_option(verl.MEGATRON, kl)).resident[TRAINING]
    gone = with_option(verl.MEGATRON, kl, "actor_rollout_ref.ref.megatron.param_offload=True")
    found = iteration(tmp_path, gone)
    assert COPY not in found.resident[TRAINING] and COPY in found.resident[REFERENCE]


def test_under_fsdp_gradients_exist_in_training_alone_and_the_reference_on_the_host(tmp_path):
    found = iteration(tmp_path, with_option(verl.SHARDED, "actor_rollout_ref.actor.use_kl_loss=True"))
    assert GRADIENTS not in found.resident[ROLLOUT] and GRADIENTS in found.resident[TRAINING]
    assert all(COPY not in states for states in found.resident.values())


def test_an_engine_that_never_sleeps_keeps_its_cache_in_training(tmp_path):
    found = iteration(tmp_path, with_option(verl.SHARDED, "actor_rollout_ref.rollout.free_cache_engine=False"))
    assert found.keeps_cache and ENGINE in found.resident[TRAINING]


def test_ranks_that_share_a_sample_pack_their_tokens_together_once(tmp_path):
    # Two ranks of 3,072 tokens: 6,144 in all, four samples of 1,536 (verl b178a3cd dp_actor.py:552).
    options = ("actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=3072")
    text = with_option(verl.SHARDED, *options)
    assert iteration(tmp_path, text).packed_tokens == 6144
    assert read_config(tmp_path / "run.sh").strategy.mbs == 4


def test_verls_cards_of_their_own_are_those_of_the_rollout_section(tmp_path):
    options = ("actor_rollout_ref.hybrid_engine=False", "rollout.n_gpus_per_node=4", "rollout.nnodes=2")
    found = iteration(tmp_path, with_option(verl.SHARDED, *options))
    assert (found.colocated, found.rollout_cards, found.staleness) == (False, 8, 1)
    assert ENGINE not in found.resident[RESHARDING]


def test_verls_model_engine_names_the_trainer_of_a_policy(tmp_path):
    text = with_option(verl.MEGATRON, "model_engine=megatron").replace("--config-name='ppo_megatron_trainer.yaml'", "")
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    assert read_config(path).launcher == "verl"


def test_a_critic_of_verl_has_a_model_a_layout_and_micro_batches_of_its_own(tmp_path):
    found = iteration(tmp_path, verl.CRITIC)
    critic = found.critic
    assert found.phases == (ROLLOUT, LOG_PROBS, VALUES, CRITIC, TRAINING, RESHARDING)
    assert critic.config.model.name == "qwen3-1.7b" and critic.config.model.value_head
    own = critic.config.strategy
    assert (own.dp, own.tp, own.pp, own.mbs, own.global_batch) == (4, 1, 2, 8, 256)
    assert (critic.iteration.updates, critic.iteration.packed_tokens) == (4, 24576)
    # Nothing is offloaded: its states lie beside the policy's in every phase.
    assert all(states == STATES for states in critic.iteration.resident.values())


def test_a_value_head_has_one_output_and_no_tie_to_the_embedding(tmp_path):
    # Qwen3-1.7B ties its head: 1,720,574,976 parameters (huggingface.co/Qwen/Qwen3-1.7B). A value head is a vector.
    model = iteration(tmp_path, verl.CRITIC).critic.config.model
    assert total_parameters(model) == 1_720_574_976 + 2048


def test_a_critic_beside_a_policy_without_a_kind_of_trainer_is_on_shards_too(tmp_path):
    options = ("critic.model.path=Qwen/Qwen3-8B", "critic.ppo_micro_batch_size_per_gpu=4")
    text = verl.SHARDED.replace("adv_estimator=grpo", "adv_estimator=gae")
    found = iteration(tmp_path, with_option(text, *options, "actor_rollout_ref.actor.strategy=null"))
    assert found.critic.config.rules.parameter_shard


def test_dora_of_a_critic_beside_routed_experts_is_refused_as_a_policys_is(tmp_path):
    options = "critic.model.path=Qwen/Qwen3-30B-A3B critic.model.lora.rank=8 critic.model.lora.type=dora"
    with pytest.raises(InputError, match="critic.model.lora.type: is DoRA beside routed experts"):
        iteration(tmp_path, verl.CRITIC.replace('critic.model.path="Qwen/Qwen3-1.7B"', options))


def test_a_critic_freezes_its_vision_part_by_an_option_of_its_own(tmp_path):
    """verl b178a3cd verl/workers/fsdp_workers.py:474, 1417."""
    critic = "critic.model.path=Qwen/Qwen2.5-VL-7B-Instruct critic.ppo_micro_batch_size_per_gpu=4"
    text = with_option(verl.SHARDED.replace("adv_estimator=grpo", "adv_estimator=gae"), critic)
    for option, frozen in (("actor_rollout_ref.actor", ()), ("critic.model", (BESIDE,))):
        found = iteration(tmp_path, with_option(text, f"{option}.freeze_vision_tower=True"))
        assert found.critic.config.rules.frozen == frozen


def test_a_critics_states_leave_by_its_own_options(tmp_path):
    text = verl.CRITIC.replace("critic.optim.lr=1e-5", "critic.megatron.param_offload=True critic.optim.lr=1e-5")
    found = iteration(tmp_path, text)
    assert found.critic.iteration.resident[ROLLOUT] == {OPTIMIZER}
    assert found.critic.iteration.resident[VALUES] == {WEIGHTS, OPTIMIZER}
    assert found.critic.iteration.resident[CRITIC] == STATES == found.resident[CRITIC]


def test_verls_critic_on_shards_is_read_by_the_newer_and_the_former_keys(tmp_path):
    critic = "critic.model.path=Qwen/Qwen3-8B critic.ppo_micro_batch_size_per_gpu=4"
    text = verl.SHARDED.replace("adv_estimator=grpo", "adv_estimator=gae")
    for prefix in ("critic.fsdp", "critic.model.fsdp_config"):
        found = iteration(tmp_path, with_option(text, critic, f"{prefix}.optimizer_offload=True"))
        assert found.critic.config.strategy.mbs == 4 and found.critic.config.rules.parameter_shard
        assert found.critic.iteration.resident[TRAINING] == {WEIGHTS}
        assert found.resident[VALUES] == {WEIGHTS, OPTIMIZER}


@pytest.mark.parametrize(("estimator", "enable", "trains"), [("gae", "False", False), ("grpo", "True", True)])
def test_verls_switch_of_the_critic_wins_over_the_estimator(tmp_path, estimator, enable, trains):
    text = verl.CRITIC.replace("adv_estimator=gae", f"adv_estimator={estimator} critic.enable={enable}")
    found = iteration(tmp_path, text)
    assert (found.critic is not None, CRITIC in found.phases) == (trains, trains)


def test_a_mistyped_degree_of_the_critic_is_named_with_the_right_one(tmp_path):
    assert len(iteration(tmp_path, verl.CRITIC).left_out) == 1
    text = verl.CRITIC.replace(
        "critic.megatron.pipeline_model_parallel_size", "critic.megatron.pipline_model_parallel_size"
    )
    (sentence,) = iteration(tmp_path, text).left_out[1:]
    assert sentence.startswith(
        "critic.megatron.pipline_model_parallel_size 2 is not known and is ignored. Is critic.megatron."
    )


def test_a_critic_without_a_model_is_refused_by_its_key(tmp_path):
    with pytest.raises(InputError, match="critic.model.path: is missing"):
        iteration(tmp_path, verl.CRITIC.replace('critic.model.path="Qwen/Qwen3-1.7B"', ""))


def test_a_critic_whose_degrees_do_not_divide_the_cards_is_refused(tmp_path):
    text = verl.CRITIC.replace(
        "critic.megatron.tensor_model_parallel_size=1", "critic.megatron.tensor_model_parallel_size=3"
    )
    with pytest.raises(InputError, match="critic: has 8 cards, no multiple of its TP x PP x CP = 6"):
        iteration(tmp_path, text)


def test_nemo_rls_value_model_takes_the_policys_place_and_leaves_it(tmp_path):
    found = iteration(tmp_path, nemo_rl.PPO, "run.yaml")
    critic = found.critic
    assert found.phases == (ROLLOUT, VALUES, LOG_PROBS, CRITIC, TRAINING, RESHARDING)
    # Two epochs of one batch of 512.
    assert (found.updates, critic.iteration.updates, critic.own_process) == (2, 2, True)
    own = critic.config.strategy
    assert (critic.config.model.name, own.tp, own.pp, own.dp, own.mbs) == ("qwen3-1.7b", 2, 1, 8, 4)
    assert (critic.iteration.log_prob_samples, critic.config.rules.seq_length) == (8, 4096)
    for phase in found.phases:
        values = {VALUES: {WEIGHTS}, CRITIC: STATES}.get(phase, set())
        policy = {LOG_PROBS: {WEIGHTS}, TRAINING: STATES, RESHARDING: {WEIGHTS}}.get(phase, set())
        assert critic.iteration.resident[phase] == values and found.resident[phase] & STATES == policy
    assert "ppo_epochs" in found.left_out[0]


@pytest.mark.parametrize("penalty", [0, 0.001])
def test_nemo_rls_ppo_scores_by_the_reference_unless_that_is_skipped(tmp_path, penalty):
    """NeMo RL 7ea279ab nemo_rl/algorithms/ppo.py:181 (skipped by default), 1546."""
    loss = f"loss_fn: {{reference_policy_kl_penalty: {penalty}}}\n"
    skipping = "ppo:\n  skip_reference_policy_logprobs_calculation: "
    for text, scored in ((nemo_rl.PPO.replace("ppo:\n", f"{skipping}false\n"), True), (nemo_rl.PPO, False)):
        assert (REFERENCE in iteration(tmp_path, text + loss, "run.yaml").phases) is scored


def test_nemo_rls_ppo_without_a_value_model_is_refused(tmp_path):
    text = nemo_rl.PPO[: nemo_rl.PPO.index("value:")]
    with pytest.raises(InputError, match="value: describes no value model"):
        iteration(tmp_path, text, "run.yaml")


def test_an_option_of_the_value_model_is_named_by_its_own_place(tmp_path):
    text = nemo_rl.PPO.replace("logprob_batch_size: 8", "logprob_batch_size: many")
    with pytest.raises(InputError, match="value.logprob_batch_size"):
        iteration(tmp_path, text, "run.yaml")


def test_slimes_critic_and_policy_have_the_cards_in_turn(tmp_path):
    found = iteration(tmp_path, SLIME.replace("--prompt-data", "--advantage-estimator ppo --prompt-data"))
    critic = found.critic
    assert found.phases == (ROLLOUT, VALUES, CRITIC, LOG_PROBS, TRAINING, RESHARDING)
    assert critic.own_process and critic.config.model.value_head
    for phase in found.phases:
        assert critic.iteration.resident[phase] == (STATES if phase in (VALUES, CRITIC) else frozenset())
        assert found.resident[phase] & STATES == (STATES if phase in (LOG_PROBS, TRAINING) else frozenset())


def test_slimes_critic_pauses_a_policy_that_has_cards_of_its_own(tmp_path):
    text = SLIME.replace("--colocate", "--rollout-num-gpus 8")
    assert iteration(tmp_path, text).resident[ROLLOUT] == STATES
    text = text.replace("--prompt-data", "--advantage-estimator ppo --prompt-data")
    assert iteration(tmp_path, text).resident[ROLLOUT] == frozenset()


def test_slime_pauses_the_whole_training_engine_and_takes_weights_from_the_host(tmp_path):
    text = SLIME.replace("--prompt-data", "--use-kl-loss --prompt-data")
    found = iteration(tmp_path, text)
    assert found.resident[ROLLOUT] == {ENGINE} == found.resident[RESHARDING]
    assert found.resident[LOG_PROBS] == found.resident[REFERENCE] == found.resident[TRAINING] == STATES
    assert "mem-fraction-static is not stated" in found.left_out[0]


def test_nemo_rl_brings_the_optimizer_back_for_training_alone(tmp_path):
    found = iteration(tmp_path, nemo_rl.MEGATRON, "run.yaml")
    assert found.resident[LOG_PROBS] == {WEIGHTS} == found.resident[REFERENCE]
    assert found.resident[TRAINING] == STATES and found.resident[ROLLOUT] == {ENGINE}
    assert found.updates == 1 and found.packed_tokens == 4096


def test_nemo_rls_rollouts_on_other_nodes_leave_the_policys_cards(tmp_path):
    resources = "colocated:\n      enabled: false\n      resources:\n        gpus_per_node: 8\n        num_nodes: 1"
    text = nemo_rl.MEGATRON.replace("colocated:\n      enabled: true", resources)
    text = text.replace("num_nodes: 2", "num_nodes: 3")
    found = iteration(tmp_path, text, "run.yaml")
    assert (found.colocated, found.rollout_cards) == (False, 8)


def test_a_share_above_the_whole_is_refused(tmp_path):
    text = with_option(verl.MEGATRON, "actor_rollout_ref.rollout.gpu_memory_utilization=1.2")
    with pytest.raises(InputError, match="gpu_memory_utilization: is no fraction of the memory"):
        iteration(tmp_path, text)


def test_a_fine_tuning_has_no_iteration(tmp_path):
    text = verl.TUNING.replace("$nproc_per_node", "8")
    with pytest.raises(InputError, match="which has no roll-outs"):
        iteration(tmp_path, text)
