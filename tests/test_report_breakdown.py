"""The breakdown table shows every category of every stage and their sum."""

from __future__ import annotations

import io

from rich.console import Console

from cost_model.memory import StageBreakdown
from report.breakdown import breakdown_table


def test_every_category_and_the_total_stand_in_the_stages_row():
    stage = StageBreakdown(0, {"dense": 2, "moe": 0}, 4.0, 10, 20, 30, {"dense": 40.0}, 50, 60, 70, 80)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(breakdown_table([stage, stage], limit_mib=1234))
    text = console.export_text()
    row = [line for line in text.splitlines() if "2 dense" in line][0]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "0",
        "2 dense",
        "4",
        "10",
        "20",
        "30",
        "40",
        "50",
        "60",
        "70",
        "80",
        "360",
    ]
    assert "1,234 MiB" in text and "moe" not in text
