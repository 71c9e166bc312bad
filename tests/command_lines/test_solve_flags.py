"""What the flags of solve, search and rank hand to the work, which is replaced, and what each prints of its answer."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace as Has

import pytest

from taylor.base.errors import InputError, InterruptedSolve, WriteError
from taylor.command_lines import parallel_tool, pipeline_parallel, pipeline_tool
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.nd_search.options import SearchOptions
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.measuring import history as stored
from taylor.workflows.ranking import candidates, shards
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.ranking.shard import Shard
from taylor.workflows.searching import explain, layerwise_refine, model_job, search
from taylor.workflows.showing import dryrun_result, extract, verdict
from taylor.workflows.showing.fit import UNKNOWN_FIT, Fit
from taylor.workflows.solving import evaluate_file, solve_file
from taylor.workflows.statement import export, restated_file
from taylor.workflows.statement.measured_run import MeasuredRun
from taylor.workflows.statement.options import AskedModules, Export, FileJob, Origin, Outputs, RatioChoice
from tests.conftest import ROOT

CONFIG = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
MODEL = ("--model", "llama2-7b", "--world_size", "16")


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    for name in ("TAYLOR_STORE", "TAYLOR_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    for module in (pipeline_parallel, parallel_tool, pipeline_tool):
        monkeypatch.setattr(module, "start_logging", lambda **_: None)


class Solved:
    """Stand-in for solves: what they are given is in `jobs`, and their answers are empty."""

    def __init__(self):
        self.jobs, self.printed, self.remembered, self.unwritten = [], [], [], ()

    def solve(self, job, how, outputs, on_progress, budget):
        self.jobs.append(Has(job=job, how=how, outputs=outputs, left=budget.left))
        return self.answer()

    def evaluate(self, job, outputs):
        self.jobs.append(Has(job=job, how=None, outputs=outputs))
        return self.answer()

    def answer(self):
        return Has(unwritten=self.unwritten, result=lambda: Has(to_dict=lambda: {"lines": []}))

    def remember(self, store, program, arguments, solved):
        self.remembered.append((store.url, program, list(arguments)))
        return "ab12" if len(self.remembered) == 1 else None


@pytest.fixture
def solved(monkeypatch):
    kept = Solved()
    monkeypatch.setattr(solve_file, "solve_file", kept.solve)
    monkeypatch.setattr(evaluate_file, "evaluate_file", kept.evaluate)
    monkeypatch.setattr(stored, "remember_solve", kept.remember)
    monkeypatch.setattr("taylor.report.terminal.live_line", lambda words: nullcontext(words))
    monkeypatch.setattr(pipeline_parallel, "_print", lambda done, *, verbose: kept.printed.append(verbose))
    monkeypatch.setattr(pipeline_parallel, "print_document", lambda name, data: kept.printed.append(name))
    return kept


def planned(solved, *words):
    pipeline_parallel.run(list(words), "taylor solve")
    return solved.jobs[-1]


def test_the_defaults_of_a_solve_are_those_of_its_page(solved):
    one = planned(solved, CONFIG)
    assert one.job == FileJob(Path(CONFIG), dryruns=one.job.dryruns, ratios=RatioChoice(), length=one.job.length)
    assert one.how == SolveOptions("HIGHS", None, 1e-6, workers=os.cpu_count() or 1)
    assert one.outputs == Outputs(
        Path("pipeline_output"), exports=[], next_seconds=3.0, origin=Origin(f"taylor solve {CONFIG}"), work=None
    )
    assert solved.printed == [False] and solved.remembered == [
        ("pipeline_output/history.sqlite", "taylor solve", [CONFIG])
    ]
    assert one.left is None


def test_each_flag_of_a_solve_reaches_it(solved, caplog):
    line = (
        "-ratios fixed -layer_ratio 2 -b_ratio 3 -head_loss 4 -ra_ratio 5 -sr_ratio 6 --solver CBC -t 70 -select y "
        "--recompute_modules y --offload y --lend mirror --tensors y --encoder best --offload_optimizer y -vpp auto "
        "-schedule auto --stage_devices a:2,b:1 --stage_order any -low_mem n -workers 3 --allow_illegal r,s -gap 1% "
        "--margin 5% --risk 2% --train_tokens 1T --samples 9 -memory m.json -dryrun n -check n --measured_peaks 0=7 "
        "--out_of_memory 1 --peak_of card --stage_limits 2=9 -o o.yaml -write n -mps_form full --result_json r.json "
        "--output_path out --trace t.json --html h.html --what_if --what_next 0 --png p.png --register_path reg "
        "--device d --stack new --images 2 --export megatron-layout=x.txt --verbose -mindformers mf"
    )
    words = line.split()
    one = planned(solved, CONFIG, *words)
    assert one.job == FileJob(
        Path(CONFIG), RatioChoice(2.0, 3.0, 4.0, 5.0, 6.0, fixed=True), Path("m.json"), False, False, one.job.dryruns,
        device=one.job.device, register_path=Path("reg"), search_select=True, modules=AskedModules(True, True),
        lend="mirror", tensors=True, images="2", encoder="best", offload_optimizer=True, vpp="auto", schedule="auto",
        low_memory=False, margin=MemoryMargin(share=0.05, risk=0.02), length=one.job.length,
        stage_devices=(("a", 2), ("b", 1)), stage_order="any", allow_illegal=("r", "s"),
        measured=MeasuredRun(((0, 7.0),), (1,), "card"), stage_limits=((2, 9.0),),
    )  # fmt: skip
    assert (one.job.length.tokens, one.job.length.epoch_samples) == (1e12, 9)
    assert (
        one.job.dryruns.mindformers == Path("mf") and one.job.device.startswith("d") and one.job.device.endswith("new")
    )
    assert one.how == SolveOptions("CBC", 70.0, 0.01, workers=3) and 0 < one.left <= 70
    assert one.outputs == Outputs(
        Path("out"), False, Path("o.yaml"), Path("r.json"), Path("t.json"), Path("h.html"), Path("p.png"),
        exports=[Export("megatron-layout", Path("x.txt"))], what_if=True, next_seconds=0.0, mps_form="full",
        origin=one.outputs.origin,
    )  # fmt: skip
    assert solved.printed == [True]


def test_an_evaluation_is_remembered_in_a_named_store_alone(solved, caplog):
    caplog.set_level("INFO")
    one = planned(solved, CONFIG, "-evaluate", "y", "--what_next", "9")
    assert (one.how, one.outputs.next_seconds, solved.remembered) == (None, 0.0, [])
    planned(solved, CONFIG, "-evaluate", "y", "--store", "s.sqlite", "--json")
    assert solved.remembered[0][0].endswith("s.sqlite") and solved.printed[-1] == "taylor.result/1"
    assert "remembered as ab12: taylor history ab12" in caplog.messages
    planned(solved, CONFIG, "--store", "none")
    assert len(solved.remembered) == 1
    planned(solved, CONFIG, "--store", "s.sqlite")
    assert len(solved.remembered) == 2 and "remembered as None" not in caplog.text


def test_a_result_that_could_not_be_written_is_refused_once_it_is_printed(solved):
    solved.unwritten = ("html",)
    with pytest.raises(WriteError, match="requested and not written: html"):
        planned(solved, CONFIG)
    assert solved.printed == [False]


def test_without_a_folder_for_results_nothing_is_remembered(solved):
    Path("pipeline_output").write_text("a file")
    one = planned(solved, CONFIG)
    assert one.outputs.work is not None and one.outputs.folder == Path("pipeline_output") and not solved.remembered
    planned(solved, CONFIG, "--store", "s.sqlite")
    assert len(solved.remembered) == 1


def chosen(monkeypatch, path="chosen.sh"):
    kept = []

    def choose(job, how, workers, folder, executor):
        kept.append(Has(job=job, how=how, workers=workers, folder=folder, executor=executor))
        return Has(path=folder / path, software=Has(), runner_up=Has())

    monkeypatch.setattr(model_job, "chosen_strategy", choose)
    return kept


def test_the_strategy_of_a_model_is_chosen_first(solved, monkeypatch, caplog):
    caplog.set_level("INFO")
    searched = chosen(monkeypatch)
    one = planned(solved, *MODEL, "--seq", "64", "--gbs", "32", "--fix", "tp=2", "-workers", "2", "--framework", "json")
    [asked] = searched
    assert (asked.job.world_size, asked.job.seq_length, asked.job.gbs, asked.job.fix) == (16, 64, 32, {"tp": 2})
    assert (asked.workers, asked.executor, asked.how.gap, asked.job.framework) == (2, None, 1e-6, "json")
    assert one.job.path.name == "chosen.sh" and one.job.made_for_model
    assert one.how.time_limit == model_job.SECONDS_CHOSEN and one.left is not None
    assert (one.outputs.origin.software, one.outputs.origin.runner_up) != (None, None)
    assert any("-t gives it another limit" in line for line in caplog.messages)
    one = planned(solved, *MODEL, "-t", "5")
    assert one.how.time_limit == 5.0
    assert not planned(solved, CONFIG).job.made_for_model
    with pytest.raises(InputError, match="--world_size: is needed with a registered model"):
        planned(solved, "--model", "llama2-7b")


def test_a_plan_that_no_file_keeps_is_not_written(solved, monkeypatch, caplog):
    chosen(monkeypatch)
    Path("pipeline_output").write_text("a file")
    one = planned(solved, *MODEL)
    assert not one.outputs.write and "no file keeps the plan: -o names one" in caplog.messages
    caplog.clear()
    assert planned(solved, *MODEL, "-o", "o.sh").outputs.write
    assert not planned(solved, *MODEL, "-write", "n").outputs.write and "no file keeps" not in caplog.text


def test_the_ranks_and_the_batch_of_a_file_are_restated(solved, monkeypatch):
    kept = []
    monkeypatch.setattr(restated_file, "on_asked", lambda job, *words: kept.append(words) or job)
    for words, asked in ((["--world_size", "8"], (8, None)), (["--gbs", "4"], (None, 4)), ([], None)):
        kept.clear()
        planned(solved, CONFIG, *words)
        assert [one[:2] for one in kept] == ([] if asked is None else [asked])


def test_a_run_that_is_measured_is_of_the_file_that_was_written(solved, monkeypatch, caplog):
    caplog.set_level("INFO")
    searched = chosen(monkeypatch)
    for words in (["--measured_peaks", "0=9"], ["--out_of_memory", "0"]):
        with pytest.raises(InputError, match=f"{words[0][:10]}.*: is of a run, and -o names no file that can have run"):
            planned(solved, *MODEL, *words)
        with pytest.raises(InputError, match="is of a run"):
            planned(solved, *MODEL, *words, "-o", "absent.sh")
    Path("o.yaml").write_text(Path(CONFIG).read_text())
    one = planned(solved, *MODEL, "--framework", "mindformers", "--measured_peaks", "0=9", "--out_of_memory", "1", "-o",
                  "o.yaml")  # fmt: skip
    assert one.job.path == Path("o.yaml") and not searched and not one.job.made_for_model
    assert "--measured_peak and --out_of_memory: of the run of o.yaml, whose strategy stays" in caplog.messages


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "FILE, -yaml, -shell, -toml, -hf, --model: exactly one configuration is needed"),
        (["-yaml", CONFIG, "-toml", "a.toml"], "exactly one configuration is needed"),
        ([CONFIG, "--seq", "8"], "--seq: has no effect without --model or -hf"),
        ([CONFIG, "--with", "fp8"], "--with: has no effect without --model or -hf"),
        (["-hf", "c.json", "--seq", "8"], "--seq: has no effect without --world_size; leave it out, or name the ranks"),
        (["-hf", "c.json", "--gbs", "8"], "--gbs: has no effect without --world_size"),
        ([CONFIG, "--peak_of", "card"], "--peak_of: has no effect without --measured_peak"),
        ([CONFIG, "-memory", "m.json", "-dryrun_data_dir", "d"], "-dryrun_data_dir: has no effect with -memory"),
        ([CONFIG, "-solution", "a.sol"], "-solution: has no effect without -extract y"),
        ([CONFIG, "--solver", "HIGS"], "did you mean HIGHS"),
        (["-extract", "y"], "-solution: is needed with -extract y"),
        ([CONFIG, "--export", "megatron"], "is no form of export"),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together_are_refused(words, said, solved):
    with pytest.raises(InputError) as refused:
        planned(solved, *words)
    assert said in str(refused.value) and not solved.jobs


def test_a_saved_solution_is_printed_with_its_exports(monkeypatch, capsys, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(extract, "describe_saved_solution", lambda path: f"plan of {path}")
    monkeypatch.setattr(export, "export_saved", lambda exports, path: [f"{len(exports)} exports"])
    monkeypatch.setattr(export, "print_exports", lambda texts: print("exports", texts))
    monkeypatch.setattr(export, "store_exports", lambda texts: {"layout": "l.txt"} if texts else {})
    words = ["-extract", "y", "-solution", "a.sol"]
    pipeline_parallel.run(words)
    assert capsys.readouterr().out == "plan of a.sol\nexports []\n" and not caplog.messages
    pipeline_parallel.run([*words, "--export", "megatron-layout", "-yaml", CONFIG, "--json"])
    assert capsys.readouterr().out == "plan of a.sol\nexports ['1 exports']\nlayout: l.txt\n"
    assert caplog.messages == ["-yaml: not read, the saved solution says it all"]
    from taylor.pipeline_solver.solving import result

    monkeypatch.setattr(result, "read_result", lambda path: Has(to_dict=lambda: {"path": path}))
    monkeypatch.setattr(pipeline_parallel, "print_document", lambda name, data: print(name, data["path"]))
    pipeline_parallel.run(["-extract", "y", "-solution", "r.json", "--json"])
    assert capsys.readouterr().out == "taylor.result/1 r.json\n"
    pipeline_parallel.run(["-extract", "y", "-solution", "r.json"])
    assert capsys.readouterr().out.startswith("plan of r.json")


def plan_printed(monkeypatch, capsys, *, verbose=False, fit=Fit.FITS, over="", measured=None):
    from taylor.report import breakdown, terminal

    for name in ("print_pipeline", "print_plan"):
        monkeypatch.setattr(terminal, name, lambda *words, name=name: print(name))
    for name, key in (
        ("summary", "step"),
        ("alternative_lines", "other"),
        ("split_lines", "split"),
        ("order_lines", "order"),
    ):
        monkeypatch.setattr(verdict, name, lambda solved, key=key: [(key, "1")])
    monkeypatch.setattr(verdict, "units_line", lambda solved: "u")
    monkeypatch.setattr(verdict, "verdict", lambda solved: ["it fits"])
    monkeypatch.setattr(terminal, "print_verdict", lambda lines: print(*lines))
    asked = []
    monkeypatch.setattr(verdict, "over_text", lambda solution, answer: asked.append(answer) or over)
    monkeypatch.setattr(dryrun_result, "stage_memories", lambda run: measured)
    monkeypatch.setattr(dryrun_result, "closed_forms", lambda run: f"forms of {run}")
    monkeypatch.setattr(breakdown, "comparison_table", lambda *words: f"compared {words}")
    monkeypatch.setattr(terminal, "print_table", print)
    monkeypatch.setattr(export, "print_exports", lambda texts: print(*texts))
    done = Has(fit=Has(fit=fit), solution=Has(solver="HIGHS"), problem=None, dryrun=Has(run="run"), exports=["text"],
               memory=Has(device_limit_mib=9.0), files={"config": "a.yaml"},
                   following=[Has(sentence="more memory")])  # fmt: skip
    pipeline_parallel._print(done, verbose=verbose)
    return asked[0], [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_a_plan_is_printed_with_its_figures_and_the_verdict_last(monkeypatch, capsys):
    rest = ["other: 1", "split: 1", "order: 1", "text", "config: a.yaml", "it fits", "next: more memory"]
    unknown = f"{UNKNOWN_FIT}: by the prediction it is"
    assert plan_printed(monkeypatch, capsys) == (unknown, ["print_plan", "step: 1", *rest])
    answer, shown = plan_printed(monkeypatch, capsys, fit=Fit.DOES_NOT_FIT, over="over by 1 MiB", measured=["m"])
    assert answer == "the plan does not fit:"
    assert shown == ["over by 1 MiB", "print_plan", "step: 1", "compared (['m'], 'forms of run', 9.0)", *rest]
    answer, shown = plan_printed(monkeypatch, capsys, fit=Fit.AT_RISK, verbose=True)
    assert answer == "the plan exceeds the risk:"
    assert shown == ["print_pipeline", "print_plan", "step: 1", "solver: HIGHS", "units: u", *rest]


class Searched:
    """Stand-in for a search of strategies."""

    def __init__(self, ranking=None):
        self.asked, self.ranking = [], ranking

    def search(self, options, executor):
        self.asked.append(options)
        return Has(files={"candidates": "c.csv"}, ranking=self.ranking)


@pytest.fixture
def searched(monkeypatch):
    kept = Searched()
    monkeypatch.setattr(search, "search_strategies", kept.search)
    kept.stores = []
    monkeypatch.setattr(parallel_tool, "remember_ranking", lambda store, *words: kept.stores.append(store))
    return kept


def test_the_defaults_of_a_search_are_those_of_its_page(searched, capsys, caplog):
    caplog.set_level("INFO")
    parallel_tool.run([CONFIG])
    [options] = searched.asked
    usual = search.StrategySearchOptions(
        Path(CONFIG), SearchOptions(search=("dp", "tp", "pp", "ep"), max_expert_parallel=64, profile_num=20),
        dryruns=options.dryruns, datasets=options.datasets, output=Path("output/nd_output"),
        ranking=RankOptions(SolveOptions("HIGHS", None, 1e-6), length=options.ranking.length, prove=5),
    )  # fmt: skip
    assert options == usual and capsys.readouterr().out == "  candidates: c.csv\n"
    assert options.datasets == {
        "dryrun": "./config/dataset/wiki4096.mindrecord", "profile": "./config/dataset/wiki103-4k.mindrecord",
    }  # fmt: skip
    assert not caplog.messages and not searched.stores
    parallel_tool.run([])
    assert searched.asked[1].path.name == "pretrain_deepseek3_128p.yaml" and "as none was given" in caplog.messages[0]


def test_each_flag_of_a_search_reaches_it(searched):
    line = (
        "--gbs 64 --world_size 32 --search dp,vpp --fix tp=2 --max_data_parallel 4 --max_tensor_parallel 5 "
        "--max_pipeline_parallel 6 --max_context_parallel 7 --max_expert_parallel 8 --recompute full --profile_num 3 "
        "--rank_num 9 --disable_rule a --allow_illegal b --dryrun_data_dir dd --full --solver CBC --workers 2 "
        "--time_limit 5 --prove all --recompute_modules y --measured_peaks 0=7 --out_of_memory 1 --peak_of card "
        "--stage_limits 2=9 --output_path out --margin 5% --samples 8 --device d --register_path reg --images 2 -gap 1%"
    )
    words = line.split()
    parallel_tool.run([CONFIG, *words])
    [options] = searched.asked
    assert options == search.StrategySearchOptions(
        Path(CONFIG),
        SearchOptions(
            gbs=64, world_size=32, search=("dp", "vpp"), fix={"tp": 2}, max_expert_parallel=8, recompute="full",
            bounds={"dp": (1, 4), "tp": (1, 5), "pp": (1, 6), "cp": (1, 7)}, profile_num=3, disabled_rules=("a", "b"),
        ),
        options.dryruns, Path("dd"), "d", Path("reg"), Path("reg"), Path("out"), options.datasets, 9, None, True,
        RankOptions(
            SolveOptions("CBC", 5.0, 0.01), workers=2, output=Path("out/pipeline_output"), prove=None,
            length=options.ranking.length,
        ),
        MemoryMargin(share=0.05), AskedModules(True, False), MeasuredRun(((0, 7.0),), (1,), "card"), ((2, 9.0),), "2",
    )  # fmt: skip
    parallel_tool.run([CONFIG, "--profile_data_dir", "p"])
    assert searched.asked[1].full and searched.asked[1].profile_data == Path("p")


def test_a_model_is_stated_before_it_is_searched(searched, monkeypatch):
    kept = []
    monkeypatch.setattr(model_job, "state_model", lambda job, output: kept.append(job) or Path("stated.sh"))
    parallel_tool.run([*MODEL, "--seq", "64", "--gbs", "32"])
    assert searched.asked[0].path == Path("stated.sh") and searched.asked[0].ranking.made_for_model
    assert (kept[0].world_size, kept[0].seq_length, kept[0].gbs) == (16, 64, 32)
    shape = str(ROOT / "config" / "qwen3_8b.json")
    parallel_tool.run(["--hf_path", shape, "--world_size", "8"])
    assert kept[1].path == Path(shape) and searched.asked[1].ranking.made_for_model
    for words, flag in ((["--model", "llama2-7b"], "--model"), (["--hf_path", shape], "--hf_path")):
        with pytest.raises(InputError, match=f"--world_size: is needed with {flag}"):
            parallel_tool.run(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([CONFIG, "--encoder", "best"], "--encoder: plans the encoder of one strategy"),
        (["--yaml_path", CONFIG, "--toml_path", "a.toml"], "only one configuration can be searched"),
        ([CONFIG, "--seq", "8"], "--seq: has no effect without --model or --hf_path"),
        ([*MODEL, "--measured_peaks", "0=7"], "--measured_peak: has no effect without a file that ran"),
        ([CONFIG, "--peak_of", "card"], "--peak_of: has no effect without --measured_peak"),
        ([CONFIG, "--search", "dp,qq"], "--search: is no dimension (found 'qq')"),
        ([CONFIG, "--full", "--solver", "CCB"], "did you mean CBC"),
        ([CONFIG, "--profile_data_dir", "p", "--solver", "CCB"], "did you mean CBC"),
    ],
)
def test_flags_of_a_search_that_do_not_go_together_are_refused(words, said, searched):
    with pytest.raises(InputError) as refused:
        parallel_tool.run(words)
    assert said in str(refused.value)


def test_a_search_may_print_its_rules_or_explain_one_strategy(searched, monkeypatch, capsys):
    from taylor.report import breakdown

    monkeypatch.setattr(explain, "describe_rules", lambda options: "the rules")
    parallel_tool.run([CONFIG, "--list_rules"])
    assert capsys.readouterr().out == "the rules\n" and not searched.asked
    for name in ("breakdown_table", "comparison_table"):
        monkeypatch.setattr(breakdown, name, lambda *words, name=name: (name, *words))
    monkeypatch.setattr("taylor.report.terminal.print_table", lambda table: print(*table))
    answer = Has(reasons=["a", "b"], stages=[], measured=[], limit_mib=9.0,
                 to_dict=lambda: {"reasons": ["a"], "limit_mib": 9.0, "stages": [], "measured": []})  # fmt: skip
    monkeypatch.setattr(explain, "explain_strategy", lambda options, strategy: answer)
    parallel_tool.run([CONFIG, "--explain", "DP1"])
    assert capsys.readouterr().out == "a\nb\n"
    answer.stages, answer.measured = ["s"], ["m"]
    parallel_tool.run([CONFIG, "--explain", "DP1"])
    assert capsys.readouterr().out == "a\nb\nbreakdown_table ['s'] 9.0\ncomparison_table ['m'] ['s'] 9.0\n"
    parallel_tool.run([CONFIG, "--explain", "DP1", "--json"])
    assert json.loads(capsys.readouterr().out)["reasons"] == ["a"]


def ranked():
    return Has(table="table", csv=Path("t.csv"), report=None, folder=None, unwritten=())


def refined(**changes):
    usual = {"left_out": (Has(name="DP2", reason="no cost"),), "refined": (), "notes": ("a note",), "files": {}.items(),
             "interrupted": False}  # fmt: skip
    return Has(**usual | changes)


@pytest.fixture
def printing(monkeypatch):
    def ranking(table, *, limit, details):
        print("ranking", table, limit, details)

    monkeypatch.setattr("taylor.report.terminal.print_ranking", ranking)
    monkeypatch.setattr("taylor.report.terminal.print_ranking_verdict", lambda table: print("verdict", table))


def test_a_search_goes_on_to_a_ranking_and_to_layers(searched, printing, monkeypatch, capsys, caplog):
    searched.ranking = ranked()
    given = []
    answer = refined()
    monkeypatch.setattr(layerwise_refine, "refine_best", lambda done, seconds: given.append(seconds) or answer)
    monkeypatch.setattr("taylor.report.layerwise.refined_table", lambda rows: rows)
    monkeypatch.setattr("taylor.report.terminal.print_table", print)
    parallel_tool.run([CONFIG, "--full"])
    shown = "  candidates: c.csv\nranking table None False\n     ranking: t.csv\nverdict table\n"
    assert capsys.readouterr().out == shown and not given
    assert searched.stores[0].url.endswith("pipeline_output/history.sqlite")
    parallel_tool.run(
        [CONFIG, "--full", "--layerwise", "--time_limit", "7", "--topn", "3", "--verbose", "--store", "none"]
    )
    assert capsys.readouterr().out == shown.replace("None False", "3 True") + "a note\n"
    assert given == [7.0] and searched.stores[1] is None
    assert "not refined layer by layer: DP2: no cost" in caplog.messages
    answer = refined(refined=(Has(row=lambda: "row"),), interrupted=True)
    with pytest.raises(InterruptedSolve, match="the candidates that were refined until then"):
        parallel_tool.run([CONFIG, "--full", "--layerwise"])
    assert "['row']\na note\n" in capsys.readouterr().out
    from taylor.workflows.searching import search_data

    kept = []
    monkeypatch.setattr(search_data, "search_data", lambda *words: kept.append(words) or {})
    monkeypatch.setattr(parallel_tool, "print_document", lambda name, data: print(name))
    with pytest.raises(InterruptedSolve):
        parallel_tool.run([CONFIG, "--full", "--layerwise", "--json"])
    parallel_tool.run([CONFIG, "--full", "--json"])
    assert [words[3] for words in kept] == [answer, None] and capsys.readouterr().out == "taylor.search/1\n" * 2
    searched.ranking = None
    parallel_tool.run([CONFIG, "--full", "--layerwise", "--json"])
    assert kept[-1][3] is None


class Ranked:
    """Stand-in for a ranking."""

    def __init__(self):
        self.asked = []

    def rank(self, folder, options, **words):
        self.asked.append((folder, options, words))
        return ranked()


@pytest.fixture
def ranking_of(monkeypatch, printing):
    kept = Ranked()
    monkeypatch.setattr(candidates, "rank_folder", kept.rank)
    monkeypatch.setattr(pipeline_tool, "remember_ranking", lambda *words: kept.asked.append(words[0]) or None)

    def run(*words):
        kept.asked.clear()
        pipeline_tool.run(list(words))
        return kept.asked

    return run


def test_the_defaults_of_a_ranking_are_those_of_its_page(ranking_of, capsys):
    (folder, options, words), store = ranking_of()
    assert (folder, store.url) == (Path("output/dryrun_yaml"), "pipeline_output/history.sqlite")
    assert options == RankOptions(SolveOptions("HIGHS", None, 1e-6), workers=os.cpu_count() or 1, length=options.length)
    assert words == {
        "device": None, "register_path": None, "dryruns": words["dryruns"], "parser_result": None,
        "profile_data": None, "gbs": None, "nd_path": None, "margin": MemoryMargin(), "modules": AskedModules(),
        "allow_illegal": (), "measured": MeasuredRun(), "stage_limits": (), "images": "", "executor": None,
            "shard": None,
    }  # fmt: skip
    assert capsys.readouterr().out == "ranking table None False\n     ranking: t.csv\nverdict table\n"


def test_each_flag_of_a_ranking_reaches_it(ranking_of, monkeypatch, caplog):
    caplog.set_level("INFO")
    recorded = []
    monkeypatch.setattr(shards, "record_shard", lambda *words: recorded.append(words) or "record.json")
    line = (
        "--yaml_path y --gbs 8 --ratios r.csv --profile_data_dir p --nd_path n.csv --solver CBC --workers 2 "
        "--time_limit 5 --prove all --topn 3 --recompute_modules y --measured_peaks 0=7 --stage_limits 2=9 --output o "
        "--report off --allow_illegal b --margin 5% --device d --register_path reg --images 2 --shard 2/3 -gap 1%"
    )
    (folder, options, words), _ = ranking_of(*line.split())
    assert folder == Path("y") and options == RankOptions(
        SolveOptions("CBC", 5.0, 0.01), 2, False, Path("o"), None, options.length
    )
    assert (words["gbs"], words["parser_result"], words["profile_data"]) == (8, Path("r.csv"), Path("p"))
    assert (words["nd_path"], words["device"], words["images"]) == (Path("n.csv"), "d", "2")
    assert (words["shard"], words["modules"], words["stage_limits"]) == (
        Shard(2, 3),
        AskedModules(True, False),
        ((2, 9.0),),
    )
    flags = recorded[0][2]
    assert flags["prove"] == "all" and flags["gbs"] == "8" and not flags.keys() & {"shard", "workers", "topn", "report"}
    assert "shard 2 of 3 is done: taylor merge joins them; record.json" in caplog.messages
    for text, report in (("on", True), ("Y", True), (" n ", False), ("OFF", False), ("p.html", Path("p.html"))):
        assert ranking_of("--report", text)[0][1].report == report


def test_strategies_of_a_model_are_searched_before_they_are_ranked(ranking_of, monkeypatch):
    kept = []
    monkeypatch.setattr(
        model_job, "write_strategies", lambda job, *words: kept.append((job, *words)) or [Path("jobs/a.sh")]
    )
    (folder, options, words), _ = ranking_of(*MODEL, "--gbs", "32")
    assert folder == Path("jobs") and options.made_for_model and words["gbs"] is None and kept[0][0].gbs == 32
    assert kept[0][1:] == (Path("pipeline_output"), model_job.RANKED_STRATEGIES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "llama2-7b"], "--world_size: is needed with --model"),
        (["--model", "m", "--env", "A=1"], "--env: has no effect with --model"),
        (["--model", "m", "--yaml_path", "y"], "--yaml_path: has no effect with --model"),
        ([*MODEL, "--shard", "1/2"], "--shard: has no effect with --model; leave it out, or write its candidates"),
        (["--seq", "8"], "--seq: has no effect without --model"), (["--override", "a=1"], "--override: has no effect"),
        (["--peak_of", "card"], "--peak_of: has no effect without"), (["--encoder", "best"], "--encoder: plans"),
        (["--solver", "CCB"], "did you mean CBC"),
    ],
)  # fmt: skip
def test_flags_of_a_ranking_that_do_not_go_together_are_refused(words, said, ranking_of):
    with pytest.raises(InputError) as refused:
        ranking_of(*words)
    assert said in str(refused.value)
