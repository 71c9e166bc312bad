"""What the arguments of the functions hand to the work, which is replaced."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace as Has

import pytest

import taylor
from taylor import api
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import TimeRatios
from taylor.nd_search.options import SearchOptions
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.searching.size import SizeOptions
from taylor.workflows.statement.measured_run import MeasuredRun
from taylor.workflows.statement.options import AskedModules, FileJob, RatioChoice
from tests.conftest import ROOT

CONFIG = ROOT / "config" / "pretrain_llama2_7b.yaml"
CORES = os.cpu_count() or 1


@pytest.fixture
def stated(monkeypatch):
    """Jobs that `solve` and `evaluate` state before any work, which ends there."""
    kept = []

    def state(job, config, device):
        kept.append(Has(job=job, margin=config.margin, device=device.spec.name))
        raise StopIteration

    monkeypatch.setattr(api, "StatedFile", Has(of=state))

    def call(function, *words, **named):
        with pytest.raises(StopIteration):
            function(*words, **named)
        return kept[-1]

    return call


def test_a_solve_states_its_job_as_the_command_does(stated):
    one = stated(taylor.solve, CONFIG)
    usual = FileJob(
        CONFIG, RatioChoice(), dryrun=False, check=False, modules=AskedModules(False, False), measured=MeasuredRun(),
    )  # fmt: skip
    assert one.job == usual and one.margin == taylor.read(CONFIG).margin
    ratios = TimeRatios()
    one = stated(
        taylor.solve, CONFIG, device="h100-80g", ratios=ratios, vpp=2, schedule="auto", select=True, low_mem=True,
        recompute_modules=True, offload=True, lend="mirror", tensors=True, images="2", encoder="best",
        offload_optimizer=True, stage_devices="a:2,b:1", stage_order="any", measured_peaks={0: 7}, out_of_memory=[1],
        peak_of="card", stage_limits={2: 9}, risk=0.1, margin="5%", allow_illegal=["r"],
    )  # fmt: skip
    assert one.device == "h100-80g" and one.margin == MemoryMargin(share=0.05, risk=0.1)
    assert one.job == FileJob(
        CONFIG, ratios, dryrun=False, check=False, search_select=True, modules=AskedModules(True, True), lend="mirror",
        tensors=True, images="2", encoder="best", offload_optimizer=True, vpp=2, schedule="auto", low_memory=True,
        stage_devices=(("a", 2), ("b", 1)), stage_order="any", allow_illegal=("r",),
        measured=MeasuredRun(((0, 7.0),), (1,), "card"), stage_limits=((2, 9.0),),
    )  # fmt: skip
    assert stated(taylor.solve, CONFIG, stage_devices=[("a", "2")]).job.stage_devices == (("a", 2),)
    for wrong, said in (({"stage_devices": "a:0"}, "stage_devices: "), ({"margin": "x"}, "margin: is no margin"),
                        ({"risk": "x"}, "risk: is no risk"), ({"encoder": "outside"}, "outside")):  # fmt: skip
        with pytest.raises(taylor.InputError, match=said):
            taylor.solve(CONFIG, **wrong)


def test_an_evaluation_states_its_job_as_a_solve_does(stated):
    one = stated(taylor.evaluate, CONFIG)
    assert one.job == FileJob(CONFIG, RatioChoice(), dryrun=False, check=False)
    one = stated(
        taylor.evaluate, taylor.read(CONFIG), device="h100-80g", measured_peaks={0: 7}, out_of_memory=[1],
        peak_of="card", stage_limits={2: 9}, stage_devices="a:2", risk=0.1, margin=2048, allow_illegal=["r"],
            images="2",
    )  # fmt: skip
    assert one.device == "h100-80g" and one.margin == MemoryMargin(mib=2048, risk=0.1)
    assert one.job == FileJob(
        CONFIG, RatioChoice(), dryrun=False, check=False, images="2", stage_devices=(("a", 2),), allow_illegal=("r",),
        measured=MeasuredRun(((0, 7.0),), (1,), "card"), stage_limits=((2, 9.0),),
    )  # fmt: skip


def test_a_margin_keeps_the_part_that_is_not_named():
    own = MemoryMargin(mib=7, risk=0.2)
    assert api._margin(own, None, None) == own
    assert api._margin(own, 0.1, None) == MemoryMargin(mib=7, risk=0.1)
    assert api._margin(own, None, "5%") == MemoryMargin(share=0.05, risk=0.2)
    assert api._margin(own, 0.0, 3) == MemoryMargin(mib=3, risk=0.0)


SETTLED = {
    "device": "h100-80g", "ratios": TimeRatios(), "memory": "m.json", "vpp": 2, "schedule": "auto",
    "measured_peaks": {}, "stage_limits": {}, "out_of_memory": [1], "earlier": [1], "risk": 0.0, "margin": 0,
    "low_mem": False, "stage_devices": "a:1", "select": True, "recompute_modules": True, "offload": True,
    "offload_optimizer": True, "lend": "mirror", "images": "2", "tensors": True, "encoder": "best",
}  # fmt: skip


def problem():
    kind = taylor.LayerKind("layer", 8, 1.0, 100.0, {"none": 40.0, "full": 5.0})
    return taylor.PipelineProblem(2, 1, 4, (kind,), (50.0, 50.0), (1000.0, 1000.0))


def test_a_problem_settles_every_argument_of_a_job_itself():
    for name, value in SETTLED.items():
        with pytest.raises(taylor.InputError, match=f"^{name}: is settled by the problem itself; change the problem"):
            taylor.solve(problem(), **{name: value})
    given = {"encoder": "nested", "select": False, "out_of_memory": (), "stage_devices": (), "lend": "", "images": "",
             "tensors": False, "offload": False, "recompute_modules": False, "offload_optimizer": False,
             "earlier": ()}  # fmt: skip
    assert taylor.solve(problem(), **given).solution.objective is not None


def test_a_solve_works_as_its_arguments_say(monkeypatch):
    kept = []
    result = taylor.solve(problem()).solution
    monkeypatch.setattr(
        api, "plan_or_raise", lambda what, how, on_progress, name: kept.append((how, on_progress)) or result
    )
    taylor.solve(problem())
    taylor.solve(problem(), solver="CBC", time_limit=5, gap=0.1, workers=3, on_progress=print)
    assert kept == [
        (SolveOptions("HIGHS", None, 1e-6, workers=1), None), (SolveOptions("CBC", 5, 0.1, workers=3), print),
    ]  # fmt: skip


def test_a_search_hands_its_options_on(monkeypatch):
    kept = []

    def found(config, device, options, rules, quick_solve):
        kept.append(Has(margin=config.margin, device=device.name, options=options, rules=rules))
        return Has()

    monkeypatch.setattr(api, "search_space", found)
    answer = taylor.search(CONFIG)
    assert (kept[0].options, kept[0].rules, answer.images) == (SearchOptions(disabled_rules=()), None, "")
    rule = "experts-by-ep"
    taylor.search(CONFIG, device="h100-80g", rules_path="r", allow_illegal=[rule], risk=0.1, margin=5, gbs=64,
                  disabled_rules=("mine",))  # fmt: skip
    assert (kept[1].device, kept[1].rules, kept[1].margin) == ("h100-80g", Path("r"), MemoryMargin(mib=5, risk=0.1))
    assert kept[1].options == SearchOptions(gbs=64, disabled_rules=("mine", rule))


@pytest.fixture
def ranked(monkeypatch):
    kept = []

    def load(files, device, **words):
        kept.append(Has(files=list(files), device=device, **words))
        return [f"read {file}" for file in files]

    monkeypatch.setattr(api, "load_candidates", load)
    monkeypatch.setattr(api, "rank_candidates", lambda known, options, own: (known, options, own))
    return kept


def test_a_ranking_is_of_files_or_of_a_folder(ranked, tmp_path):
    known, options, own = taylor.rank(["a.yaml", "b.yaml"])
    assert known == ["read a.yaml", "read b.yaml"] and own is True
    assert options == RankOptions(
        SolveOptions("HIGHS", None, 1e-6), workers=CORES, report=False, output=Path("pipeline_output"), prove=5
    )
    first = ranked[0]
    assert (first.device, first.parser_result, first.gbs, first.allow_illegal, first.ranks) == (
        None,
        None,
        None,
        (),
        None,
    )
    assert (first.margin, first.images) == (MemoryMargin(), "")
    (tmp_path / "c.yaml").write_text("")
    _, options, _ = taylor.rank(
        tmp_path, device="d", ratios="r.csv", gbs=8, solver="CBC", time_limit=5, gap=0.1, workers=2, prove=None,
        output="o", report="p.html", allow_illegal=["r"], risk=0.1, margin=5, images="2",
    )  # fmt: skip
    assert ranked[1].files == [tmp_path / "c.yaml"] and (ranked[1].device, ranked[1].gbs) == ("d", 8)
    assert (ranked[1].parser_result, ranked[1].margin) == (Path("r.csv"), MemoryMargin(mib=5, risk=0.1))
    assert (ranked[1].allow_illegal, ranked[1].images) == (["r"], "2")
    assert options == RankOptions(
        SolveOptions("CBC", 5, 0.1), workers=2, report=Path("p.html"), output=Path("o"), prove=None
    )
    assert taylor.rank(str(tmp_path), report=True)[1].report is True


@pytest.mark.parametrize("same", [True, False])
def test_a_ranking_of_what_a_search_found_compares_with_its_file(same, ranked, monkeypatch):
    emitted = [Path("c1.yaml"), Path("c2.yaml")]
    monkeypatch.setattr(api, "emit_yaml", lambda result, config, folder: ranked.append(folder) or emitted)
    monkeypatch.setattr(api, "runs_on", lambda config, ranks: same and ranks == 16)
    table = Has(row=lambda number: Has(world_size=16 + number))
    config = Has(margin=MemoryMargin(risk=0.2), path=Path("own.yaml"))
    found = taylor.results.Found(config, Has(candidates=table, device="card"), "3")
    known, _, own = taylor.rank(found, output="o")
    assert ranked[0] == Path("o/candidates") and known == ["read c1.yaml", "read c2.yaml"]
    assert own == ("read own.yaml" if same else False)
    assert ranked[1].files == [*emitted, *[Path("own.yaml")] * same]
    assert (ranked[1].device, ranked[1].images, ranked[1].ranks) == ("card", "3", 16)
    assert ranked[1].margin == MemoryMargin(risk=0.2)
    taylor.rank(found, device="other", risk=0.1)
    assert (ranked[3].device, ranked[3].margin) == ("other", MemoryMargin(risk=0.1))


def test_a_choice_and_a_size_state_their_jobs(monkeypatch):
    kept = []
    monkeypatch.setattr(
        api, "model_file", lambda model, output, override: kept.append((model, output, override)) or "path"
    )
    monkeypatch.setattr(api, "choose_strategy", lambda *words: kept.append(words) or "chosen")
    monkeypatch.setattr(api, "read_config", lambda path: f"read {path}")
    monkeypatch.setattr(api, "size_training", lambda *words: kept.append(words) or "sized")
    assert taylor.choose("m", 16) == "read chosen"
    assert kept[0] == ("m", Path("pipeline_output"), None)
    assert kept[1] == (api.ModelJob("path", 16), SolveOptions(), CORES, Path("pipeline_output"))
    more = {"fix": {"tp": 2}, "framework": "json", "software": ["fp8=mxfp8"], "allow_illegal": ["r"], "risk": 0.1,
            "margin": 5, "images": "2", "gbs": 8}  # fmt: skip
    taylor.choose("m", 16, device="d", seq=64, time_limit=5, gap=0.1, workers=2, output="o", override={"a": 1}, **more)
    job = api.ModelJob(
        "path", 16, 64, 8, {"tp": 2}, "d", framework="json", software={"fp8": "mxfp8"}, allow_illegal=("r",),
        margin=MemoryMargin(mib=5, risk=0.1), images="2",
    )  # fmt: skip
    assert kept[2:] == [("m", Path("o"), {"a": 1}), (job, SolveOptions(time_limit=5, gap=0.1), 2, Path("o"))]
    kept.clear()
    taylor.choose("m", 16, seq_length=32)
    assert kept[1][0].seq_length == 32
    kept.clear()
    assert taylor.size("m") == "sized"
    assert kept[1] == (
        [api.ModelJob("path", 16384)],
        SizeOptions(None, None, 8, 16384, {}, CORES, None),
        Path("pipeline_output"),
    )
    kept.clear()
    prices = {"a": Has()}
    taylor.size("m", device="a", tokens=1e9, days=3, seq_length=64, min_devices=4, max_devices=32, prices=prices,
                workers=2, time_limit=5, output="o", **more)  # fmt: skip
    [one], options, _ = kept[1]
    assert (one.world_size, one.device, one.seq_length, one.gbs, one.fix) == (32, "a", 64, 8, {"tp": 2})
    assert (one.framework, one.software, one.allow_illegal, one.margin, one.images) == (
        "json", {"fp8": "mxfp8"}, ("r",), MemoryMargin(mib=5, risk=0.1), "2",
    )  # fmt: skip
    assert options == SizeOptions(1e9, 3, 4, 32, prices, 2, 5)
    taylor.size("m", device=["a", "b"], prices=ROOT / "config" / "device_prices.csv")
    assert [job.device for job in kept[3][0]] == ["a", "b"] and kept[3][1].prices


def test_where_the_number_of_cores_is_unknown_one_process_works(monkeypatch, ranked):
    kept = []
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(api, "model_file", lambda *words, **more: "path")
    monkeypatch.setattr(api, "choose_strategy", lambda *words: kept.append(words[2]))
    monkeypatch.setattr(api, "read_config", lambda path: path)
    monkeypatch.setattr(api, "size_training", lambda jobs, options, output: kept.append(options.workers))
    taylor.choose("m", 16)
    taylor.size("m")
    assert [*kept, taylor.rank(["a"])[1].workers] == [1, 1, 1]


def test_a_split_is_of_the_cards_named_or_of_all(monkeypatch):
    kept = []
    monkeypatch.setattr(api, "split_cards", lambda *words: kept.append(words))
    found = Has(config=1, iteration=2, chosen=3, choice=4, cards=32)
    taylor.split_rl(found)
    taylor.split_rl(found, 16, 7.0)
    assert kept == [(1, 2, 3, 4, 32, 120.0), (1, 2, 3, 4, 16, 7.0)]


def test_an_iteration_is_evaluated_with_the_speed_and_the_means(monkeypatch):
    kept = []
    monkeypatch.setattr(api, "evaluated", lambda running, iteration, chosen, choice: kept.append((chosen, choice)))
    speed = taylor.GenerationSpeed.of(6000.0, 80.0)
    file = ROOT / "config" / "rl_qwen3_8b_verl.sh"
    taylor.evaluate_rl(taylor.read(file), speed)
    taylor.evaluate_rl(file, speed, mean_prompt=1, mean_answer=2, device="h100-80g")
    assert [choice for _, choice in kept] == [api.RlChoice(speed, None, None), api.RlChoice(speed, 1, 2)]
    assert kept[1][0].spec.name == "h100-80g"


def test_memory_is_a_profile_a_file_or_estimated(monkeypatch):
    monkeypatch.setattr(api, "estimate_memory", lambda running, device: ("estimated", running, device))
    monkeypatch.setattr(api, "read_memory_profile", lambda path: f"read {path}")
    assert api._memory(None, Has(running=1, device=2)) == ("estimated", 1, 2)
    assert api._memory("m.json", Has()) == "read m.json"
    profile = object.__new__(taylor.MemoryProfile)
    assert api._memory(profile, Has()) is profile


def test_a_script_is_read_with_the_variables_it_is_started_with(monkeypatch, tmp_path):
    starts = []
    from contextlib import contextmanager

    @contextmanager
    def kept(*words):
        starts.append(words)
        yield

    monkeypatch.setattr(api, "shell_started", kept)
    monkeypatch.setattr(api, "own_shape", kept)
    with taylor.started():
        pass
    with taylor.started(arguments=["a", 8], env={"N": 2}, model_as=Path("m")):
        pass
    assert starts == [
        (api.ShellStart(None, {}),), (None,), (api.ShellStart(("a", "8"), {"N": "2"}),), ("m",),
    ]  # fmt: skip


def test_what_a_search_found_is_written_to_a_folder(monkeypatch):
    monkeypatch.setattr(api, "emit_yaml", lambda result, config, folder: (folder / "a.yaml",))
    found = taylor.results.Found(Has(), Has())
    assert taylor.write(found, "o") == [Path("o/a.yaml")]
    with pytest.raises(taylor.InputError, match="path: is needed to write what a search found; name a folder"):
        taylor.write(found)


def test_a_plan_goes_into_its_own_file_or_where_the_suffix_says(monkeypatch):
    kept = []
    monkeypatch.setattr(api, "write_plan", lambda config, plan, output=None: kept.append(output) or Path("own.yaml"))
    planned = taylor.evaluate(CONFIG)
    assert taylor.write(planned) == [Path("own.yaml")] == taylor.write(planned, "x.yaml")
    assert kept == [None, Path("x.yaml")]
    views = []
    monkeypatch.setattr("taylor.report.outputs.write_views", lambda *words, **named: views.append(named))
    taylor.write(planned, "p.html")
    taylor.write(planned, "p.svg")
    own = taylor.evaluate(problem(), taylor.PipelinePlan({"layer": ((4, 4),)}, {}))
    taylor.write(own, "q.html")
    assert views[0].keys() == {"title", "html", "picture", "facts", "parts", "tables"}
    assert (views[0]["title"], views[0]["html"], views[0]["picture"]) == (CONFIG.stem, Path("p.html"), None)
    assert views[1:] == [
        {"title": CONFIG.stem, "html": None, "picture": Path("p.svg")},
        {"title": "q", "html": Path("q.html"), "picture": None},
    ]
    with pytest.raises(taylor.InputError, match=r"use .json, .html, .png, .svg, .mps, .sol"):
        taylor.write(own, "q.yaml")


def test_a_plan_beside_the_files_is_compared_with_that_of_the_file():
    other = taylor.PipelinePlan({"dense": ((20, 12),)}, {})
    own, given = taylor.evaluate(CONFIG), taylor.evaluate(CONFIG, other)
    assert own.own is not None and own.own == own.solution
    assert given.own is not None and given.own.plan == own.plan and given.own.objective == own.solution.objective
    measured = taylor.evaluate(CONFIG, other, measured_peaks={0: 40_000.0})
    assert (
        measured.learned and measured.measurements == taylor.evaluate(CONFIG, measured_peaks={0: 40_000.0}).measurements
    )
