"""A job with samples of unlike lengths: its table, its packing, its plan on fresh samples, its command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.command_lines.lengths import build_parser, run
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.step import layer_time
from taylor.parsers.read import read_config
from taylor.parsers.tables.lengths import SampleLengths, read_lengths
from taylor.register.frameworks import MEGATRON
from taylor.register.model import DENSE
from taylor.register.registry import Registry
from taylor.workflows.solving.unlike_lengths import (
    ORDERS,
    PACKINGS,
    LengthChoice,
    LengthCosts,
    balanced_packs,
    plan_lengths,
    sample_steps,
)
from taylor.workflows.statement.options import FileJob

SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 16 --hidden-size 2048 --ffn-hidden-size 5504 \\
 --num-attention-heads 16 --seq-length 16384 --max-position-embeddings 16384 --micro-batch-size 1 \\
 --global-batch-size 32 --bf16 --pipeline-model-parallel-size 4 --vocab-size 32000 --swiglu --disable-bias-linear \\
 --normalization RMSNorm --position-embedding-type rope --use-flash-attn --untie-embeddings-and-output-weights \\
 --attention-dropout 0 --hidden-dropout 0 --use-distributed-optimizer
"""
LENGTHS = "length,count\n512,400\n2048,300\n8192,80\n16384,20\n40000,3\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    script, table = tmp_path / "sft.sh", tmp_path / "lengths.csv"
    script.write_text(SCRIPT)
    table.write_text(LENGTHS)
    return script, table


def costs_of(length: int = 16384) -> LengthCosts:
    model, device = Registry.load().model("llama2-7b"), Registry.load().device("h100-80g")
    rules = TrainingRules(framework=MEGATRON, seq_length=length, param_bytes=2)
    return LengthCosts(model, Strategy(1, 1, 1), rules, device)


def test_a_table_is_read_and_longer_samples_are_cut(files: tuple[Path, Path]) -> None:
    lengths = read_lengths(files[1])
    assert (lengths.samples, lengths.longer_than(16384)) == (803, 3)
    cut = lengths.cut_to(16384)
    assert cut.lengths.tolist() == [512, 2048, 8192, 16384] and cut.counts.tolist() == [400, 300, 80, 23]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "contains no lengths"),
        ("tokens,n\n1,2\n", "row 1: has other columns.*tokens,n"),
        ("length,count\n12\n", "row 2: has 1 cells"),
        ("length,count\n0,4\n", "row 2, column length: must be a whole number from 1"),
        ("length,count\n9,1e3\n", "row 2, column count: must be a whole number.*1e3"),
        ("length,count\n" + "9" * 100_000 + ",1\n", "row 2, column length: must be a whole number"),
    ],
)
def test_a_bad_table_is_named_with_its_row_and_value(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        read_lengths(path)


@pytest.mark.parametrize("length", [1024, 4096, 16384, 65536])
def test_a_sample_costs_what_a_layer_of_its_length_takes(length: int) -> None:
    """Within 12 % of the layer priced at that length: short ones fill the device less, which is not counted."""
    costs = costs_of(65536)
    model, device = Registry.load().model("llama2-7b"), Registry.load().device("h100-80g")

    def layer_ms(tokens: int) -> float:
        rules = TrainingRules(framework=MEGATRON, seq_length=tokens, param_bytes=2)
        time = layer_time(model, DENSE, Strategy(1, 1, 1), rules, device)
        return float(time.forward + time.backward)

    assert costs.factor(length, length**2) == pytest.approx(layer_ms(length) / layer_ms(65536), rel=0.12)


def test_packs_hold_all_samples_of_the_step_and_no_more_tokens_than_fit() -> None:
    costs, rng = costs_of(), np.random.default_rng(0)
    lengths = SampleLengths(np.array([512, 2048, 8192, 16384]), np.array([400, 300, 80, 23]))
    for packing in PACKINGS:
        choice = LengthChoice(lengths, packing)
        steps = sample_steps(choice, lengths, Strategy(2, 1, 4, micro_batches=16), costs, 4, seed=1)
        assert steps.scenarios.layers.shape == (8, 16) and len(steps.scenarios) == 4
        assert (steps.scenarios.ends <= 1 + 1e-12).all() and (steps.tokens <= steps.slots).all()
    packs = [rng.choice([512, 2048, 8192], size=6).tolist() for _ in range(8)]
    packs = [[length for length in pack if length][:3] for pack in packs]
    dealt = balanced_packs(packs, costs)
    assert sorted(sum(dealt, [])) == sorted(sum(packs, []))
    assert max(map(sum, dealt)) <= costs.budget

    def spread(some: list[list[int]]) -> float:
        loads = [costs.factor(sum(pack), sum(length**2 for length in pack)) for pack in some]
        return max(loads) - min(loads)

    assert spread(dealt) <= spread(packs)


def test_the_plan_is_no_worse_than_that_for_equal_lengths_and_its_file_reads_back(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    choice = LengthChoice(read_lengths(files[1]), "packed", scenarios=16)
    found = plan_lengths(FileJob(files[0]), choice, tmp_path, time_limit=20, output=tmp_path / "out.sh")
    assert found.found.gap <= 0.01 and found.usual_ms is not None
    assert found.fresh_ms <= found.usual_ms * 1.005
    assert found.cut == 3 and found.hours > 0
    written = read_config(tmp_path / "out.sh").plan
    assert written is not None and found.found.plan is not None
    assert written.total_layers() == found.found.plan.total_layers()


def test_the_command_prints_its_figures_as_data(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run([str(files[0]), "--lengths", str(files[1]), "--scenarios", "4", "-t", "20", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["lower_bound_ms"] <= found["mean_step_ms"] and found["scenarios"] == 4
    assert found["samples_cut"] == 3 and found["plan"]["layers"]["dense"]


def test_the_command_offers_every_packing_and_order() -> None:
    actions = {action.dest: action.choices for action in build_parser()._actions}
    assert (actions["packing"], actions["order"]) == (PACKINGS, ORDERS)
