"""Logs of earlier runs, found by what their paths say, against a listing by hand."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun import replay
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun
from taylor.dryrun.replay import ReplayBackend, read_logs

LINE = "Used peak memory usage (without fragments): {}M\nActual peak memory usage (with fragments): {}M\n"
OWN = Strategy(2, 2, 4, ep=2, micro_batches=8)
"""16 ranks, 4 a stage."""


def write(folder, place, text):
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(LINE.format(text, text + 5) if isinstance(text, int) else text)


def test_paths_tell_degrees_ranks_and_stages(tmp_path):
    told = {
        "DP2_TP4/rank_3.log": ({"dp": 2, "tp": 4}, 3, None),
        "x_DP2-TP4.PP8/EP2_CP4_OP8_SP1_VPP2_MBS3_M64/rank12/a.log": (
            {"dp": 2, "tp": 4, "pp": 8, "ep": 2, "cp": 4, "op": 8, "sp": 1, "vpp": 2, "mbs": 3, "micro_batches": 64},
            12, None,
        ),
        "plain.log": ({}, None, None),
        "stage_2/rank_7/STAGE3.log": ({}, 7, 3),
        "rank_1/Rank_2.log": ({}, 2, None),
        "ADP2_DP3x/DP4.log": ({"dp": 4}, None, None),
        "prank_5/backstage_6.log": ({}, None, None),
        "rank_12345678.log": ({}, None, None),
    }  # fmt: skip
    for at, place in enumerate(told):
        write(tmp_path, place, 100 + at)
    write(tmp_path, "rank_0.txt", 1)
    (tmp_path / "folder.log").mkdir()
    found = {str(log.path.relative_to(tmp_path)): log for log in read_logs(tmp_path)}
    assert set(found) == set(told)
    for at, (place, wanted) in enumerate(told.items()):
        log = found[place]
        assert (log.degrees, log.rank, log.stage) == wanted
        assert (log.peak_mib, log.actual_mib, log.failure) == (100 + at, 105 + at, "")


def test_a_log_is_of_the_strategies_that_its_path_does_not_contradict(tmp_path):
    write(tmp_path, "DP2_PP4/rank_9.log", 7)
    [log] = read_logs(tmp_path)
    for dp, tp, pp in itertools.product((1, 2), (1, 2), (2, 4)):
        strategy = Strategy(dp, tp, pp, micro_batches=8)
        assert log.of(strategy) == ((dp, pp) == (2, 4))
        # Ranks lie stage after stage.
        ranks = [stage for stage in range(pp) for _ in range(dp * tp)]
        if len(ranks) > 9:
            assert log.stage_of(strategy) == ranks[9]


def answered(tmp_path, logs, stages=(0, 1, 2, 3)):
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    for place, text in logs.items():
        write(folder, place, text)
    backend = ReplayBackend(folder)
    [result] = backend.measure([DryRun(SimpleNamespace(), OWN, None, stages)])
    peak = backend.strategy_peak(OWN)
    heaviest = None if peak is None else (peak.stage, peak.peak_mib, peak.failure)
    return [(each.stage, each.peak_mib, each.failure.split(" DP")[0]) for each in result.stages], heaviest


def test_each_stage_has_the_largest_of_its_own_logs_and_else_of_those_without_a_place(tmp_path):
    ranks = {f"rank_{rank}.log": 100 * (rank // 4) + rank % 4 for rank in range(16)}
    told, heaviest = answered(tmp_path, ranks)
    assert told == [(stage, 100 * stage + 3, "") for stage in range(4)] and heaviest == (3, 303, "")
    told, heaviest = answered(tmp_path, {"a.log": 50, "b.log": 60})
    assert told == [(stage, 60, "") for stage in range(4)] and heaviest == (0, 60, "")
    told, heaviest = answered(tmp_path, {"a.log": 50, "stage_2.log": 20, "rank_4.log": 30})
    assert told == [(0, 50, ""), (1, 30, ""), (2, 20, ""), (3, 50, "")] and heaviest == (0, 50, "")
    told, heaviest = answered(tmp_path, {"stage_1/a.log": 50, "DP4/stage_2.log": 20}, (2, 1))
    assert told == [(2, None, "no log of"), (1, 50, "")] and heaviest == (1, 50, "")


def test_a_failed_log_counts_where_no_other_of_its_stage_is_good(tmp_path):
    short = "RuntimeError: Out of memory\n"
    told, heaviest = answered(
        tmp_path, {"stage_0/a.log": short, "stage_0/b.log": 9, "stage_1/a.log": "killed\n"}, (0, 1)
    )
    assert told == [(0, 9, ""), (1, None, "the log has no peak memory line")]
    assert heaviest is not None and heaviest[1] is None
    told, heaviest = answered(tmp_path, {"stage_1/a.log": short, "stage_1/b.log": "x\n"}, (1,))
    assert told == [(1, None, OUT_OF_MEMORY)] and heaviest == (1, None, OUT_OF_MEMORY)
    told, heaviest = answered(tmp_path, {"DP4/stage_1.log": 5}, (1,))
    assert told[0][1] is None and heaviest is None


def test_no_more_logs_than_a_bound_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "MAX_LOGS", 3)
    for count in range(3):
        write(tmp_path, f"rank_{count}.log", 1)
    assert len(read_logs(tmp_path)) == 3
    write(tmp_path, "rank_3.log", 1)
    with pytest.raises(InputError, match="more than 3 logs"):
        read_logs(tmp_path)
    assert (ReplayBackend.name, ReplayBackend.exact, ReplayBackend.every_flag) == ("replay", False, True)
