"""The time of large collectives from those of small runs."""

from __future__ import annotations

import random
import statistics
from types import SimpleNamespace
from typing import cast

import pytest
from scipy.stats import norm

from taylor.blackbox.collective_lines import BETWEEN, IN_NODE, MIXED, Collective, CollectiveLine, CollectiveLines
from taylor.blackbox.step_laws import StepLaws

GB_S = {IN_NODE: 150.0, BETWEEN: 22.0, MIXED: 19.0}
SENT = {"all-gather": 1, "all-reduce": 2, "all-to-all": 1}


def hidden_ns(kind: str, group: int, link: str, size: int) -> float:
    if kind == "transfer":
        return 9000 + size / GB_S[link]
    rounds = SENT[kind] * (group - 1)
    return 12_000 + rounds * (2500 + size / group / GB_S[link])


@pytest.mark.parametrize("seed", range(5))
def test_large_collectives_are_foretold_through_noise_and_stragglers(seed):
    draw, samples = random.Random(seed), []
    places = [(2, 1), (4, 1), (8, 1), (2, 8), (4, 8), (16, 1), (8, 4)]
    for kind in (*SENT, "transfer"):
        for group, stride in places if kind != "transfer" else [(2, 1), (2, 8)]:
            for size in (1 << 20, 1 << 24, 1 << 26):
                one = Collective(kind, group, stride, size)
                for _ in range(9):
                    late = 5 if draw.random() < 0.1 else 1
                    samples.append((one, hidden_ns(kind, group, one.link(8), size) * draw.gauss(1, 0.03) * late))
    lines, errors = CollectiveLines(samples, 8), []
    for kind in SENT:
        for group, stride in [(8, 1), (32, 8), (64, 8), (32, 1), (64, 4)]:
            one = Collective(kind, group, stride, 1 << 30)
            line = lines.line(one)
            assert line is not None and line.error < 0.15
            errors.append(abs(line.at(one) / hidden_ns(kind, group, one.link(8), 1 << 30) - 1))
    assert statistics.median(errors) < 0.03 and max(errors) < 0.1


@pytest.mark.parametrize(
    ("group", "stride", "link"), [(8, 1, IN_NODE), (4, 2, IN_NODE), (4, 8, BETWEEN), (8, 2, MIXED)]
)
def test_links_are_told_from_group_and_stride(group, stride, link):
    assert Collective("all-gather", group, stride, 1).link(8) == link


def test_a_link_that_no_small_run_used_has_no_line():
    one = Collective("all-gather", 8, 1, 1 << 20)
    assert CollectiveLines([(one, 1e5)] * 9, 8).line(one) is None


@pytest.mark.parametrize(("slower", "least", "most"), [(1.0, 0.0, 0.01), (1.2, 0.1, 0.2)])
def test_of_a_kind_that_runs_show_on_other_links_alone_the_error_is_how_far_it_differs_there(slower, least, most):
    def took(kind: str, one: Collective) -> float:
        return hidden_ns(kind, one.group, one.link(8), one.bytes) * (slower if kind == "all-to-all" else 1.0)

    places = {"all-gather": [(2, 1), (4, 1), (4, 4), (8, 4), (2, 8), (4, 8)], "all-to-all": [(2, 1), (4, 1), (2, 8)]}
    samples = [
        (one, took(kind, one))
        for kind, groups in places.items()
        for group, stride in groups
        for one in (Collective(kind, group, stride, size) for size in (1 << 20, 1 << 24, 1 << 26))
    ]
    lines = CollectiveLines(samples, 8)
    for kind in ("all-to-all", "broadcast"):  # of the latter no run shows any
        line = lines.line(Collective(kind, 16, 1, 1 << 30))
        assert line is not None and least <= line.error <= most + 1e-9
    own = lines.line(Collective("all-gather", 16, 1, 1 << 30))
    assert own is not None and own.error < 0.01


def test_few_of_a_kind_scale_the_line_of_the_others_on_links_that_leave_a_node():
    def took(one: Collective) -> float:
        return hidden_ns(one.kind, one.group, one.link(8), one.bytes) * (1.2 if one.kind == "all-to-all" else 1.0)

    seen = [Collective("all-to-all", 2, 8, size) for size in (1 << 21, 1 << 23)]
    seen += [
        Collective("all-gather", group, stride, size)
        for group, stride in ((2, 1), (4, 1), (4, 4), (8, 4), (16, 1), (2, 8), (4, 8))
        for size in (1 << 20, 1 << 21, 1 << 22, 1 << 24, 1 << 26)
    ]
    lines = CollectiveLines([(one, took(one)) for one in seen], 8)
    for group, stride, least in ((4, 8, 0.0), (16, 8, 0.0), (8, 4, 0.1), (16, 1, 0.1)):
        one = Collective("all-to-all", group, stride, 1 << 22)
        line = lines.line(one)
        assert line is not None and line.at(one) == pytest.approx(took(one), rel=0.03) and line.error >= least


def test_a_step_s_interval_takes_a_median_error_for_the_standard_deviation_of_which_it_is_the_median():
    line = CollectiveLine((0.0, 0.0, 1.0), 0.01, 5)
    steps = SimpleNamespace(lines=SimpleNamespace(line=lambda collective: line, per_node=8))
    _, deviation = StepLaws.collective_ns(cast(StepLaws, steps), Collective("allgather", 8, 1, 1 << 20))
    # Half of all normal errors are below the quartile of their deviation.
    assert deviation * norm.ppf(0.75) == pytest.approx(0.01, rel=1e-4)
