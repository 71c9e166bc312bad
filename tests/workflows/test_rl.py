"""Iterations of reinforcement learning: phases, and the best split against every split and layout."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from taylor.base.errors import InfeasibleError, InputError
from taylor.command_lines import rl
from taylor.parsers.rl_iteration import ENGINE, LOG_PROBS, RESHARDING, ROLLOUT, TRAINING
from taylor.parsers.tables.generation import GenerationSpeed, read_generation
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.rl.evaluate import RlChoice, evaluate_iteration
from taylor.workflows.rl.memory import CACHE, FITS, OVER, phase_memory, stages_of
from taylor.workflows.rl.split import layout_of, legal_strategies, separated, split_cards, training_cards
from taylor.workflows.rl.times import COPIES, SampleTokens, reshard_ms, rollout_ms, scoring_ms, timed_config
from taylor.workflows.statement.options import FileJob
from tests.parsers.verl.files import MEGATRON, SHARDED

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
    assert found.hours(100) == pytest.approx(found.iteration_ms / 36_000)


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
    assert training.total_mib == pytest.approx(max(stage.total for stage in stages))


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
    assert found.held == 0 and found.verdict == OVER


def test_offloading_the_optimizer_frees_exactly_its_states_in_the_rollout(tmp_path):
    offload = "tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.optimizer_offload=True"
    stays, leaves = evaluated(tmp_path), evaluated(tmp_path, MEGATRON.replace("tensor_model_parallel_size=2", offload))
    kept, freed = (next(one for one in each.memory if one.phase == ROLLOUT) for each in (stays, leaves))
    assert kept.total_mib - freed.total_mib == pytest.approx(kept.parts["optimizer"])
    assert leaves.times_ms[COPIES] > 0 == stays.times_ms[COPIES]


@pytest.mark.parametrize("tokens_per_s", [1500, 12_000, 60_000])
def test_the_best_split_is_that_of_every_split_with_every_layout(tmp_path, tokens_per_s):
    choice = RlChoice(GenerationSpeed.of(tokens_per_s), mean_prompt=500, mean_answer=1500)
    found = evaluated(tmp_path, small(MEGATRON), speed=choice.speed, mean_prompt=500, mean_answer=1500)
    split = split_cards(found.config, found.iteration, found.chosen, choice, 4)
    least, bound = least_iteration(found, choice, 4)
    assert split.iteration_ms == pytest.approx(least, rel=1e-9)
    # A plan whose step is longer may pass shorter beside it: nothing is proven beyond the least of either.
    assert 0.98 * least < split.bound_ms <= bound * (1 + 1e-9)


def least_iteration(found, choice, cards):
    """The least iteration, with the plan of the least step of every layout on every number of cards; and a bound.

    No plan's iteration is below the bound: the least step of a layout beside the least further passes of its plans.
    """
    tokens, times, bounds = choice.tokens(found.iteration), [], []
    for training in range(1, cards):
        iteration = replace(separated(found.iteration), rollout_cards=cards - training)
        generated = rollout_ms(iteration, choice.speed, tokens, cards - training, iteration.engine.concurrent)
        for strategy in legal_strategies(found.config, found.chosen.spec, training):
            layout = layout_of(found.config, strategy, iteration, found.chosen, tokens)
            solution = solve(layout.problem, SolveOptions())
            if solution.plan is None:
                continue
            step = solution.objective * layout.problem.unit_ms
            scored = scoring_ms(layout.timed.replace(plan=solution.plan), iteration, found.chosen.spec)
            own = layout.timed
            sync = reshard_ms(own, iteration, found.chosen.spec)
            times.append(max(generated, iteration.updates * step + scored) + sync)
            bounds.append(max(generated, iteration.updates * step + layout.beside_ms) + sync)
    return min(times), min(bounds)


def test_no_layout_is_faster_than_its_lower_bound(tmp_path):
    from taylor.pipeline_solver.columns.work_limits import least_step_time

    found = evaluated(tmp_path, small(MEGATRON))
    tokens, iteration = SampleTokens(500, 1500), separated(found.iteration)
    for training in (1, 2, 4):
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
