"""`taylor devices`: the table, the page with its sources, and the same for programs."""

from __future__ import annotations

import json

import pytest

from taylor.command_lines import devices
from taylor.register.registry import Registry
from taylor.report.devices import device_figures

REGISTRY = Registry.load()


@pytest.mark.parametrize("name", REGISTRY.device_names())
def test_every_figure_of_a_built_in_device_has_a_source(name: str) -> None:
    assert [figure for figure, value, source in device_figures(REGISTRY.device(name)) if not source] in (
        [],
        ["fabric link"] if REGISTRY.device(name).fabric is None else [],
    )


def test_the_table_has_a_row_a_device_and_no_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    devices.run([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == REGISTRY.device_names()
    assert "72 x 900" in next(line for line in lines if line.startswith("gb200-nvl72"))
    assert not any("…" in line for line in lines)


def test_a_page_names_every_figure_and_where_it_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    devices.run(["DGX-GB200"])
    page = capsys.readouterr().out
    assert "72 cards, 900 GB/s" in page and "peak fp8" in page and "NVIDIA GB200 NVL72 page" in page


def test_programs_get_the_registration_itself(capsys: pytest.CaptureFixture[str]) -> None:
    devices.run(["--json"])
    every = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in every["devices"]] == REGISTRY.device_names()
    devices.run(["h100", "--json"])
    assert json.loads(capsys.readouterr().out)["peak_tflops"]["fp8"] == 1979
