"""The first lines of a command say what was read and what was assumed."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from taylor.nd_search.options import SearchOptions
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.register.registry import Registry
from taylor.workflows.ranking.candidates import rank_folder
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.searching.search import StrategySearchOptions, search_strategies
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.job_facts import JobFacts
from taylor.workflows.statement.options import DryRunOptions, FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import ROOT
from tests.parsers.torchtitan.test_files import BASE as TOML

PHRASES = {
    "pretrain_deepseek3_671b_1024p.yaml": [
        "MindFormers YAML",
        "671.0 B parameters, 37.6 B active",
        "(published for deepseek-v3-671b: 671.0 B)",
        "3 dense + 58 MoE + 1 MTP layers",
        "DP16 TP4 PP16 EP8",
        "1,024 ranks",
        "sequences of 4,096 tokens",
        "computing in 16 bits, parameters in 32",
        "no device named: ascend-910b (64 GiB), the default for MindFormers",
        " MiB, by the file less a margin of free memory for 5 % risk",
        "time ratios estimated for this job on ascend-910b",
    ],
    "pretrain_llama3_70b.sh": [
        "Megatron or MindSpeed script",
        "70.6 B parameters (published for llama3-70b: 70.6 B), 80 dense layers",
        "DP1 TP8 PP4, sequence parallel on 32 ranks, 1f1b",
        "batch 32 = DP 1 x 32 micro-batches of 1",
        "sequences of 8,192 tokens; computing in 16 bits",
        "no device named: h100-80g (80 GiB), the default for Megatron files",
        " MiB, what the device offers less a margin of free memory for 5 % risk",
        "time ratios estimated for this job on h100-80g",
    ],
    "job.toml": ["torchtitan TOML", " B parameters", "the default for torchtitan files", "time ratios estimated"],
}


@pytest.mark.parametrize("name", PHRASES)
def test_a_file_of_each_launcher_is_described_before_it_is_planned(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ROOT / "config" / name
    if not path.exists():
        path = tmp_path / name
        path.write_text(TOML, encoding="utf-8")
    monkeypatch.setattr(logging.getLogger("taylor"), "propagate", True)
    with caplog.at_level(logging.INFO, logger="taylor"):
        StatedFile.read(FileJob(path))
    head = "\n".join(record.message for record in caplog.records[:4])
    assert head.startswith(f"{path}: ")
    assert [phrase for phrase in PHRASES[name] if phrase not in head] == [], head


def test_a_count_that_was_misread_stands_beside_the_published_one(tmp_path: Path) -> None:
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")
    script = tmp_path / "job.sh"
    script.write_text(text.replace("    --swiglu\n", ""), encoding="utf-8")
    config = read_config(script)
    line = JobFacts(config, choose_device(config)).model_line()
    assert "51.8 B parameters (published for llama3-70b: 70.6 B)" in line


@pytest.mark.parametrize(
    "name", [name for name in Registry.load().model_names() if Registry.load().model(name).published_parameters]
)
def test_every_registered_model_is_found_by_its_shape(name: str) -> None:
    registry = Registry.load()
    model = registry.model(name)
    found = registry.published_like(model.replace(name="somebody's", vocab=model.vocab + 128))
    # Code Llama is LLaMA 2 with 16 more entries of vocabulary: padded, the two are one.
    assert found is not None and found.published_parameters == pytest.approx(model.published_parameters, rel=1e-3)
    assert registry.published_like(model.replace(name="somebody's", hidden=model.hidden + 128)) is None


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_first_lines_on_the_readme_are_those_that_are_told(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = re.findall(r"^INFO    (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    told = StatedFile.read(FileJob(Path("config/pretrain_deepseek3_671b_1024p.yaml"))).facts.head()
    # Estimated times move with every calibration; the words are what must stay true.
    assert [re.sub(r"[\d.]+", "#", line) for line in shown] == [re.sub(r"[\d.]+", "#", line) for line in told]


def test_a_search_and_a_ranking_say_it_once_for_all_candidates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.getLogger("taylor"), "propagate", True)
    caplog.set_level(logging.INFO, logger="taylor")
    estimate = DryRunOptions("estimate")
    path = ROOT / "config" / "pretrain_llama2_7b.yaml"
    space = SearchOptions(world_size=16, gbs=64, profile_num=3)
    found = search_strategies(StrategySearchOptions(path, space, estimate, output=tmp_path / "nd" / "nd_output"))
    searched = [record.message for record in caplog.records]
    caplog.clear()
    how = RankOptions(SolveOptions(time_limit=5), workers=1, report=False)
    rank_folder(found.dryrun_files[0].parent, how, dryruns=estimate)
    ranked = [record.message for record in caplog.records]
    for lines, first in ((searched, str(path)), (ranked, f"{found.dryrun_files[0].parent}: 3 candidates")):
        assert lines[0].startswith(f"{first}: MindFormers YAML, llama2_7b, 6.7 B parameters (published")
        assert "batch 64" in lines[1] and "sequences of 4,096 tokens" in lines[1]
        assert sum("no device named: ascend-910b" in line for line in lines) == 1
        assert sum("6.7 B parameters" in line for line in lines) == 1
