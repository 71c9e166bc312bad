"""Iterations of reinforcement learning: phases, and the best split against every split and layout."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from taylor.base.errors import InfeasibleError, InputError
from taylor.command_lines import rl
from taylor.cost_model.time.step import head_time
from taylor.parsers.rl_iteration import CRITIC, ENGINE, LOG_PROBS, RESHARDING, ROLLOUT, TRAINING, VALUES
from taylor.parsers.tables.generation import GenerationSpeed, read_generation
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.rl.evaluate import RlChoice, evaluate_iteration
from taylor.workflows.rl.memory import ASLEEP, CACHE, FITS, OVER, phase_memory, side_by_side, stages_of
from taylor.workflows.rl.split import layout_of, legal_strategies, separated, split_cards, training_cards
from taylor.workflows.rl.times import COPIES, SampleTokens, scoring_ms, timed_config
from taylor.workflows.statement.options import FileJob
from tests.parsers.swift.files import SLIME, SLIME_MODEL
from tests.parsers.verl.files import CRITIC as PPO
from tests.parsers.verl.files import MEGATRON, SHARDED
from tests.workflows.rl_enumeration import least_iteration, random_job

SPEED = GenerationSpeed.of(4000, alone=100)


def evaluated(tmp_path, text=MEGATRON, speed=SPEED, **choice):
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    return evaluate_iteration(FileJob(path), RlChoice(speed, **choice))


def small(text):
    """A model of 0.6 billion parameters on one node of four cards, with engines of one card."""
    changes = {
        "Qwen/Qwen3-8B-Base": "Qwen/Qwen3-0.6B",
        "tensor_model_parallel_size=2": "tensor_model_parallel_size=1",
        "n_gpus_per_node=8": "n_gpus_per_node=4",
        "nnodes=2": "nnodes=1",
        "rollout.name=vllm": "rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1",
        "data.train_batch_size=512": "data.train_batch_size=64",
    }
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_a_colocated_iteration_is_the_sum_of_its_phases(tmp_path):
    found = evaluated(tmp_path, mean_answer=2000)
    assert list(found.times_ms) == [ROLLOUT, LOG_PROBS, TRAINING, RESHARDING, COPIES]
    assert found.iteration_ms == pytest.approx(sum(found.known_ms.values()))
    assert found.samples_a_second == pytest.approx(8192 / found.iteration_ms * 1000)
    hours = found.hours(found.iteration.length(iterations=100, prompts=10_240))
    assert hours["hours"] == pytest.approx(found.iteration_ms / 36_000)
    # 20 iterations of 512 prompts are an epoch.
    assert hours["epoch_hours"] == pytest.approx(20 * found.iteration_ms / 3.6e6)


def test_rollouts_share_the_samples_among_the_engines_and_wait_for_the_longest(tmp_path):
    found = evaluated(tmp_path, mean_answer=2000)
    # 8,192 samples on 8 engines of 2 cards; the longest answer of 6,144 tokens at 100 a second.
    assert found.times_ms[ROLLOUT] == pytest.approx(max(1024 * 2000 / 4000, 6144 / 100) * 1000)
    slow = evaluated(tmp_path, mean_answer=2000, speed=GenerationSpeed.of(4000, alone=10))
    assert slow.times_ms[ROLLOUT] == pytest.approx(614_400)


def test_the_engine_takes_its_share_of_the_whole_card_and_the_rest_stays_beside_it(tmp_path):
    found = evaluated(tmp_path)
    rollout = next(one for one in found.memory if one.phase == ROLLOUT)
    assert rollout.parts[ENGINE] + rollout.parts[CACHE] == pytest.approx(0.5 * found.chosen.spec.memory_mib)
    assert rollout.total_mib > 0.5 * found.chosen.spec.memory_mib + rollout.parts["optimizer"]


def test_training_keeps_what_the_evaluation_of_the_file_keeps(tmp_path):
    from taylor.cost_model.memory.breakdown import stage_breakdown

    found = evaluated(tmp_path)
    config = found.config
    stages = stage_breakdown(config.model, config.strategy, config.rules, config.plan, config.schedule)
    training = next(one for one in found.memory if one.phase == TRAINING)
    assert training.total_mib - training.parts[ASLEEP] == pytest.approx(max(stage.total for stage in stages))


def test_a_sleeping_engine_keeps_its_context_and_the_communicators_of_its_ranks(tmp_path):
    def asleep(text, device=None):
        path = tmp_path / "run.sh"
        path.write_text(text, encoding="utf-8")
        memory = evaluate_iteration(FileJob(path, device=device), RlChoice(SPEED)).memory
        return {one.phase: one.parts.get(ASLEEP, 0.0) for one in memory}

    # By nvidia-smi, NVIDIA-NeMo/RL issue 223: 774 MiB of one rank, 2,440 MiB of two.
    several = asleep(MEGATRON)
    assert several.pop(ROLLOUT) == 0.0 and set(several.values()) == {2440.0}
    assert asleep(small(MEGATRON))[TRAINING] == 774.0
    awake = MEGATRON.replace("rollout.name=vllm", "rollout.name=vllm actor_rollout_ref.rollout.free_cache_engine=False")
    apart = MEGATRON.replace(
        "rollout.name=vllm",
        "rollout.name=vllm actor_rollout_ref.hybrid_engine=False rollout.n_gpus_per_node=8 rollout.nnodes=1",
    )
    assert set(asleep(awake).values()) == set(asleep(apart).values()) == {0.0}
    assert set(asleep(MEGATRON, "ascend-910b").values()) == {0.0}


def test_shorter_samples_train_faster_and_leave_memory_where_they_are_counted(tmp_path):
    long, short = evaluated(tmp_path, SHARDED), evaluated(tmp_path, SHARDED, mean_prompt=100, mean_answer=200)
    assert short.times_ms[TRAINING] < 0.5 * long.times_ms[TRAINING]
    assert not long.typical and {one.phase for one in short.typical} == {one.phase for one in short.memory}
    usual, longest = (next(one for one in each if one.phase == TRAINING) for each in (short.typical, short.memory))
    assert usual.total_mib < longest.total_mib


def test_an_engine_whose_weights_leave_no_cache_does_not_fit(tmp_path):
    text = MEGATRON.replace(
        "rollout.name=vllm", "rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.05"
    )
    found = evaluated(tmp_path, text)
    assert found.cached == 0 and found.verdict == OVER


def test_offloading_the_optimizer_frees_exactly_its_states_in_the_rollout(tmp_path):
    offload = "tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.optimizer_offload=True"
    stays, leaves = evaluated(tmp_path), evaluated(tmp_path, MEGATRON.replace("tensor_model_parallel_size=2", offload))
    kept, freed = (next(one for one in each.memory if one.phase == ROLLOUT) for each in (stays, leaves))
    assert kept.total_mib - freed.total_mib == pytest.approx(kept.parts["optimizer"])
    assert leaves.times_ms[COPIES] > 0 == stays.times_ms[COPIES]


def test_a_critic_trains_as_its_own_evaluation_says_beside_what_the_policy_leaves(tmp_path):
    found = evaluated(tmp_path, PPO)
    critic = found.iteration.critic
    by_phase = {one.phase: one for one in found.memory}
    alone = max(stage.total - stage.overhead for stage in stages_of(critic.config))
    parts = by_phase[CRITIC].parts
    assert sum(mib for name, mib in parts.items() if name.startswith("critic's")) == pytest.approx(alone)
    policy = {name: mib for name, mib in parts.items() if not name.startswith("critic's")}
    assert set(policy) == {"weights", "gradients", "optimizer", "runtime", ASLEEP}
    rollout = by_phase[ROLLOUT].parts
    assert all(f"critic's {name}" in rollout for name in ("weights", "gradients", "optimizer"))


def test_without_its_critic_an_iteration_has_neither_its_phases_nor_its_memory(tmp_path):
    with_critic = evaluated(tmp_path, PPO)
    without = evaluated(tmp_path, PPO.replace("adv_estimator=gae", "adv_estimator=grpo"))
    both = {phase: ms for phase, ms in with_critic.times_ms.items() if phase not in (VALUES, CRITIC)}
    assert both == without.times_ms
    assert with_critic.iteration_ms == pytest.approx(
        without.iteration_ms + with_critic.times_ms[VALUES] + with_critic.times_ms[CRITIC]
    )
    for one in without.memory:
        other = next(each for each in with_critic.memory if each.phase == one.phase)
        assert other.total_mib > one.total_mib


def test_a_critic_of_the_policys_size_computes_its_values_without_logits(tmp_path):
    text = PPO.replace("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B").replace(
        "critic.megatron.tensor_model_parallel_size=1", "critic.megatron.tensor_model_parallel_size=2"
    )
    text = text.replace(":-24576", ":-16384").replace(
        "log_prob_max_token_len_per_gpu=12288", "log_prob_max_token_len_per_gpu=16384"
    )
    found = evaluated(tmp_path, text)
    config, iteration = found.config, found.iteration
    heads = [
        float(head_time(each.model, each.strategy.replace(mbs=count), each.rules, found.chosen.spec)[0])
        for each, count in (
            (config, iteration.log_prob_samples),
            (iteration.critic.config, iteration.critic.iteration.log_prob_samples),
        )
    ]
    # A vocabulary of 151,936 rows against one: what stays is the norm.
    assert heads[1] < 0.1 * heads[0]
    assert found.times_ms[VALUES] < found.times_ms[LOG_PROBS]


def test_the_critics_stages_share_cards_with_the_policys_in_order(tmp_path):
    # The policy has two stages of four cards, the critic one of eight or four of two.
    for stages in (1, 4):
        text = PPO.replace(
            "critic.megatron.pipeline_model_parallel_size=2", f"critic.megatron.pipeline_model_parallel_size={stages}"
        )
        found = evaluated(tmp_path, text)
        pairs = side_by_side(stages_of(found.config), found.iteration.critic)
        expected = {1: [(0, 0), (1, 0)], 4: [(0, 0), (0, 1), (1, 2), (1, 3)]}[stages]
        assert [(own.stage, other.stage) for own, other in pairs] == expected


def test_a_critic_with_processes_of_its_own_takes_its_runtime_in_every_phase(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text(SLIME_MODEL, encoding="utf-8")
    text = SLIME.replace("--prompt-data", "--advantage-estimator ppo --prompt-data")
    found = evaluated(tmp_path, text)
    assert all(one.parts["critic's runtime"] == one.parts["runtime"] for one in found.memory)


def test_shorter_samples_shorten_the_critics_phases(tmp_path):
    long, short = evaluated(tmp_path, PPO), evaluated(tmp_path, PPO, mean_prompt=100, mean_answer=200)
    for phase in (VALUES, CRITIC):
        assert short.times_ms[phase] < 0.3 * long.times_ms[phase]
    usual, longest = (next(one for one in each if one.phase == CRITIC) for each in (short.typical, short.memory))
    assert usual.total_mib <= longest.total_mib


def compared(tmp_path, seeds):
    """Jobs whose best split was found, of random ones that are all equal to the enumeration."""
    found, splits = evaluated(tmp_path, small(MEGATRON)), 0
    for seed in seeds:
        job = random_job(found, np.random.default_rng(seed))
        least = least_iteration(job, found)
        try:
            split = split_cards(job.config, job.iteration, found.chosen, job.choice, job.cards)
        except (InfeasibleError, InputError):
            assert least == math.inf, seed
            continue
        assert split.iteration_ms == pytest.approx(least, rel=1e-9), seed
        assert split.bound_ms <= least * (1 + 1e-9), seed
        splits += 1
    return splits


def test_the_best_split_is_that_of_every_split_layout_and_plan(tmp_path):
    assert compared(tmp_path, range(3)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_the_best_splits_of_two_hundred_jobs_are_those_of_every_split_layout_and_plan(tmp_path, part):
    assert compared(tmp_path, range(1000 + 20 * part, 1020 + 20 * part)) >= 10


def test_data_parallelism_takes_the_cards_that_other_degrees_leave(tmp_path):
    # The file's own four stages leave a data-parallel degree of 1.
    found = evaluated(tmp_path, small(MEGATRON))
    assert found.config.strategy.dp == 1
    layouts = {(each.dp, each.tp, each.pp) for each in legal_strategies(found.config, found.chosen.spec, 4)}
    assert layouts == {(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4)}


def test_no_layout_is_faster_than_its_lower_bound(tmp_path):
    from taylor.pipeline_solver.columns.work_limits import least_step_time

    found = evaluated(tmp_path, small(MEGATRON))
    tokens, iteration = SampleTokens(500, 1500), separated(found.iteration)
    for training in (1, 2):
        for strategy in legal_strategies(found.config, found.chosen.spec, training):
            layout = layout_of(found.config, strategy, iteration, found.chosen, tokens)
            solution = solve(layout.problem, SolveOptions())
            assert least_step_time(layout.problem) <= solution.objective * (1 + 1e-9)
            scored = scoring_ms(layout.timed.replace(plan=solution.plan), iteration, found.chosen.spec)
            assert layout.beside_ms <= scored * (1 + 1e-9)


def test_splits_use_whole_nodes_or_as_many_cards_of_each(tmp_path):
    found = evaluated(tmp_path)
    assert training_cards(16, found.iteration, found.chosen.spec) == [2, 4, 6, 8, 10, 12, 14]
    assert training_cards(4, found.iteration, found.chosen.spec) == [2]


def test_cards_that_one_engine_needs_cannot_be_split(tmp_path):
    found = evaluated(tmp_path)
    with pytest.raises(InputError, match="--cards: cannot be split"):
        split_cards(found.config, found.iteration, found.chosen, found.choice, 2)


def test_a_model_too_large_for_every_split_is_refused_with_the_reason(tmp_path):
    text = (
        small(MEGATRON)
        .replace("Qwen/Qwen3-0.6B", "Qwen/Qwen3-32B")
        .replace("micro_batch_size_per_gpu=1", "micro_batch_size_per_gpu=8")
    )
    found = evaluated(tmp_path, text)
    with pytest.raises(InfeasibleError, match="no split of 4 cards"):
        split_cards(found.config, found.iteration, found.chosen, found.choice, 4)


def test_means_longer_than_the_longest_sample_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"--mean_answer: is longer than the longest answer.*at most 6,144"):
        evaluated(tmp_path, mean_prompt=1, mean_answer=6145)
    with pytest.raises(InputError, match="--mean_prompt: is longer than the longest prompt"):
        evaluated(tmp_path, mean_prompt=2049, mean_answer=1)


def test_the_log_probabilities_need_logits_on_the_stage_of_the_head_and_nothing_for_absent_layers(tmp_path):
    found = evaluated(tmp_path, MEGATRON)
    stages = stages_of(found.config)

    def scoring(changed):
        memory = phase_memory(found.config, found.iteration, found.chosen.spec, changed)
        return next(one for one in memory if one.phase == LOG_PROBS).parts

    usual = scoring(stages)
    # The training's worst moment may be behind its loss, where no logits are.
    assert scoring([replace(stage, logits=0.0) for stage in stages]) == usual
    assert scoring([replace(stage, layers={**stage.layers, "moe": 0}) for stage in stages]) == usual


def test_the_mean_length_is_rounded_up_to_what_the_ranks_divide(tmp_path):
    found = evaluated(tmp_path)
    timed = timed_config(found.config, found.iteration, SampleTokens(10, 1001))
    assert timed.rules.seq_length == 1012


def test_a_table_of_speeds_is_interpolated_and_ends_flat(tmp_path):
    file = tmp_path / "speed.csv"
    file.write_text("concurrent,tokens_per_s\n64,3000\n1,60\n8,430\n", encoding="utf-8")
    speed = read_generation(file)
    assert (speed.alone, speed.at(8), speed.at(36), speed.at(500)) == (60, 430, 1715, 3000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("samples,speed\n1,2\n", "has other columns"),
        ("concurrent,tokens_per_s\n1,fast\n", "column tokens_per_s: must be a number above 0"),
        ("concurrent,tokens_per_s\n1.5,2\n", "must be a whole number above 0"),
        ("concurrent,tokens_per_s\n1,2\n1,3\n", "is stated twice"),
        ("concurrent,tokens_per_s\n", "contains no speeds"),
    ],
)
def test_bad_tables_are_refused_with_their_place(tmp_path, text, message):
    file = tmp_path / "speed.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_generation(file)


def test_a_mistyped_speed_is_answered_with_the_right_word():
    with pytest.raises(InputError, match=r"--generation: states no speed.*did you mean tokens_per_s\?"):
        rl.stated_speed("token_per_s=3")


def test_the_command_prints_the_figures_as_json(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(small(MEGATRON), encoding="utf-8")
    rl.run(
        [str(path), "--generation", "tokens_per_s=4000,alone=90", "--split", "--json", "--iterations", "10", "--quiet"]
    )
    found = json.loads(capsys.readouterr().out)
    assert [one["phase"] for one in found["phases"]] == [ROLLOUT, LOG_PROBS, TRAINING, RESHARDING]
    assert found["verdict"]["fit"] == FITS and found["hours"] == pytest.approx(found["iteration_ms"] / 360_000)
    assert found["split"]["training_cards"] + found["split"]["rollout_cards"] == 4
    assert found["split"]["lower_bound_ms"] <= found["split"]["iteration_ms"]


def test_the_table_of_phases_and_splits_is_printed(tmp_path, capsys):
    path = tmp_path / "run.sh"
    path.write_text(small(MEGATRON), encoding="utf-8")
    rl.run([str(path), "--generation", "tokens_per_s=4000", "--split", "--quiet"])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("rollout", "log-probs", "key-value cache", "no split with any layout"))
    assert "4 train, 4 generate, on the same cards" in printed
