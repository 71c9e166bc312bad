"""The breakdown table shows every category of every stage and their sum."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.report.breakdown import breakdown_table


def test_every_category_and_the_total_stand_in_the_stages_row():
    stage = StageBreakdown(0, {"dense": 2, "moe": 0}, 4.0, 10, 20, 30, {"dense": 40.0}, 50, 60, 70, 80)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(breakdown_table([stage, stage], limit_mib=1234))
    text = console.export_text()
    row = [line for line in text.splitlines() if "2 dense" in line][0]
    assert row.split() == ["0", "360", "2", "dense", "4", "10", "20", "30", "40", "50", "60", "70", "80"]
    assert "1,234 MiB" in text and "moe" not in text


def test_a_mixture_of_experts_model_with_prediction_layers_fits_120_columns():
    kept = {"dense": 1344.0, "moe": 1568.0, "mtp": 128.0}
    held = {"dense": 3, "moe": 2}
    stage = StageBreakdown(15, held, 16.0, 12_406, 15_696, 14_594, kept, 13_535, 56, 2722, 1536)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(breakdown_table([stage], limit_mib=56320))
    row = [line for line in console.export_text().splitlines() if "3 dense" in line][0]
    assert row.split()[1] == f"{stage.total:,.0f}" and "12,406" in row and "1,536" in row


def test_at_eighty_columns_the_total_is_there() -> None:
    kept = {"dense": 1344.0, "moe": 1568.0, "mtp": 128.0}
    stage = StageBreakdown(15, {"dense": 3, "moe": 2}, 16.0, 12_406, 15_696, 14_594, kept, 13_535, 56, 2722, 1536)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(breakdown_table([stage], limit_mib=56320))
    assert f"{stage.total:,.0f}" in console.export_text()


def test_the_heaviest_stage_alone_is_bold():
    light = StageBreakdown(0, {"dense": 2}, 4.0, 10, 20, 30, {"dense": 40.0}, 50, 60, 70, 80)
    stages = [light, replace(light, stage=1, overhead=90), replace(light, stage=2)]
    assert [row.style for row in breakdown_table(stages).rows] == [None, "bold", None]
