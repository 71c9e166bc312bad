"""From a folder of profiles to a ranking, by the commands a user types."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.synthetic.profiles import SyntheticTimes, write_synthetic_profiles
from taylor.base.errors import InputError
from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.read import read_config
from taylor.parsers.tables.ratios import read_ratios
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.profiling.folders import find_profile_folders
from taylor.register.registry import Registry
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.profiles import _completed, parse_profiles
from tests.conftest import ROOT

CONFIG = ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml"


@pytest.fixture
def searched(run_tool, tmp_path: Path) -> Path:
    """Two candidates, their stand-ins to profile, and synthetic profiles of these."""
    done = run_tool("parallel_tool.py", "--yaml_path", CONFIG, "--profile_num", 2, "--output_path", "output/nd_output")
    assert done.returncode == 0, done.stderr
    done = run_tool("benchmarks/synthetic_profiles.py", "--yaml_path", "output/profile_yaml")
    assert done.returncode == 0, done.stderr
    assert "nothing was measured" in done.stdout
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV."""
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_profiles_lead_to_a_ranking_and_a_table_that_leads_to_it_again(run_tool, searched: Path) -> None:
    files = sorted((searched / "output" / "dryrun_yaml").glob("*.yaml"))
    broken = searched / "profile_data" / files[-1].stem
    [kernels, *_] = sorted(broken.glob("*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"))
    kernels.write_bytes(kernels.read_bytes().replace(b"FlashAttentionScoreGrad", b"SomethingElse"))
    done = run_tool("pipeline_tool.py", "--time_limit", 5, "--workers", 1, "--report", "off", timeout=240)
    assert done.returncode == 0, done.stderr
    assert "the backward attention kernel has another name" in done.stderr
    assert "its ratios are estimated" in done.stderr

    table = searched / "pipeline_output" / "profiling_result.csv"
    assert table.read_text().startswith("dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw,")
    parsed = rows(table)
    assert len(parsed) == len(files) - 1
    [ranking] = (searched / "pipeline_output").glob("test_result_*.csv")
    by_source = {row["ratio_source"]: row for row in rows(ranking)}
    assert set(by_source) == {"parsed", "estimate"}
    assert float(by_source["parsed"]["moe_fw"]) == pytest.approx(float(parsed[0]["moe_bw"]), rel=1e-3)
    assert float(parsed[0]["transfer_ms"]) > 0 and float(parsed[0]["embedding_ratio"]) > 0
    [ratios] = read_ratios(table).values()
    assert ratios.backward == pytest.approx(float(by_source["parsed"]["bfratio"]), rel=1e-3)


@pytest.mark.slow
def test_the_search_goes_on_to_parsing_and_solving(run_tool, searched: Path) -> None:
    done = run_tool(
        "parallel_tool.py",
        "--yaml_path",
        CONFIG,
        "--profile_num",
        2,
        "--output_path",
        "output/nd_output",
        "--profile_data_dir",
        "profile_data",
        "--time_limit",
        5,
        "--workers",
        1,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "parsed from profiles for 2 of 2 candidates" in done.stderr
    [ranking] = (searched / "pipeline_output").glob("test_result_*.csv")
    assert {row["ratio_source"] for row in rows(ranking) if row["own"] == "0"} == {"parsed"}


@pytest.mark.slow
def test_the_table_of_a_profile_run_gives_the_ratios_of_the_profiles(searched: Path) -> None:
    files = sorted((searched / "output" / "dryrun_yaml").glob("*.yaml"))
    device = Registry.load(None).device("ascend-910b")
    profiled = parse_profiles(files, searched / "profile_data", device, searched / "out")
    direct = load_candidates(files, device, profiled=profiled)
    by_table = load_candidates(files, device, parser_result=searched / "out" / "profiling_result.csv")
    for one, other in zip(direct, by_table, strict=True):
        assert one.ratios is not None and other.ratios is not None
        for name in ("dense_forward", "backward", "head", "unit_ms", "embedding", "lag", "tail"):
            assert getattr(other.ratios, name) == pytest.approx(getattr(one.ratios, name), rel=1e-5), name
        assert one.ratios.tail == 0
        assert other.ratios.recompute[FULL] == pytest.approx(one.ratios.recompute[FULL], rel=1e-5)


@pytest.mark.slow
def test_a_folder_of_profiles_that_is_not_there_is_named(run_tool, searched: Path) -> None:
    (searched / "bare").mkdir()
    for tool in ("pipeline_tool.py", "parallel_tool.py"):
        done = run_tool(tool, "--profile_data_dir", "bare", "--workers", 1)
        assert done.returncode == 2 and "bare: --profile_data_dir: contains no profile" in done.stderr
        assert not (searched / "pipeline_output").exists()
    done = run_tool("pipeline_tool.py", "--profile_data_dir", "elsewhere", "--report", "off")
    assert done.returncode == 2
    assert "elsewhere" in done.stderr and "no such folder" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_what_was_profiled_is_the_stand_in_and_its_ratios_are_found(searched: Path) -> None:
    files = sorted((searched / "output" / "dryrun_yaml").glob("*.yaml"))
    folders = find_profile_folders(searched / "profile_data", files)
    assert [path.parent.name for path in folders.profiled.values()] == ["profile_yaml"] * 2
    device = Registry.load(None).device("ascend-910b")
    small = read_config(folders.profiled[files[0]])
    assert small.plan is not None
    times = SyntheticTimes.from_ratios(estimate_ratios(small.model, small.strategy, small.rules, device), small.plan)
    folder = folders.found[files[0]]
    shutil.rmtree(folder)
    write_synthetic_profiles(small, times, folder, form="kineto")
    found = parse_profiles(files, searched / "profile_data", device, searched / "out")[files[0]]
    assert found.unit_ms == pytest.approx(times.forward_ms["moe"], rel=1e-3)
    assert found.dense_forward == pytest.approx(times.forward_ms["dense"] / times.forward_ms["moe"], rel=1e-3)
    assert found.recompute[FULL] == pytest.approx(times.recompute_ms["moe"] / times.forward_ms["moe"], rel=1e-3)
    assert found.source == "parsed"


def test_folders_are_matched_by_name_and_the_rest_is_told(tmp_path: Path) -> None:
    for name in ("DP1_TP1_PP2_EP1", "dp2_tp1_pp2_ep1_pretrain", "stray"):
        (tmp_path / "data" / name).mkdir(parents=True)
    configs = [tmp_path / "y" / f"{name}_pretrain.yaml" for name in ("DP1_TP1_PP2_EP1", "DP2_TP1_PP2_EP1", "DP4")]
    found = find_profile_folders(tmp_path / "data", configs)
    assert [folder.name for folder in found.found.values()] == ["DP1_TP1_PP2_EP1", "dp2_tp1_pp2_ep1_pretrain"]
    assert [path.name for path in found.unknown] == ["stray"]
    assert found.absent == (configs[2],)
    (tmp_path / "data" / "DP1_TP1_PP2_EP1" / "run.yaml").write_text("")
    beside = find_profile_folders(tmp_path / "data", configs[:1])
    assert beside.profiled[configs[0]].name == "run.yaml"


def test_two_folders_of_one_configuration_are_refused(tmp_path: Path) -> None:
    for name in ("DP1", "DP1_pretrain"):
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="two folders of one configuration"):
        find_profile_folders(tmp_path, [Path("DP1_pretrain.yaml")])


@pytest.mark.parametrize("missing", ["dmratio", "bfratio", "hratio", "re_grow_ration"])
def test_what_the_profiles_do_not_tell_is_estimated_and_the_rest_kept(missing: str) -> None:
    config = read_config(CONFIG)
    device = Registry.load(None).device("ascend-910b")
    modes = {FULL: 9.0, SELECT: 9.0, NONE: 0.0}
    told = TimeRatios(dense_forward=0.9, backward=9.0, head=9.0, recompute=modes, unit_ms=3.0)
    known = _completed(SimpleNamespace(ratios=told, missing=(missing,)), config, device)
    guess = estimate_ratios(config.model, config.strategy, config.rules, device)
    own = {"dmratio": "dense_forward", "bfratio": "backward", "hratio": "head", "re_grow_ration": "recompute"}
    for measure, field in own.items():
        expected = guess if measure == missing else told
        shown, meant = getattr(known, field), getattr(expected, field)
        assert shown[FULL] == meant[FULL] if field == "recompute" else shown == meant
    assert known.unit_ms == 3.0
