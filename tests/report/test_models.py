"""`taylor models`: the table, a page whose parts sum up, the same for programs, and the page of the manual."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import models
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.huggingface.model import model_types
from taylor.register.registry import Registry
from taylor.report.models import _published, layer_text, model_parts
from tests.conftest import ROOT

REGISTRY = Registry.load()
MANUAL = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REGISTRY.model_names())
def test_the_parts_of_a_model_sum_up_to_its_parameters(name: str) -> None:
    model = REGISTRY.model(name)
    parts = list(model_parts(model))
    assert sum(part.count * part.parameters for part in parts if part.counted) == total_parameters(model)
    assert all(layer_text(model.layer(kind)) for kind in model.body_counts)
    assert model.source


def test_the_table_has_a_row_a_model(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # a narrow terminal would fold the kinds
    models.run([])
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in REGISTRY.model_names() if not any(line.startswith(f"{name} ") for line in lines)] == []
    assert "45 gdn+moe, 15 attn+moe" in next(line for line in lines if line.startswith("qwen3.5-397b"))
    assert "1.57 T" in next(line for line in lines if line.startswith("deepseek-v4-pro"))


def test_a_page_shows_parts_order_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    models.run(["Qwen3.5_397B-A17B"])
    page = capsys.readouterr().out
    assert "6,575,157,504" in page and "396,346,350,336" in page
    assert "layers in order: 15 x (3 gdn+moe, 1 attn+moe)" in page and "source: config.json of Qwen" in page


def test_a_config_json_is_shown_and_what_it_assumes_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2, "quantization_config": {}}))
    models.run([str(path)])
    shown = capsys.readouterr()
    assert "attn+dense" in shown.out and "quantization_config" in shown.out + shown.err


def test_programs_get_the_layers_and_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    models.run(["--json"])
    every = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in every["models"]] == REGISTRY.model_names()
    models.run(["glm-5", "--json"])
    one = json.loads(capsys.readouterr().out)
    assert one["layers"] == {"mla-dsa+dense": 3, "mla-dsa+moe": 75}
    assert one["parameters"] == 743_911_199_232 and one["notes"] == []


def test_a_typo_is_answered_with_the_near_names() -> None:
    with pytest.raises(InputError, match="did you mean .*qwen3.5-27b"):
        models.run(["qwen3.5-72b"])


def test_the_manual_lists_every_model_type() -> None:
    section = MANUAL.partition("## Hugging Face config.json")[2].partition("`parsers/huggingface")[0]
    assert set(re.findall(r"`([^`\s]+)`", section)) - {"model_type"} == set(model_types())


@pytest.mark.parametrize(("published", "shown"), [(8_030_261_248, "published: 8.0 B"), (None, "")])
def test_published_parameters_are_shown_where_they_are_known(published, shown):
    assert _published(replace(REGISTRY.model("llama3-8b"), published_parameters=published)) == shown
