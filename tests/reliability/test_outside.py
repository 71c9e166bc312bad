"""A short form of what the campaign asks the frameworks themselves; skipped where their code is not on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.differential_reading.sandbox import available
from benchmarks.least_ranks import compared
from benchmarks.reliability import legality, schedules
from benchmarks.reliability.outside import NotHere


@pytest.mark.parametrize("framework", ["mindformers", "megatron"])
def test_a_framework_starts_what_the_rules_let_through_and_nothing_else(framework: str) -> None:
    found = legality.compared(framework, 12, seed=1)
    if "absent" in found:
        pytest.skip(found["absent"])
    assert found["faults"] == []
    assert 0 < found["legal"] < found["strategies"] == 12


@pytest.mark.parametrize("generator", [*schedules.RUN, *schedules.STATED])
def test_the_order_of_tasks_is_that_of_its_author(generator: str) -> None:
    found = schedules.compared(generator, 2)
    if "absent" in found:
        pytest.skip(found["absent"])
    assert found["faults"] == [] and found["shapes"] == 2


def test_another_order_than_its_authors_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    of_stage = schedules.published.mindspore_seqpipe
    monkeypatch.setattr(schedules.published, "mindspore_seqpipe", lambda *words, name: of_stage(*words))
    assert schedules.compared("MindSpore: seqvpp", 5)["faults"]


SCRIPT = """\
NPUS_PER_NODE=8
NNODES=64
torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py --num-layers 24 --hidden-size 1024 \\
    --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
    --global-batch-size 960 --padded-vocab-size 32000 --num-experts 48 --moe-router-topk 2 {degrees}
"""


@pytest.mark.parametrize(
    ("degrees", "least"),
    [
        ("--tensor-model-parallel-size 2", 8),
        ("--pipeline-model-parallel-size 3", 24),
        ("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --expert-model-parallel-size 6", 48),
        ("--expert-model-parallel-size 12 --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2", 24),
    ],
)
def test_ranks_that_a_script_leaves_open_are_the_least_on_which_megatron_makes_its_groups(
    tmp_path: Path, degrees: str, least: int
) -> None:
    if not available():
        pytest.skip("bash cannot be shut in here")
    (tmp_path / "run.sh").write_text(SCRIPT.format(degrees=degrees))
    try:
        [(_, outcome, ours, theirs)] = compared(iter([tmp_path / "run.sh"]), most=1)
    except NotHere as absent:
        pytest.skip(str(absent))
    assert (outcome, ours, theirs) == ("equal", least, least)
