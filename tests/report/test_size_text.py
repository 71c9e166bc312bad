"""A sizing as text, table, cell of a notebook and picture, figure by figure."""

from __future__ import annotations

import pytest
from rich.text import Text

from taylor.report.size import (
    answer_lines,
    beside,
    days_text,
    question_text,
    seconds_text,
    short,
    size_figure,
    size_html,
    size_lines,
    size_table,
)
from tests.report_cases import block, printed

TOKENS = 4096


def point(devices, step_ms=2000.0, days=None, price=None, **changes):
    """One number of devices of a curve."""
    speed = 64 * TOKENS / step_ms * 1e3
    return {
        "devices": devices, "strategy": {"dp": devices // 8, "tp": 8, "pp": 1, "micro_batches": 4}, "lacks": None,
        "step_ms": step_ms, "step_interval_ms": [0.9 * step_ms, 1.2 * step_ms], "tokens_per_second": speed,
        "tokens_per_second_per_device": speed / devices, "kept": None, "efficiency": None, "days": days,
        "days_interval": None if days is None else [0.9 * days, 1.2 * days],
        "device_hours": None if days is None else 24 * days * devices, "energy_mwh": None, "price": price, **changes,
    }  # fmt: skip


NOTHING = {
    name: None
    for name in ("strategy", "step_ms", "step_interval_ms", "tokens_per_second", "tokens_per_second_per_device", "kept",
                 "efficiency", "days", "days_interval", "device_hours", "energy_mwh", "price")
} | {"devices": 1, "lacks": "memory", "reason": "40 GiB are too few"}  # fmt: skip
SMALL = point(8, 8000.0, 40.0, 1.2345e6, energy_mwh=12.3, efficiency=1.0)
LARGE = point(16, 4400.0, 22.0, 1.4e6, energy_mwh=14.0, kept=0.91, efficiency=0.91)
CARD = {
    "device": "h100 <80>", "memory_mib": 81920, "framework": "megatron", "curve": [NOTHING, SMALL, LARGE],
    "least": SMALL, "in_time": LARGE, "surely_in_time": None, "currency": "EUR", "assumed": ["a sentence"],
    "knee": {"devices": 8, "kept_beyond": 0.8, "sentence": "the knee is 8"},
}  # fmt: skip
PLAIN = point(8)
BARE = {
    "device": "a100", "memory_mib": 40960, "framework": "megatron", "curve": [PLAIN], "least": PLAIN, "in_time": None,
    "surely_in_time": None, "currency": "", "assumed": [], "knee": None,
}  # fmt: skip
NONE = BARE | {"device": "v100", "curve": [NOTHING], "least": None}
DATA = {
    "model": "llama3-8b", "global_batch": 1024, "sequence": TOKENS, "tokens": 1.5e12, "deadline_days": 30.0,
    "devices": [CARD, BARE, NONE],
}  # fmt: skip


def test_the_question_and_the_answers_are_sentences():
    assert printed(Text("\n".join(size_lines(DATA))), 100) == block(
        """
        llama3-8b; 1,024 samples a step of 4,096 tokens, 1.50 T tokens in all
        h100 <80>: at least 8 devices (DP1 TP8 PP1 m4; 8.00 samples/s; 40 days, 36 to 48; 7,680
        device-hours; 12.3 MWh; price 1.23 M)
        h100 <80>: within 30 days: 16 devices (DP2 TP8 PP1 m4; 14.5 samples/s; 22 days, 20 to 26; 8,448
        device-hours; 14.0 MWh; price 1.40 M)
        h100 <80>: at the upper end of the step's interval none of the curve trains within 30 days
        h100 <80>: the knee is 8
        h100 <80>: a sentence
        a100: at least 8 devices (DP1 TP8 PP1 m4; 32.0 samples/s)
        a100: no number of devices of the curve trains within 30 days
        v100: no strategy fits: 40 GiB are too few
        """
    )
    assert question_text(DATA | {"tokens": None}) == "llama3-8b; 1,024 samples a step of 4,096 tokens"


@pytest.mark.parametrize(
    ("sure", "lines"),
    [
        (LARGE, []),
        (point(32), ["within 30 days at the upper end of the step's interval: 32 devices"]),
        (None, ["at the upper end of the step's interval none of the curve trains within 30 days"]),
    ],
)
def test_the_deadline_is_answered_for_the_upper_end_of_the_interval_too(sure, lines):
    found = answer_lines(CARD | {"surely_in_time": sure}, DATA)
    assert found[1].startswith("within 30 days: 16 devices (DP2 TP8 PP1 m4; ") and found[2:-2] == lines
    assert len(answer_lines(CARD, DATA | {"deadline_days": None})) == 3
    one = point(8, tokens_per_second=None) | {"devices": 1}
    assert answer_lines(BARE | {"least": one}, DATA | {"deadline_days": None}) == ["at least 1 device (DP1 TP8 PP1 m4)"]


ONE = CARD | {"curve": [NOTHING | {"devices": 4096}, LARGE | {"price": None, "energy_mwh": None}]}


def test_a_device_has_a_table_with_the_columns_that_something_is_known_of():
    assert printed(size_table(ONE), 110) == block(
        """
        h100 <80> (80 GiB), megatron
        devices  strategy              step s   90 % interval  tokens/s a device  kept  efficiency  days  device-hours
          4,096  none fits the memory
             16  DP2 TP8 PP1 m4         4.400  3.960 to 5.280              3,724   91%         91%    22         8,448
          step: of the first plan found for the fastest strategy; kept: of a device's speed, by the doubling to this
                               row; efficiency: a device's speed over the highest of the curve
        """
    )
    assert printed(size_table(BARE), 100) == block(
        """
        a100 (40 GiB), megatron
        devices  strategy        step s   90 % interval  tokens/s a device
              8  DP1 TP8 PP1 m4   2.000  1.800 to 2.400             16,384
        step: of the first plan found for the fastest strategy; kept: of a
            device's speed, by the doubling to this row; efficiency: a
                   device's speed over the highest of the curve
        """
    )
    assert printed(size_table(ONE), 60) == block(
        """
        h100 <80> (80 GiB), megatron
        de…  st…  90 % inte…  tokens/s a de…    effici…    device-h…
        4,…
         16  4.…  3.960 to …           3,724        91%        8,448
          step: of the first plan found for the fastest strategy;
          kept: of a device's speed, by the doubling to this row;
         efficiency: a device's speed over the highest of the curve
        """
    )
    free = CARD | {"curve": [SMALL | {"price": None}]}
    assert "price in" not in str(size_table(free).caption)
    assert str(size_table(CARD).caption).endswith("; price in EUR")
    assert "price in" not in str(size_table(CARD | {"currency": ""}).caption)


def test_answers_stand_beside_each_other():
    flat = BARE | {"device": "flat", "in_time": SMALL, "knee": {"devices": 8, "kept_beyond": None}}
    assert printed(beside(DATA | {"devices": [*DATA["devices"], flat]}), 100) == block(
        """
        device     least  in time  days  device-hours   MWh   price  knee
        h100 <80>      8       16  22.0         8,448  14.0  1.40 M     8
        a100           8
        v100        none
        flat           8        8  40.0         7,680  12.3  1.23 M
        """
    )


def test_a_notebooks_cell_has_the_sentences_and_the_tables():
    html = size_html(DATA | {"devices": [ONE]})
    head, _, tables = html.partition("</p>")
    sentences = "<br>".join(size_lines(DATA | {"devices": [ONE]})).replace("'", "&#x27;")
    assert head == "<p>" + sentences.replace("<80>", "&lt;80&gt;")
    rows = tables.replace("<tr>", "\n").replace("</th><th>", "|").replace("</td><td>", "|")
    assert rows == block(
        """
        <h4>h100 &lt;80&gt;</h4><table>
        <th>devices|strategy|step s|90 % interval|tokens/s a device|kept|efficiency|days|device-hours</th></tr>
        <td>4,096|none fits the memory|||||||</td></tr>
        <td>16|DP2 TP8 PP1 m4|4.400|3.960 to 5.280|3,724|91%|91%|22|8,448</td></tr></table>
        """
    )


def test_the_curve_is_drawn_with_its_interval():
    figure = size_figure(DATA | {"devices": [CARD, *[BARE] * 7]})
    (axes,) = figure.axes
    assert figure.get_size_inches().tolist() == [7.0, 3.6]
    line = axes.lines[0]
    assert line.get_xydata().tolist() == [[8.0, 64 * TOKENS / 8 / 8], [16.0, pytest.approx(64 * TOKENS / 4.4 / 16)]]
    band = axes.collections[0].get_paths()[0].vertices
    speeds = line.get_ydata()
    # The slowest step of the interval is the lowest speed.
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((speeds[1] / 1.2, speeds[0] / 0.9))
    assert {(x, round(y, 3)) for x, y in band.tolist()} == {
        (x, round(y / by, 3)) for x, y in line.get_xydata().tolist() for by in (1.2, 0.9)
    }
    assert axes.collections[0].get_alpha() == 0.15 and axes.collections[0].get_linewidth() == [0]
    assert axes.get_xscale() == "log" and axes.xaxis.get_transform().base == 2
    assert axes.get_ylim()[0] == 0 and axes.xaxis.get_major_formatter()(1024.0, None) == "1,024"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("devices", "tokens/s a device")
    assert not axes.get_legend().get_frame_on()
    # Seven colours, then the first one again.
    colours = [each.get_color() for each in axes.lines]
    assert len(set(colours)) == 7 and colours[7] == colours[0]


def test_figures_have_as_many_digits_as_they_need():
    values = (0.0, 0.5, -0.25, 1.0, 9.994, 12.34, 123.4, -1234.0, 12345.6, 999499.0, 999500.0, 1.234e6, 99.95e6, 5e8,
              9.9951e8, 2.5e9, 1.5e12, -1.5e12, 1.234e15)  # fmt: skip
    assert [short(value) for value in values] == [
        "0.000",
        "0.500",
        "-0.250",
        "1.00",
        "9.99",
        "12.3",
        "123",
        "-1,234",
        "12,346",
        "999,499",
        "1.00 M",
        "1.23 M",
        "100 M",
        "500 M",
        "1.00 B",
        "2.50 B",
        "1.50 T",
        "-1.50 T",
        "1,234 T",
    ]
    assert [seconds_text(ms) for ms in (12.3, 999.96, 1000.0, 12345.678, 123456.7, 12345678.9)] == [
        "0.0123",
        "1.000",
        "1.000",
        "12.35",
        "123.5",
        "12,346",
    ]
    assert [days_text(days) for days in (0.123, 1.0, 9.96, 10.4, 1234.5)] == ["0.12", "1.0", "10", "10", "1,234"]
