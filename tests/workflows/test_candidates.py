"""Measured and estimated candidates are put on one footing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from taylor.cost_model.profile import TimeRatios
from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from taylor.workflows.ranking.candidates import load_candidates
from tests.conftest import ROOT
from tests.parsers.megatron.test_scripts import BASE as SHELL_FLAGS
from tests.parsers.megatron.test_scripts import script_of
from tests.parsers.torchtitan.test_files import toml_file

KINDS = ("sh", "toml", "YAML")
HEADER = "dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw\n"


def test_an_estimate_beside_a_measured_row_counts_only_what_the_row_counts(tmp_path):
    device = Registry.load(None).device("ascend-910b")
    files = [ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml", ROOT / "config" / "pretrain_llama3_70b.yaml"]
    (tmp_path / "r.csv").write_text(HEADER + "16,4,16,8,0.4,1.8,1,1.5,20\n")
    alone = load_candidates(files, device)
    mixed = load_candidates(files, device, parser_result=tmp_path / "r.csv")
    assert [c.ratios.source for c in mixed] == ["parsed", "estimate"]
    assert alone[1].ratios.tail > 0
    assert (mixed[1].ratios.tail, mixed[1].ratios.lag, mixed[1].ratios.embedding) == (0.0, 0.0, 0.0)
    assert mixed[1].ratios.unit_ms == alone[1].ratios.unit_ms


def test_an_estimate_keeps_the_costs_that_every_measured_row_tells(tmp_path):
    device = Registry.load(None).device("ascend-910b")
    files = [ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml", ROOT / "config" / "pretrain_llama3_70b.yaml"]
    header = HEADER.replace("\n", ",transfer_ms,embedding_ratio\n")
    table = tmp_path / "r.csv"
    table.write_text(header + "16,4,16,8,0.4,1.8,1,1.5,20,2,0.1\n")
    [alone] = load_candidates(files[1:], device)
    measured, estimated = load_candidates(files, device, parser_result=table)
    assert (measured.ratios.lag, measured.ratios.embedding) == (0.1, 0.1)
    assert (estimated.ratios.lag, estimated.ratios.embedding) == (alone.ratios.lag, alone.ratios.embedding)
    assert estimated.ratios.tail == 0.0 < alone.ratios.tail


def test_a_cost_that_one_measured_row_lacks_is_left_out_of_all_and_a_line_says_so(tmp_path, caplog):
    device = Registry.load(None).device("ascend-910b")
    files = [ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml", ROOT / "config" / "pretrain_llama3_70b.yaml"]
    other = read_config(files[1]).strategy
    table = tmp_path / "r.csv"
    table.write_text(
        HEADER.replace("\n", ",transfer_ms,embedding_ratio\n")
        + "16,4,16,8,0.4,1.8,1,1.5,20,2,0.1\n"
        + f"{other.dp},{other.tp},{other.pp},{other.ep},0.4,1.8,1,1.5,20,,0.1\n"
    )
    by_table = load_candidates(files, device, parser_result=table)
    assert [(one.ratios.lag, one.ratios.embedding) for one in by_table] == [(0.0, 0.1), (0.0, 0.1)]
    assert caplog.text.count("1 of 2 measured candidates have no time of transfers between stages") == 1
    parsed = {
        file: TimeRatios(unit_ms=20.0, lag=lag, source="parsed") for file, lag in zip(files, (0.1, 0), strict=True)
    }
    by_profiles = load_candidates(files, device, profiled=parsed)
    assert [one.ratios.lag for one in by_profiles] == [0.0, 0.0]
    [measured, estimated] = load_candidates(files, device, profiled={files[0]: parsed[files[0]]})
    assert measured.ratios.lag == 0.1 and estimated.ratios.lag > 0 and estimated.ratios.tail == 0
    assert measured.ratios.embedding == estimated.ratios.embedding == 0
    assert caplog.text.count("1 of 2 candidates have estimated times, the others measured ones") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_any_launcher_is_ranked_and_what_cannot_be_read_keeps_its_row(run_tool, tmp_path, kind):
    folder = tmp_path / "candidates"
    folder.mkdir()
    name = f"llama.{kind}"
    if kind == "sh":
        script_of(folder, SHELL_FLAGS).rename(folder / name)
    elif kind == "toml":
        toml_file(folder).rename(folder / name)
    else:
        shutil.copy(ROOT / "config" / "pretrain_llama2_7b.yaml", folder / name)
    (folder / "broken.yaml").write_text("model: [")
    (folder / "other.sh").write_text("echo hello\n")
    (folder / "notes.txt").write_text("no configuration")
    run = run_tool("pipeline_tool.py", "--yaml_path", folder, "--workers", "1")
    assert run.returncode == 0, run.stderr
    table = pd.read_csv(next((tmp_path / "pipeline_output").glob("test_result_*.csv")), dtype=str)
    own, table = table[table["own"] == "1"], table[table["own"] == "0"].reset_index(drop=True)
    # No search wrote the folder: the plan that the file holds is what is compared with.
    assert len(table) == 3 and {Path(name) for name in own["file"]} == {folder / name}
    solved, failed = table[table["status"] == "optimal"], table[table["status"] == "failed"]
    assert {name.rsplit("/", 1)[1] for name in solved["file"]} == {name}
    assert all(text.isdigit() for column in ("dp", "tp", "pp", "micro_batches") for text in solved[column])
    reasons = dict(zip((name.rsplit("/", 1)[1] for name in failed["file"]), failed["reason"], strict=True))
    assert "not valid YAML at line" in reasons["broken.yaml"] and "starts no training" in reasons["other.sh"]
    assert all(list(table[table["file"] == name]["gain"].astype(float) >= 0) == [True] for name in solved["file"])
    assert list(table["status"][-2:]) == ["failed", "failed"] and failed["dp"].isna().all()
    assert "broken" in run.stdout and "llama" not in reasons
    page = next((tmp_path / "pipeline_output").glob("test_result_*.html")).read_text()
    assert '"llama"' in page  # the timeline bears the file's name


def test_a_folder_of_unreadable_files_alone_gives_a_table_of_reasons(run_tool, tmp_path):
    folder = tmp_path / "candidates"
    folder.mkdir()
    (folder / "broken.yaml").write_text("model: [")
    run = run_tool("pipeline_tool.py", "--yaml_path", folder, "--workers", "1")
    assert run.returncode == 0, run.stderr
    table = pd.read_csv(next((tmp_path / "pipeline_output").glob("test_result_*.csv")))
    assert list(table["status"]) == ["failed"] and "not valid YAML" in table["reason"][0]


def test_a_global_batch_counts_the_interleaved_parts_of_a_micro_batch(tmp_path):
    text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text(encoding="utf-8")
    files = []
    for parts in (1, 2):
        files.append(tmp_path / f"{parts}.yaml")
        files[-1].write_text(
            re.sub(r"(?m)^micro_batch_interleave_num: .*$", "", text) + f"\nmicro_batch_interleave_num: {parts}\n"
        )
    plain, interleaved = (
        c.config.strategy for c in load_candidates(files, Registry.load(None).device("ascend-910b"), gbs=512)
    )
    # MindFormers r1.5.0 mindformers/trainer/base_trainer.py:229: batch_size * micro_batch_num * interleave * dp
    assert plain.micro_batches == 2 * interleaved.micro_batches == 512 // (plain.dp * plain.mbs)
