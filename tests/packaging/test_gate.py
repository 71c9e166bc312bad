"""The prediction gate names what moved by its cause, and passes only what the changelog states."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gate import __main__ as gate
from benchmarks.gate.compare import Move, moves, table_text, unexplained
from benchmarks.gate.evaluate import CAUSES, MEMORY, STEP, figures_of
from benchmarks.gate.points import Group, draw
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.time.step import step_ms
from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from tests.conftest import ROOT

CONFIG = read_config(ROOT / "config" / "pretrain_llama3_70b.sh")
DEVICE = Registry.load().device("h100-80g")
COLUMNS = {"dp": [4, 2], "tp": [4, 8], "pp": [4, 4], "ep": [1, 1], "cp": [1, 1], "op": [4, 2], "sp": [1, 1],
           "vpp": [1, 2], "mbs": [1, 1], "micro_batches": [32, 64]}  # fmt: skip
GROUP = Group("file", "llama3-70b", "h100-80g", "megatron", "bf16", COLUMNS)
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n- Links carry half of what\n  they carried before.\n\n## 0.2.0\n- Old news here.\n"
)
MOVE = Move("megatron bf16", "communication", 2, 2, 1.5, 1.0, 2.0)


def moved(device=DEVICE, config=CONFIG) -> list[Move]:
    return moves([GROUP], {0: figures_of(CONFIG, DEVICE, COLUMNS)}, {0: figures_of(config, device, COLUMNS)})


def test_the_parts_of_the_step_add_up_to_it() -> None:
    table = StrategyTable(**{name: np.array(column) for name, column in COLUMNS.items()})
    parts = figures_of(CONFIG, DEVICE, COLUMNS)[:, [CAUSES.index(cause) for cause in STEP]]
    assert parts.sum(axis=1) == pytest.approx(step_ms(CONFIG.model, table, CONFIG.rules, DEVICE))
    assert (parts[:, :3] > 0).all() and (parts[:, 3] >= 0).all()


def test_what_stays_does_not_move() -> None:
    assert moved() == [] and table_text([]) == "nothing moved"


@pytest.mark.parametrize(
    "change, causes",
    [
        (lambda device: replace(device, links=tuple(replace(tier, gb_s=tier.gb_s / 2) for tier in device.links)),
         {"communication"}),
        (lambda device: replace(device, operation_us=10 * device.operation_us), {"host"}),
        (lambda device: replace(device, peak_tflops={"bf16": 500.0}), {"compute", "bubble"}),
    ],
)  # fmt: skip
def test_a_slower_device_moves_its_own_part_of_the_step_and_no_memory(change, causes) -> None:
    found = {move.cause for move in moved(device=change(DEVICE))}
    # Slower GEMMs hide more of the host and of transfers, and a slower host hides more transfers.
    hidden = {"compute": {"host", "communication"}, "host": {"communication"}}
    also = set().union(*(hidden.get(cause, set()) for cause in causes))
    assert causes <= found <= causes | also


def test_states_that_are_split_less_move_the_states_and_longer_samples_the_activations() -> None:
    whole = CONFIG.replace(rules=CONFIG.rules.replace(parallel_optimizer=False))
    assert {move.cause for move in moved(config=whole)} & set(MEMORY) == {"states"}
    longer = CONFIG.replace(rules=CONFIG.rules.replace(seq_length=2 * CONFIG.rules.seq_length))
    assert "activations" in {move.cause for move in moved(config=longer)}


def test_a_move_passes_with_a_line_of_the_unreleased_changes_alone() -> None:
    def reasons(line: str, release: str = "0.2.0", **figures: float) -> list[str]:
        entry = {**MOVE.figures(), **figures, "changelog": line}
        accepted = {"release": release, "moves": {MOVE.name: entry}}
        return [reason for _, reason in unexplained([MOVE], accepted, "0.2.0", CHANGELOG)]

    assert reasons("Links carry half of what they carried") == []
    assert "no line" in reasons("Old news here. Nothing of it is new")[0]
    assert "no line" in reasons("half")[0]
    assert "moved further" in reasons("Links carry half of what they carried", most=1.9)[0]
    assert "not recorded" in reasons("Links carry half of what they carried", release="0.1.0")[0]


def test_a_figure_that_is_no_number_and_a_file_that_is_read_no_more_are_moves() -> None:
    before = figures_of(CONFIG, DEVICE, COLUMNS)
    broken = before.copy()
    broken[0, CAUSES.index("compute")] = np.nan
    assert [(move.cause, move.points) for move in moves([GROUP], {0: before}, {0: broken})] == [("compute", 1)]
    assert [(move.cause, move.points) for move in moves([GROUP], {0: before}, {})] == [("read no more", 2)]
    assert [(move.cause, move.points) for move in moves([GROUP], {}, {0: before})] == [("newly read", 2)]


@pytest.mark.slow
def test_points_are_the_same_at_every_draw_and_cover_launchers_and_precisions(tmp_path) -> None:
    first, again = draw(tmp_path / "a", 1000), draw(tmp_path / "b", 1000)
    plain = [[replace(group, file="") for group in groups] for groups in (first, again)]
    assert plain[0] == plain[1] and sum(len(group.table["dp"]) for group in first) == 1000
    assert {group.launcher for group in first} == {"megatron", "mindspeed", "mindformers", "torchtitan"}
    assert {group.precision for group in first} >= {"bf16", "fp8"} and len({group.device for group in first}) == 8


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the history")
def test_the_release_is_evaluated_by_its_own_code(tmp_path) -> None:
    try:
        version, commit = gate.last_release()
    except SystemExit:
        pytest.skip("a shallow clone")
    release = gate.checkout(commit, tmp_path / "release")
    text = (release / "taylor" / "__init__.py").read_text()
    assert f'__version__ = "{version}"' in text
    points = tmp_path / "points.json"
    group = {"file": str(release / "config" / "pretrain_llama2_7b.yaml"), "device": "ascend-910b", "table": COLUMNS}
    points.write_text(json.dumps([group]))
    found = gate.figures_by(release, points, tmp_path / "figures.npz")
    assert found[0].shape == (2, len(CAUSES)) and np.isfinite(found[0]).all()
    with pytest.raises(subprocess.CalledProcessError):  # a root that is not where taylor comes from
        wrong = tmp_path / "empty"
        wrong.mkdir()
        gate.figures_by(wrong, points, tmp_path / "none.npz")


def test_every_accepted_move_names_a_line_of_the_changelog() -> None:
    accepted = json.loads(gate.ACCEPTED.read_text())
    changelog = " ".join(gate.CHANGELOG.read_text().split())
    assert all(" ".join(entry["changelog"].split()) in changelog for entry in accepted["moves"].values())
