"""What `taylor rl` prints of the phases of an iteration and of the split of its cards."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace as Has

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import rl
from taylor.workflows.rl import evaluate, split
from tests.conftest import ROOT

FILE = str(ROOT / "config" / "rl_qwen3_8b_verl.sh")


def phase(name, total, usable=1000.0, verdict="fits"):
    return Has(phase=name, parts={"weights": total - 100.0, "cache": 100.0}, total_mib=total, usable_mib=usable,
               verdict=verdict)  # fmt: skip


def critic():
    config = Has(model=Has(name="qwen3-8b"), strategy=Has(name="DP8", mbs=2))
    return Has(config=config, iteration=Has(updates=3))


def length(steps=None, samples=None):
    return Has(
        steps=steps, epoch_samples=samples, run_hours=lambda seconds, rate: steps and steps * seconds / 3600,
        epoch_hours=lambda rate: samples and samples / rate / 3600,
    )  # fmt: skip


def found(**changes):
    memory = [phase("training", 900.0), phase("roll-outs", 800.0)]
    iteration = Has(phases=("roll-outs", "training"), colocated=True, rollout_cards=16, critic=None, prompts=64,
                    samples=256, engine=Has(name="vllm", cards=2), **changes.pop("iteration", {}))  # fmt: skip
    usual = {
        "memory": memory, "times_ms": {"roll-outs": 6000.0, "training": 3000.0, "resharding": 1000.0, "sync": None},
        "known_ms": {"roll-outs": 6000.0, "training": 3000.0}, "longest": "roll-outs", "iteration_ms": 10_000.0,
        "config": Has(strategy=Has(world_size=32)), "iteration": iteration, "cached": 1200, "fullest": memory[0],
        "samples_a_second": 25.6, "tokens": Has(total=1500), "assumed": ("answers are as long as stated",),
        "verdict": "fits", "typical": (), "cards": 32,
    }  # fmt: skip
    return Has(**usual | changes)


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def lines(capsys):
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line.strip(" ─╴╶")]


def test_the_phases_are_printed_with_the_iteration_that_they_make(capsys):
    rl._print(found(), length())
    assert lines(capsys) == PRINTED.splitlines()


PRINTED = """\
phase time peak MiB free MiB largest parts, MiB
training 3,000 ms 900 100 fits weights 800, cache 100
roll-outs 6,000 ms 800 200 fits weights 700, cache 100
cards: 32 train, 16 generate, on the same cards
engine: vllm on 2 card(s): up to 1,200 samples of the mean length in its cache
resharding: 1,000 ms
iteration: 10 s; roll-outs takes 60%
memory: fits: the fullest phase is training, with 100 MiB free
speed: 25.60 samples/s, 38,400 tokens/s
assumed: answers are as long as stated"""


def printed(capsys, *, of=None, **changes):
    rl._print(found(**changes), of or length())
    return "\n".join(lines(capsys))


def test_each_fact_of_an_iteration_is_printed_where_there_is_one(capsys):
    shown = printed(capsys)
    assert "critic" not in shown and "epoch" not in shown and "iterations" not in shown and "sync" not in shown
    one = found()
    one.iteration.critic, one.iteration.colocated = critic(), False
    rl._print(one, length(steps=360, samples=6400))
    shown = "\n".join(lines(capsys))
    assert "on cards of their own" in shown
    assert "critic: qwen3-8b with a value head, DP8, micro-batches of 2, 3 update(s) an iteration" in shown
    assert "tokens/s; 16.7 minutes an epoch of 6,400 prompts; 1.0 hours for 360 iterations" in shown
    assert "an epoch" not in printed(capsys, of=length(steps=360))
    assert "iterations" not in printed(capsys, of=length(samples=360))


def test_memory_that_does_not_fit_is_said_with_what_lacks(capsys):
    assert rl._memory_text(found(cached=0)).startswith("does not fit: the engine's weights leave no key-value cache")
    assert rl._memory_text(found(cached=1)) == "fits: the fullest phase is training, with 100 MiB free"
    assert rl._memory_text(found(fullest=phase("training", 1000.0))).endswith("with 0 MiB free")
    full = phase("training", 2500.0)
    assert rl._memory_text(found(fullest=full)) == "does not fit: training needs 1,500 MiB more than a card has"
    typical = [phase("training", 900.0), phase("roll-outs", 940.0)]
    assert rl._memory_text(found(fullest=full, typical=typical)) == (
        "does not fit: training needs 1,500 MiB more than a card has; with samples of the mean length roll-outs "
        "leaves 60"
    )


def row(training, rollouts, train_ms, roll_ms, whole=None, reason="", layout="DP8"):
    return Has(training_cards=training, rollout_cards=rollouts, rollout_ms=roll_ms, training_ms=train_ms,
               iteration_ms=whole, bound_ms=math.inf if reason else 5000.0,
               strategy=None if reason else Has(name=layout), reason=reason)  # fmt: skip


def split_of(best, *others, cards=32):
    return Has(rows=[*others, best], best=best, iteration_ms=8000.0, bound_ms=7000.0, gap=0.125, samples_a_second=32.0,
               iteration=found().iteration, cards=cards)  # fmt: skip


def test_the_splits_are_printed_with_the_side_that_waits(capsys):
    best = row(20, 12, 6000.0, 8000.0, 8000.0)
    rl._print_split(split_of(best, row(30, 2, None, 9000.0, reason="no memory")), found(), length())
    assert lines(capsys) == SPLIT.splitlines()
    rl._print_split(split_of(row(20, 12, 8000.0, 6000.0, 8000.0), cards=16), found(), length(steps=450))
    shown = "\n".join(lines(capsys))
    assert "iteration: 8,000 ms; the roll-outs wait 25% of it" in shown and "against the file: on other cards" in shown
    assert "32.00 samples/s; 1.0 hours for 450 iterations" in shown
    rl._print_split(split_of(row(20, 12, 8000.0, 8000.0, 8000.0)), found(), length())
    assert "the roll-outs wait 0% of it" in capsys.readouterr().out


SPLIT = """\
training roll-outs roll-out time training time iteration layout of the training
30 2 9,000 ms no memory
20 12 8,000 ms 6,000 ms 8,000 ms DP8
split: 20 cards train, 12 generate one iteration ahead
iteration: 8,000 ms; the training waits 25% of it
bound: no split with any layout takes less than 7,000 ms (gap 12.50%)
speed: 32.00 samples/s
against the file: +25% samples/s"""


def test_a_speed_is_stated_by_its_names():
    both, one = rl.stated_speed("tokens_per_s=6000, alone=80"), rl.stated_speed("tokens_per_s=6000")
    assert both == evaluate.GenerationSpeed.of(6000.0, 80.0) and one == evaluate.GenerationSpeed.of(6000.0, None)
    for text, said in (
        ("tokens_per_s", "--generation: states no speed (found 'tokens_per_s')"), ("alone=80", "lacks tokens_per_s"),
        ("tokens=5", "states no speed (found 'tokens=5')"), ("tokens_per_s=x", "--generation tokens_per_s"),
        ("tokens_per_s=0", "--generation tokens_per_s"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            rl.stated_speed(text)
        assert said in str(refused.value)


SPEED = ("--generation", "tokens_per_s=6000,alone=80")


def test_the_flags_reach_the_evaluation_and_the_split(monkeypatch, capsys):
    kept = []
    whole = evaluate.evaluate_iteration

    def evaluated(job, choice):
        kept.append((job.device, job.world_size, choice.mean_prompt, choice.mean_answer))
        return whole(job, choice)

    def divided(config, iteration, chosen, choice, cards, seconds):
        kept.append((cards, seconds))
        return Has(**vars(split_of(row(20, 12, 6000.0, 8000.0, 8000.0))), to_dict=lambda: {"cards": cards})

    monkeypatch.setattr(evaluate, "evaluate_iteration", evaluated)
    monkeypatch.setattr(split, "split_cards", divided)
    rl.run([FILE, *SPEED, "--mean_prompt", "100", "--mean_answer", "200", "--device", "h100-80g"])
    shown = capsys.readouterr().out
    assert kept == [("h100-80g", None, 100, 200)] and "iteration:" in shown and "against the file" not in shown
    rl.run([FILE, *SPEED, "--split"])
    assert kept[2][1] == 120.0 and "against the file" in capsys.readouterr().out
    rl.run([FILE, *SPEED, "--split", "--cards", "12", "-t", "7", "--json", "--iterations", "10", "--samples", "99"])
    document = json.loads(capsys.readouterr().out)
    assert kept[4] == (12, 7.0) and document["split"] == {"cards": 12} and document["hours"] > 0
    rl.run([FILE, *SPEED, "--json"])
    assert json.loads(capsys.readouterr().out)["split"] is None
    for words in (["--cards", "4"], ["-t", "4"]):
        with pytest.raises(InputError, match="has no effect without --split"):
            rl.run([FILE, *SPEED, *words])


def test_a_speed_may_stand_in_a_table(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("concurrent,tokens_per_s\n1,80\n64,3000\n")
    rl.run([FILE, "--generation_table", str(table), "--json"])
    assert json.loads(capsys.readouterr().out)["schema"] == "taylor.rl/1"
