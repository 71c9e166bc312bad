"""The command lines do what the contract says, run as a user runs them."""

from __future__ import annotations

import json

import highspy
import pulp
import pytest
import yaml

from taylor.pipeline_solver.milp.cbc import cbc_path
from tests.conftest import REFERENCE_MEMORY, ROOT

RATIOS = ("-layer_ratio", "0.397", "-b_ratio", "1.839", "-head_loss", "1.5", "-ra_ratio", "1")
KNOWN_OPTIMUM = 1132.662249


def solve_reference(run_tool, path, *words):
    return run_tool(
        "pipeline_parallel.py",
        "-yaml",
        path,
        "-memory",
        path.parent / "memory.json",
        "-dryrun",
        "n",
        "-check",
        "n",
        *RATIOS,
        "--result_json",
        path.parent / "r.json",
        *words,
    )


@pytest.mark.slow
def test_the_reference_case_is_solved_to_its_known_optimum_and_written_back(run_tool, reference_yaml, tmp_path):
    done = solve_reference(run_tool, reference_yaml)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["status"] == "optimal"
    assert result["objective"] == pytest.approx(KNOWN_OPTIMUM, rel=1e-6)
    assert result["gap"] <= 1e-6
    assert all(peak <= limit + 1e-6 for peak, limit in zip(result["peak_memory"], result["memory_limit"], strict=True))

    written = yaml.safe_load(reference_yaml.read_text(encoding="utf-8"))
    offset = written["model"]["model_config"]["offset"]
    recompute = written["recompute_config"]["recompute"]
    assert sum(offset) == 62 % 16
    held = [62 // 16 + share for share in offset]
    assert held == [sum(grid[0][s] for grid in result["layers"].values()) for s in range(16)]
    assert recompute == result["recompute"]["full"][0]
    assert all(0 <= again <= layers for again, layers in zip(recompute, held, strict=True))


@pytest.mark.slow
def test_two_other_readers_of_the_model_file_find_the_same_optimum(run_tool, reference_yaml, tmp_path):
    done = solve_reference(run_tool, reference_yaml)
    assert done.returncode == 0, done.stderr
    path = json.loads((tmp_path / "r.json").read_text())["files"]["mps"]
    text = (tmp_path / path).read_text()
    assert "x_moe[3,0]" in text and "recompute_moe[3,0]" in text

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.readModel(str(tmp_path / path))
    solver.run()
    assert solver.getInfo().objective_function_value == pytest.approx(KNOWN_OPTIMUM, rel=1e-6)

    _, model = pulp.LpProblem.fromMPS(str(tmp_path / path))
    model.solve(pulp.COIN_CMD(path=cbc_path(), msg=False, timeLimit=60))
    assert pulp.value(model.objective) == pytest.approx(KNOWN_OPTIMUM, rel=1e-6)


@pytest.mark.slow
def test_a_second_solve_finds_the_file_already_as_it_should_be(run_tool, reference_yaml):
    before = reference_yaml.read_bytes()
    assert solve_reference(run_tool, reference_yaml).returncode == 0
    once = reference_yaml.read_bytes()
    assert reference_yaml.with_name("deepseek3.yaml.orig").read_bytes() == before
    assert solve_reference(run_tool, reference_yaml).returncode == 0
    assert reference_yaml.read_bytes() == once


def test_the_files_own_plan_is_evaluated_without_changing_anything(run_tool, reference_yaml, tmp_path):
    before = reference_yaml.read_bytes()
    done = solve_reference(run_tool, reference_yaml, "-evaluate", "y")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["objective"] >= KNOWN_OPTIMUM
    assert reference_yaml.read_bytes() == before
    assert "offset" in done.stdout


@pytest.mark.slow
def test_the_last_command_of_the_older_manual_runs(run_tool, reference_yaml):
    done = run_tool(
        "pipeline_parallel.py",
        "-yaml",
        reference_yaml,
        "-mindformers",
        "Y",
        "-dryrun",
        "n",
        "-check",
        "n",
        "-layer_ratio",
        "0.3",
        "-b_ratio",
        "2",
        "-head_loss",
        "1.5",
        "-ra_ratio",
        "1",
    )
    assert done.returncode == 0, done.stderr


def _replaced(text, old, new):
    assert old in text
    return text.replace(old, new, 1)


BAD_CONFIGS = {
    "empty": (lambda text: "", ["empty"]),
    "a list": (lambda text: "- 1\n- 2\n", ["mapping"]),
    "no stages": (lambda text: _replaced(text, "pipeline_stage: 16", "pipeline_stage: 0"), ["pipeline_stage", "0"]),
    "apples": (lambda text: _replaced(text, '"55GB"', '"12 apples"'), ["max_device_memory", "12 apples"]),
    "layers < stages": (lambda text: _replaced(text, "pipeline_stage: 16", "pipeline_stage: 128"), ["128"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_bad_configuration_ends_with_code_2_and_says_where(run_tool, reference_yaml, tmp_path, name):
    change, words = BAD_CONFIGS[name]
    bad = change(reference_yaml.read_text(encoding="utf-8"))
    reference_yaml.write_text(bad, encoding="utf-8")
    for words_of_tool in (
        ("pipeline_parallel.py", "-yaml", reference_yaml, "-memory", tmp_path / "memory.json"),
        ("parallel_tool.py", "--yaml_path", reference_yaml),
    ):
        if name == "layers < stages" and words_of_tool[0] == "parallel_tool.py":
            continue  # the search chooses the stages itself
        done = run_tool(*words_of_tool)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert str(reference_yaml) in done.stderr and all(word in done.stderr for word in words), done.stderr
    assert reference_yaml.read_text(encoding="utf-8") == bad
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deepseek3.yaml", "memory.json"]


@pytest.mark.parametrize(
    "words",
    [
        ("pipeline_parallel.py", "-yaml", "nowhere.yaml"),
        ("parallel_tool.py", "--yaml_path", "nowhere.yaml"),
        ("pipeline_tool.py", "--yaml_path", "./nowhere/"),
    ],
)
def test_a_missing_input_ends_with_code_2_and_leaves_no_output(run_tool, tmp_path, words):
    done = run_tool(*words)
    assert done.returncode == 2
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_batch_that_no_strategy_divides_is_refused_with_one_near_that_works(run_tool, reference_yaml, tmp_path):
    done = run_tool("parallel_tool.py", "--yaml_path", reference_yaml, "--gbs", "1021")
    assert done.returncode == 2, done.stderr
    assert "gbs" in done.stderr and "1021" in done.stderr
    assert not (tmp_path / "output").exists()


@pytest.mark.slow
def test_a_limit_below_any_plan_is_proven_infeasible_with_the_stage_and_the_least_memory(
    run_tool, reference_yaml, tmp_path
):
    (tmp_path / "memory.json").write_text(REFERENCE_MEMORY.replace("55296", "40000"))
    before = reference_yaml.read_bytes()
    done = solve_reference(run_tool, reference_yaml)
    assert done.returncode == 3, done.stderr
    assert "stage" in done.stderr and "MiB" in done.stderr and "Traceback" not in done.stderr
    assert reference_yaml.read_bytes() == before
    assert not (tmp_path / "pipeline_output").exists()
    verdict = json.loads((tmp_path / "r.json").read_text())["verdict"]
    assert verdict["fit"] == "does not fit" and "MiB" in verdict["reason"]


@pytest.mark.slow
def test_the_search_its_emitted_files_and_a_ranking_of_them_go_hand_in_hand(run_tool, tmp_path):
    done = run_tool(
        "parallel_tool.py",
        "--yaml_path",
        ROOT / "config/pretrain_deepseek3_671b_1024p.yaml",
        "--mindfomres_dir",
        "Y/run_mindformer.py",
        "--dataset_dir",
        "Z",
        "--gbs",
        "9216",
        "--parallel_num",
        "16",
        "--profile_num",
        "6",
    )
    assert done.returncode == 0, done.stderr
    header, *rows = (tmp_path / "output/nd_output/nd_candidate_config.csv").read_text().splitlines()
    assert header.startswith("dp,tp,pp,ep,peakMem")
    emitted = sorted((tmp_path / "output/dryrun_yaml").glob("*.yaml"))
    assert len(emitted) >= 6 and (tmp_path / "output/nd_output/pruned.csv").is_file()

    for extra in emitted[3:]:
        extra.unlink()
    (tmp_path / "ratios.csv").write_text(
        "dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw\n"
        + "".join("{dp},{tp},{pp},{ep},0.4,1.8,1,1.5,7.5\n".format(**_degrees(path)) for path in emitted[:2])
    )
    ranked = run_tool(
        "pipeline_tool.py",
        "--yaml_path",
        "./output/dryrun_yaml/",
        "--mindfomres_dir",
        "Y",
        "--parser_result",
        "ratios.csv",
    )
    assert ranked.returncode == 0, ranked.stderr
    import pandas as pd

    tables = list((tmp_path / "pipeline_output").glob("test_result_*.csv"))
    table = pd.read_csv(tables[0])
    table = table[table["own"] == 0]
    assert len(table) == 3 and set(table["ratio_source"]) == {"parsed", "estimate"}
    solved = table[table["status"] == "optimal"]
    assert list(solved["cost"]) == sorted(solved["cost"])
    for _, row in solved.iterrows():
        assert all(p <= m for p, m in zip(json.loads(row["peak_memory"]), json.loads(row["memory_limit"]), strict=True))
        assert row["gap"] <= 1e-6


def _degrees(path):
    import re

    return {key.lower(): int(value) for key, value in re.findall(r"(DP|TP|PP|EP)(\d+)", path.name)}
