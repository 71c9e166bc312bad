"""Planning with recompute by module and offload: what a user asks for, is told, and finds in the script."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.memory.activations import activation_bytes
from taylor.parsers.megatron.recompute import by_module, nearest_plan, uniform_choices
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.result import read_result
from taylor.workflows.ranking.candidates import load_candidates, rank_folder
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import AskedModules, DryRunOptions, FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile
from tests.solver_cases import plan_of

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCRIPT = CONFIG / "pretrain_llama3_70b.sh"
MARGIN = MemoryMargin(mib=20_000)


def job(**changes):
    return FileJob(path=SCRIPT, dryrun=False, check=False, **changes)


def solved(folder, **changes):
    outputs = Outputs(
        folder / "out",
        write_to=folder / "plan.sh",
        result_json=folder / "plan.json",
        trace=folder / "trace.json",
        html=folder / "page.html",
        picture=folder / "pipeline.svg",
    )
    return solve_file(job(**changes), SolveOptions(time_limit=60), outputs)


@pytest.mark.slow
def test_offload_beats_recompute_alone_and_stands_in_the_script(tmp_path):
    """With a margin that recompute pays for: the modules that are moved are flags of the script, which reads back."""
    alone = solved(tmp_path, margin=MARGIN)
    found = solved(tmp_path, margin=MARGIN, modules=AskedModules(True, True))
    assert found.solution.objective < alone.solution.objective
    (used,) = [mode for mode in found.plan.recompute if found.plan.uses(mode)]
    assert "offload:" in used
    text = (tmp_path / "plan.sh").read_text()
    assert "--fine-grained-activation-offloading" in text
    assert f"--offload-modules {' '.join(used.partition('offload:')[2].split('+'))}" in text
    written = read_config(tmp_path / "plan.sh")
    assert written.plan is not None and written.plan.layers == found.plan.layers and not written.plan.uses(FULL)
    data = json.loads((tmp_path / "plan.json").read_text())
    assert max(data["host_memory"]) > 0 and 0 < max(data["host_link"]) < 1
    assert any(sentence.startswith("offload: 80%") for sentence in data["assumed"])
    assert read_result(tmp_path / "plan.json").plan == found.plan
    assert used.partition("offload:")[2].split("+")[0] in (tmp_path / "page.html").read_text()
    assert (tmp_path / "pipeline.svg").stat().st_size
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for name, told in (("memory MiB", found.solution.peak_memory_mib), ("host memory MiB", data["host_memory"])):
        curve = [(event["pid"], event["args"]["used"]) for event in events if event["name"] == name]
        assert max(mib for _, mib in curve) == pytest.approx(max(told), rel=1e-3)
    for name in ("to the host", "from the host"):
        moved = [event for event in events if event["name"] == name and event["pid"] == 1]
        assert len(moved) == found.problem.micro_batches
        busy = sum(event["dur"] for event in moved) / (data["step_ms"] * 1000)
        assert busy == pytest.approx(data["host_link"][0], rel=1e-3)
        ends = sorted((event["ts"], event["ts"] + event["dur"]) for event in moved)
        assert all(before[1] <= after[0] + 1e-6 for before, after in itertools.pairwise(ends))
    # The script that was written is the plan that was solved, with no option beside it.
    again = evaluate_file(FileJob(path=tmp_path / "plan.sh", dryrun=False, check=False), Outputs(tmp_path / "again"))
    assert again.solution.objective == pytest.approx(found.solution.objective, rel=1e-9)
    assert again.solution.peak_memory_mib == pytest.approx(found.solution.peak_memory_mib, rel=1e-9)
    assert not any("offload" in flag.name for flag in again.config.unmodelled)
    assert any(sentence.startswith("offload: 80%") for sentence in again.assumed)


def script_with(folder, words):
    path = folder / "moves.sh"
    text = SCRIPT.read_text().replace("--bf16", f"--bf16 {words}", 1)
    assert words in text
    path.write_text(text)
    return path


def test_what_a_file_moves_to_the_host_is_priced_in_its_own_plan(tmp_path):
    """Less on every device and no shorter step; with its modules that run again, where it names some."""
    plain = evaluate_file(job(), Outputs(tmp_path / "plain")).solution
    path = script_with(tmp_path, "--fine-grained-activation-offloading --offload-modules core_attn attn_proj")
    moved = evaluate_file(replace(job(), path=path), Outputs(tmp_path / "moved"))
    assert all(a < b for a, b in zip(moved.solution.peak_memory_mib, plain.peak_memory_mib, strict=True))
    assert moved.solution.objective >= plain.objective * (1 - 1e-12)
    assert moved.plan.uses("offload:core_attn+attn_proj")
    words = "--recompute-granularity selective --recompute-modules mlp --fine-grained-activation-offloading"
    path = script_with(tmp_path, f"{words} --offload-modules qkv_linear")
    both = evaluate_file(replace(job(), path=path), Outputs(tmp_path / "both"))
    assert both.plan.uses("mlp+offload:qkv_linear") and not both.plan.uses(SELECT)
    solved_again = solve_file(replace(job(), path=path), SolveOptions(time_limit=60), Outputs(tmp_path / "solved"))
    assert solved_again.solution.objective <= both.solution.objective * (1 + 1e-9)


def test_where_moving_has_no_price_the_flags_stay_among_those_that_no_figure_has(tmp_path):
    words = "--fine-grained-activation-offloading --offload-modules core_attn"
    path = script_with(tmp_path, words)
    unlinked = evaluate_file(replace(job(device="ascend-910b"), path=path), Outputs(tmp_path))
    assert {"--fine-grained-activation-offloading", "--offload-modules"} <= {
        flag.name for flag in unlinked.config.unmodelled
    }
    whole = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    path = script_with(tmp_path, f"{whole} {words}")
    assert any("offload" in flag.name for flag in StatedFile.read(replace(job(), path=path)).config.unmodelled)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--offload-modules qkv", "names no module whose input can be moved.*attn_norm, qkv_linear"),
        ("--offload-modules attn_proj", "moves attn_proj without core_attn"),
        ("", "names no module, which"),
        ("--offload-modules core_attn --transformer-impl local", "does not go with"),
        ("--offload-modules core_attn --cpu-offloading-num-layers 4", "does not go with"),
        ("--offload-modules fused_group_mlp", "which only fused operators have"),
        ("--offload-modules fused_group_mlp moe_act --use-transformer-engine-op-fuser", "parts of it"),
        (
            "--offload-modules moe_act --recompute-granularity selective --recompute-modules moe",
            "block of experts that runs again whole",
        ),
    ],
)
def test_modules_with_which_megatron_does_not_start_are_refused_by_name(tmp_path, words, said):
    path = script_with(tmp_path, f"--fine-grained-activation-offloading {words}")
    with pytest.raises(InputError, match=said):
        read_config(path)


def test_modules_that_are_not_asked_for_change_nothing_of_the_problem():
    file = StatedFile.read(job())
    problem = file.problem(file.obtain_memory(None, Path()))
    assert problem.choices == () and all(not kind.choices for kind in problem.kinds)


def test_files_that_cannot_say_modules_are_refused_with_the_flag_named():
    with pytest.raises(InputError, match="cannot be said by MindFormers"):
        StatedFile.read(FileJob(path=CONFIG / "pretrain_llama2_7b.yaml", modules=AskedModules(offload=True)))
    with pytest.raises(InputError, match="needs the bandwidth between ascend-910b and its host"):
        StatedFile.read(job(device="ascend-910b", modules=AskedModules(offload=True)))


@pytest.mark.slow
def test_a_ranking_chooses_by_module_too_and_prices_what_files_move_by_themselves(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    script_with(files, "--fine-grained-activation-offloading --offload-modules core_attn attn_proj")
    options = RankOptions(SolveOptions(time_limit=60), workers=1, report=False, output=tmp_path / "out")
    ranked = {
        asked: rank_folder(files, options, dryruns=DryRunOptions("estimate"), margin=MARGIN, modules=asked).table
        for asked in (AskedModules(), AskedModules(offload=True))
    }
    own, chosen = ranked.values()
    assert "offload:core_attn+attn_proj" in own[own["own"] == 1]["recompute"].iloc[0]
    (best,) = chosen[chosen["own"] == 0].itertuples()
    assert best.status == "optimal" and best.objective <= own[own["own"] == 0]["objective"].iloc[0]
    (mode,) = [name for name, counts in json.loads(best.recompute).items() if any(map(any, counts))]
    moved = " ".join(mode.partition("offload:")[2].split("+"))
    assert f"--offload-modules {moved}" in Path(best.file).read_text()
    with pytest.raises(InputError, match="cannot be said by MindFormers"):
        load_candidates([CONFIG / "pretrain_llama2_7b.yaml"], modules=AskedModules(offload=True))


def test_one_choice_by_module_for_all_layers_is_what_megatron_can_say():
    name = "layernorm+offload:core_attn"
    assert uniform_choices(3, (FULL, name))[-1] == (name, 3)
    plan = plan_of({"dense": [[2, 2]]}, {FULL: [[0, 0]], name: [[2, 2]], "mlp": [[0, 0]]})
    assert nearest_plan(plan) == (plan, ())
    plain, flags = by_module(plan)
    assert plain.recompute == {SELECT: ((2, 2),)}
    assert flags["recompute-modules"] == ("layernorm",) and flags["offload-modules"] == ("core_attn",)
    unused, flags = by_module(plan_of({"dense": [[2, 2]]}, {FULL: [[1, 1]], name: [[0, 0]]}))
    assert unused.recompute == {FULL: ((1, 1),)}
    assert flags == {"fine-grained-activation-offloading": False, "offload-modules": False}
    assert by_module(plan_of({"dense": [[2, 2]]}, {FULL: [[1, 1]]}))[1] == {}


@pytest.mark.parametrize("modules", ["layernorm", "mlp", "core_attn", "layernorm mlp"])
@pytest.mark.parametrize("implementation", ["transformer_engine", "local"])
def test_a_choice_of_modules_keeps_what_the_script_that_names_them_keeps(tmp_path, modules, implementation):
    """Transformer engine's norm is one kernel with the product behind it, and does not run again by itself."""
    plain = read_config(script_with(tmp_path, f"--transformer-impl {implementation}"))
    words = f"--recompute-granularity selective --recompute-modules {modules} --transformer-impl {implementation}"
    named = read_config(script_with(tmp_path, words))
    (kind,) = plain.model.kind_counts
    rules = plain.rules.replace(selective=named.rules.selective)
    kept = [
        activation_bytes(plain.model, kind, SELECT, plain.strategy, each) for each in (rules, named.rules, plain.rules)
    ]
    assert kept[0] == kept[1]
    if modules == "layernorm":
        whole = activation_bytes(plain.model, kind, NONE, plain.strategy, plain.rules)
        assert (kept[0] < whole) == (implementation == "local")
