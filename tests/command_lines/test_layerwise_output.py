"""What `taylor galvatron`, `taylor layerwise` and `taylor check` hand to the work and print of its answer."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace as Has

import pytest

from taylor.base.errors import InfeasibleError, InputError, InterruptedSolve, NoSolutionError, WriteError
from taylor.command_lines import check, galvatron, layerwise
from taylor.cost_model.measured.cost_table import CostSetting
from taylor.workflows.layerwise import estimated_costs, layerwise_outputs, layerwise_search, measured_costs
from taylor.workflows.layerwise import layerwise as checking
from tests import galvatron_cases as cases
from tests.parsers.paddlenlp.test_auto_tuner import HISTORY
from tests.parsers.paddlenlp.test_auto_tuner import JOB as JOB_OF_TUNER
from tests.parsers.paddlenlp.test_scripts import SCRIPT

JOB = ("--world_size", "8", "--layers", "12", "--hidden", "1024", "--seq", "4096", "--gbs", "32")


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    for module in (galvatron, layerwise, check):
        monkeypatch.setattr(module, "start_logging", lambda **_: None)


@pytest.fixture
def tables(monkeypatch):
    """Tables are printed by their name and what they are of."""
    monkeypatch.setattr("taylor.report.terminal.print_table", print)
    for name in (
        "costs_table",
        "ends_table",
        "laws_table",
        "layerwise_table",
        "plan_text",
        "tuned_table",
        "stage_table",
    ):
        for module in ("measured", "layerwise"):
            monkeypatch.setattr(f"taylor.report.{module}.{name}", lambda one, name=name: f"{name} {one}", raising=False)
    monkeypatch.setattr("taylor.report.layerwise.tried_table", lambda one: "tried_table")


@pytest.fixture
def priced(monkeypatch, tables):
    kept = []

    def answer(first, *words):
        kept.append(words)
        return Has(title="title", rows="rows", ends="ends", left_out=("no cost",), warnings=("far away",),
                   to_dict=lambda: {"title": "title"})  # fmt: skip

    monkeypatch.setattr(measured_costs, "answer_costs", answer)
    monkeypatch.setattr(estimated_costs, "estimate_costs", answer)
    cases.write_folder(Path("profiles"))
    return kept


def test_costs_are_asked_for_with_the_job_and_printed(priced, capsys, caplog):
    galvatron.run(["profiles", *JOB])
    usual = CostSetting(1, 32, 1, 4096, 1024, kv_hidden=None, reduce_every_micro_batch=False)
    assert priced == [(measured_costs.CostRequest(8, usual, 12, None, "taylor", None, None),)]
    assert capsys.readouterr().out == "title\ncosts_table rows\nends_table ends\nleft out: no cost\n"
    assert caplog.messages == ["far away"]
    galvatron.run([
        "profiles", *JOB, "--micro_batches", "4", "--stages", "2", "--kv_hidden", "64", "--reduce_every_micro_batch",
        "--costs", "galvatron", "--time_mode", "batch", "--memory_mode", "static", "--model", "toy", "--json",
    ])  # fmt: skip
    other = CostSetting(2, 32, 4, 4096, 1024, kv_hidden=64, reduce_every_micro_batch=True)
    assert priced[1] == (measured_costs.CostRequest(8, other, 12, "toy", "galvatron", "batch", "static"),)
    assert json.loads(capsys.readouterr().out) == {"schema": "taylor.costs/1", "title": "title"}


def test_an_estimate_has_the_sizes_of_its_model_or_those_named(priced, capsys, caplog):
    words = [
        "--costs",
        "estimate",
        "--model",
        "llama2-7b",
        "--device",
        "d",
        "--world_size",
        "8",
        "--seq",
        "64",
        "--gbs",
        "8",
    ]
    galvatron.run(words)
    galvatron.run([*words, "--layers", "3", "--hidden", "64", "--time_mode", "x"])
    assert [(device, asked.layers, asked.setting.hidden, asked.provider) for device, asked in priced] == [
        ("d", 32, 4096, "estimate"), ("d", 3, 64, "estimate"),
    ]  # fmt: skip
    assert "--time_mode: has no effect: it is of Galvatron's model alone" in caplog.messages
    assert not any("memory_mode" in message for message in caplog.messages)
    for gone in ("--model", "--device", "--world_size"):
        at = words.index(gone)
        with pytest.raises(InputError, match=f"^{gone}: is missing, and the estimate needs it"):
            galvatron.run(words[:at] + words[at + 2 :])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profiles", *JOB, "--costs", "estimate"], "--costs: takes no profiles (found 'estimate')"),
        ([], "PATH: is missing"), (["profiles", "--to", "hetu"], "--to: takes one strategy file"),
        (["profiles", *JOB, "--micro_batches", "3"], "--micro_batches: does not divide --gbs (found 3)"),
        (["profiles", *JOB, "--stages", "0"], "--stages: must be between 1 and 2147483648 (found 0)"),
        (["profiles", *JOB, "--kv_hidden", "0"], "--kv_hidden: must be between 1 and 2147483648"),
        (["profiles", *JOB[:-1], "0"], "--gbs: must be between 1 and 2147483648"), (["profiles", *JOB[:-2]],
         "--gbs: is missing"),
        (["profiles", *JOB[:-1], str(2**31 + 1)], "--gbs: must be between 1 and 2147483648"),
        (["profiles", "--world_size", "0", *JOB[2:]], "--world_size: must be between 1 and 2147483648"),
        (["s.json", "-o", "x.json"], "-o: needs the form to write; give --to"),
        (["s.json", "--profile_steps", "1,2"], "--profile_steps: are written into a script; give --script too"),
    ],
)  # fmt: skip
def test_costs_that_cannot_be_are_refused(words, said, priced):
    Path("s.json").write_text(json.dumps(cases.STRATEGY))
    with pytest.raises(InputError) as refused:
        galvatron.run(words)
    assert said in str(refused.value)


def test_sizes_are_taken_at_their_limits(priced):
    galvatron.run(["profiles", *JOB[:-2], "--gbs", str(2**31), "--kv_hidden", "1"])
    galvatron.run(["profiles", "--world_size", "1", "--layers", "1", "--hidden", "1", "--seq", "1", "--gbs", "1"])
    assert [(asked.world, asked.setting.global_batch) for (asked,) in priced] == [(8, 2**31), (1, 1)]


def test_a_folder_is_shown_with_its_laws(tables, capsys):
    folder = cases.write_folder(Path("profiles"))
    galvatron.run([str(folder)])
    shown = capsys.readouterr().out
    assert "bf16_toy" in shown and shown.splitlines()[-1].startswith("laws_table")
    for each in folder.glob("*_profiling_*"):
        each.unlink()
    galvatron.run([str(folder)])
    assert "laws_table" not in capsys.readouterr().out
    galvatron.run([str(folder), "--json"])
    assert json.loads(capsys.readouterr().out)["schema"] == "taylor.profiles/1"


def test_a_device_has_no_effect_on_measured_costs(priced, caplog):
    galvatron.run(["profiles", *JOB, "--device", "d"])
    assert "--device: has no effect on measured costs; --costs estimate prices a device" in caplog.messages


def test_a_strategy_file_is_shown_or_written_in_another_form(tables, capsys, caplog, monkeypatch):
    Path("s.json").write_text(json.dumps(cases.STRATEGY))
    galvatron.run(["s.json"])
    assert capsys.readouterr().out.startswith("plan_text LayerwisePlan")
    galvatron.run(["s.json", "--to", "hetu"])
    assert json.loads(capsys.readouterr().out) == cases.STRATEGY
    galvatron.run(["s.json", "--to", "paddle", "-o", "fine_grained_config.json"])
    assert capsys.readouterr().out == f"strategy: {Path('fine_grained_config.json').resolve()}\n"
    monkeypatch.setattr(
        "taylor.parsers.galvatron.global_mode.global_text", lambda plan: f"global of {len(plan.layers)}"
    )
    galvatron.run(["s.json", "--to", "global"])
    assert capsys.readouterr().out == "global of 6"
    Path("train.sh").write_text(SCRIPT)
    words = ["fine_grained_config.json", "--script", "train.sh"]
    galvatron.run(words)
    text = capsys.readouterr().out
    assert "fine_grained_config_path" in text and "job_schedule_profiler_start" not in text and not caplog.messages
    galvatron.run([*words, "--to", "hetu", "--profile_steps", "1,2", "-o", "new.sh"])
    assert (
        capsys.readouterr().out == f"script: {Path('new.sh').resolve()}\n"
        and "job_schedule_profiler_start 1" in Path("new.sh").read_text()
    )
    assert "--to: has no effect beside --script" in caplog.messages


def test_files_of_paddles_tuner_are_shown_or_printed_as_data(tables, capsys, monkeypatch):
    Path("job.json").write_text(json.dumps(JOB_OF_TUNER))
    Path("history.csv").write_text(HISTORY)
    galvatron.run(["history.csv"])
    assert capsys.readouterr().out.startswith("tuned_table (TunedRun")
    galvatron.run(["history.csv", "--json"])
    assert json.loads(capsys.readouterr().out)["runs"]
    galvatron.run(["job.json"])
    assert "28 layers, hidden 4096" in capsys.readouterr().out
    galvatron.run(["job.json", "--json"])
    assert "runs" not in json.loads(capsys.readouterr().out)


def search_of(plan="plan", **changes):
    result = {"plan": plan, "interrupted": False, "most_samples_a_s": 0.0, "left_out": ()} | changes
    return Has(
        result=Has(**result), assumed=("a guess",), found="found" if plan else None, job=Has(layers=6,
            limit_mib=1536.0, world=8),
        to_dict=lambda origin: {"command": origin.command},
    )  # fmt: skip


@pytest.fixture
def searched(monkeypatch, tables):
    kept = Has(answer=search_of(), wanted=[], budgets=[], notes=("a note",), unwritten=())

    def search(request, *, report, moved, budget):
        kept.budgets.append(budget.left)
        report("going on")
        return kept.answer

    def write(done, wanted):
        kept.wanted.append(wanted)
        return Has(notes=kept.notes, files={"strategy": "s.json"}, unwritten=kept.unwritten)

    monkeypatch.setattr(layerwise_search, "search_job", search)
    monkeypatch.setattr(layerwise_outputs, "write_outputs", write)
    monkeypatch.setattr(layerwise_outputs, "found_pairs", lambda done: [("step", "1 s")])
    monkeypatch.setattr(layerwise, "progress", lambda *words: nullcontext(words))
    return kept


WORDS = ["p", *JOB, "--memory", "8"]


def test_a_search_is_printed_with_its_plan_and_what_was_tried(searched, capsys, caplog):
    layerwise.run([*WORDS, "--vocab_size", "9", "--log_dir", "l"])
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "a guess", "plan_text plan", "layerwise_table plan", "stage_table found", "tried_table", "step: 1 s",
        "written: s.json",
    ]  # fmt: skip
    assert searched.wanted == [layerwise_outputs.Wanted(batch_settled=True)] and searched.budgets == [None]
    assert [message.partition(" has")[0] for message in caplog.messages] == ["--vocab_size", "--log_dir", "a note"]


def test_each_output_of_a_search_is_wanted_where_it_is_named(searched, capsys, monkeypatch):
    printed = []
    monkeypatch.setattr(layerwise, "print_document", lambda name, data: printed.append((name, data)))
    layerwise.run([*WORDS, "-o", "o.json", "--to", "paddle", "--result_json", "r.json", "--html", "h.html", "--trace",
                   "t.json", "--mps", "m.mps", "--png", "p.png", "-t", "7", "--json"])  # fmt: skip
    assert searched.wanted == [layerwise_outputs.Wanted(
        Path("o.json"), "paddle", Path("r.json"), Path("h.html"), Path("t.json"), Path("p.png"), True, Path("m.mps"),
    )]  # fmt: skip
    assert 0 < searched.budgets[0] <= 7
    name, data = printed[0]
    assert name == "taylor.layerwise/1" and data["files"] == {"strategy": "s.json"}
    assert data["command"].startswith("taylor layerwise p --world_size 8")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"plan": None}, InfeasibleError, "no strategy of 6 layers fits 1.5 GB on 8 ranks; raise --memory, the ranks"),
        ({"plan": None, "left_out": ("tp3", "tp5")}, InfeasibleError, "; 2 strategies had no cost: tp3"),
        ({"plan": None, "most_samples_a_s": 1e-9}, NoSolutionError, "the time limit ended the search before any plan"),
        ({"plan": None, "interrupted": True}, InterruptedSolve, "interrupted before any plan was found"),
        ({"interrupted": True}, InterruptedSolve, "interrupted: the plan is the best so far"),
    ],
)
def test_a_search_without_a_whole_answer_ends_as_it_did(changes, error, said, searched, capsys):
    searched.answer = search_of(**changes)
    with pytest.raises(error) as refused:
        layerwise.run(WORDS)
    assert said in str(refused.value)
    shown = capsys.readouterr().out
    assert ("plan_text" in shown) == ("stage_table" in shown) == ("plan" not in changes) and "tried_table" in shown
    assert ("had no cost" in str(refused.value)) == ("left_out" in changes)


def test_an_output_of_a_search_that_could_not_be_written_is_refused_last(searched, capsys):
    searched.unwritten = ("html",)
    with pytest.raises(WriteError, match="html"):
        layerwise.run(WORDS)
    assert "tried_table" in capsys.readouterr().out


@pytest.fixture
def checked(monkeypatch, tables):
    kept = Has(asked=[], faults=(), stages=("stage",))

    def answer(file, request, world):
        kept.asked.append((file, request, world))
        return Has(file=Has(notes=("of the file",)), warnings=("of the costs",), plan="plan", formula_s=1.0,
                   found=Has(stages=kept.stages, faults=kept.faults),
                       to_dict=lambda origin: {"file": origin.command})  # fmt: skip

    monkeypatch.setattr(checking, "check_file", answer)
    monkeypatch.setattr("taylor.report.layerwise.check_pairs", lambda found, plan, formula: [("step", f"{formula} s")])
    return kept


def test_a_strategy_is_checked_with_the_job_of_the_flags(checked, capsys, caplog, monkeypatch):
    words = ["s.json", "--profiles", "p", "q", "--hidden", "64", "--seq", "128", "--memory", "8"]
    check.run(words)
    usual = checking.LayerwiseRequest((Path("p"), Path("q")), 128, 64, 8.0)
    assert checked.asked == [(Path("s.json"), usual, None)] and caplog.messages == ["of the file", "of the costs"]
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[:2] == ["plan_text plan", "layerwise_table plan"] and shown[2].startswith("stage_table")
    assert shown[3:] == [f"costs: {usual.costs_text()}", "step: 1.0 s"]
    checked.stages, checked.faults = (), ("too much.", "too slow.")
    more = ["--costs", "galvatron", "--model", "m", "--time_mode", "batch", "--memory_mode", "static", "--sp_space",
        "tp",
            "--kv_hidden", "9", "--reduce_every_micro_batch", "--global_memory_buffer", "--whole_mib", "--layers",
                "2,4",
            "--world_size", "16"]  # fmt: skip
    with pytest.raises(InfeasibleError, match=r"s.json: fails the check: too much. too slow."):
        check.run([*words, *more])
    assert checked.asked[1][1:] == (
        checking.LayerwiseRequest(
            (Path("p"), Path("q")), 128, 64, 8.0, "galvatron", "m", "batch", "static", True, 9, True,
            global_buffer=True, whole_mib=True, by_kind=(2, 4),
        ), 16,
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines() == ["plan_text plan", "layerwise_table plan"]
    printed = []
    monkeypatch.setattr(check, "print_document", lambda name, data: printed.append((name, data["file"])))
    with pytest.raises(InfeasibleError):
        check.run([*words, "--json"], "taylor check")
    assert printed == [("taylor.check/1", f"taylor check {' '.join(words)} --json")]
