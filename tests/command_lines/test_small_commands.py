"""What the commands that look something up, draw or serve hand on and print."""

from __future__ import annotations

import importlib
import json
import runpy
import signal
import sys
from pathlib import Path
from types import SimpleNamespace as Has

import pytest

from taylor.base.errors import InputError, WriteError
from taylor.command_lines import (
    calibrate,
    compare,
    completion,
    devices,
    doctor,
    main,
    mcp,
    merge,
    models,
    rules,
    schema,
    serve,
    support,
    timeline_tool,
    warm,
)  # fmt: skip
from taylor.command_lines.arguments import Default
from taylor.command_lines.model_start import model_path, software_of
from taylor.command_lines.pipeline_parallel import build_parser as solve_parser
from taylor.command_lines.source_file import file_started, files_started, place_file
from taylor.pipeline_solver.solving import warming
from taylor.workflows.measuring import calibrate as calibrating
from taylor.workflows.measuring import calibrate_store
from taylor.workflows.ranking import shards
from taylor.workflows.searching import model_job
from taylor.workflows.showing import compare as comparing
from taylor.workflows.showing import doctor as looking
from taylor.workflows.showing import support as supporting
from taylor.workflows.showing import timeline
from taylor.workflows.statement import known_rules
from tests.conftest import ROOT

SHAPE = str(ROOT / "config" / "qwen3_8b.json")
SILENCED = (calibrate, compare, devices, doctor, mcp, merge, models, rules, schema, serve, support, timeline_tool, warm)


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TAYLOR_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("taylor.report.terminal.print_table", lambda table, *, whole=False: print(table, whole))
    for module in SILENCED:
        monkeypatch.setattr(module, "start_logging", lambda **_: None)
    caplog.set_level("INFO")


def replaced(monkeypatch, module, *names):
    """Tables of a module, each printed as its name and what it is of."""
    for name in names:
        monkeypatch.setattr(f"taylor.report.{module}.{name}", lambda one, name=name: f"{name} {one}")


def printed(capsys):
    return capsys.readouterr().out.splitlines()


@pytest.fixture
def fitted(monkeypatch):
    replaced(monkeypatch, "calibration", "errors_table", "figures_table", "verdict")
    kept = Has(asked=[], done=Has(fit=Has(notes=("a note",)), memory_errors=(), memory=None, file=None))
    monkeypatch.setattr(
        calibrate_store, "calibrate_from", lambda source, options: kept.asked.append((source, options)) or kept.done
    )
    monkeypatch.setattr(calibrating, "memory_sentence", lambda errors: f"memory off by {errors}")
    monkeypatch.setattr(calibrate, "asdict", lambda fit: {"notes": list(fit.notes)})
    return kept


def test_a_calibration_is_printed_with_its_notes_and_file(fitted, capsys, caplog, monkeypatch):
    calibrate.run(["runs"])
    fit = fitted.done.fit
    assert fitted.asked == [("runs", calibrating.CalibrateOptions(source=Path("runs"), configs=None, device=None,
        group=None,
                             stack="", name="", output=None, register_path=None, peaks=None))]  # fmt: skip
    assert printed(capsys) == [f"errors_table {fit} False", f"figures_table {fit} False", f"verdict {fit}"]
    assert caplog.messages == ["a note"]
    fitted.done = Has(fit=fit, memory_errors=(7,), memory=Has(sentence="corrected"), file=Path("d.yaml"))
    words = ["runs", "-o", "d.yaml", "--configs", "c", "--peaks", "p", "--set", "s", "--device", "d", "--name", "n"]
    calibrate.run([*words, "--stack", "k", "--register_path", "r"])
    assert fitted.asked[1][1] == calibrating.CalibrateOptions(
        source=Path("runs"), configs=Path("c"), device="d", group="s", stack="k", name="n", output=Path("d.yaml"),
        register_path=Path("r"), peaks=Path("p"),
    )  # fmt: skip
    assert printed(capsys)[-1] == "device: d.yaml"
    assert caplog.messages[1:] == ["a note", "memory off by (7,)", "memory: corrected"]
    documents = []
    monkeypatch.setattr(calibrate, "print_document", lambda name, data: documents.append((name, data["file"])))
    calibrate.run(["runs", "--json"])
    fitted.done.file = None
    calibrate.run(["runs", "--json", "-o", "e.yml"])
    assert documents == [("taylor.calibration/1", "d.yaml"), ("taylor.calibration/1", None)]
    for name, said in (("d.json", "-o: must end in .yaml"), ("none.yaml/d.yaml", "-o")):
        Path("none.yaml").write_text("")
        with pytest.raises(InputError, match=said):
            calibrate.run(["runs", "-o", name])


@pytest.fixture
def compared(monkeypatch):
    monkeypatch.setattr("taylor.report.page_tables.terminal_table", lambda table: f"table {table}")
    kept = Has(asked=[], pages=[], texts=[])

    def compare_results(*files):
        kept.asked.append(files)
        kept.texts += [file.read_text() for file in files if file.is_file()]
        return Has(warnings=("unlike",), changed_table="changed", parts_table="parts", verdict="the first is faster",
                   to_dict=lambda: {"a": 1})  # fmt: skip

    monkeypatch.setattr(comparing, "compare_results", compare_results)
    monkeypatch.setattr(comparing, "write_comparison_page", lambda *words: kept.pages.append(words))
    return kept


def test_a_comparison_is_of_files_or_of_runs_that_are_remembered(compared, capsys, caplog, monkeypatch):
    compare.run(["a.json", "b.json", "--html", "p.html"])
    assert printed(capsys) == ["table changed False", "table parts False", "html: p.html", "the first is faster"]
    assert compared.asked == [(Path("a.json"), Path("b.json"))] and caplog.messages == ["unlike"]
    assert compared.pages == [(Path("p.html"), Path("a.json"), Path("b.json"))]
    store = Has(result=lambda run: Has(to_dict=lambda: {"lines": [run]}))
    monkeypatch.setattr(compare, "store_to_read", lambda args: store)
    monkeypatch.setattr(
        compare, "write_document", lambda path, name, data: Path(path).write_text(f"{name} {data}") and path
    )
    Path("cafe").write_text("a file")
    compare.run(["1f3a9c2e", "cafe"])
    assert compared.texts[:2] == ["taylor.result/1 {'lines': ['1f3a9c2e']}", "a file"]
    assert printed(capsys) == ["table changed False", "table parts False", "the first is faster"]
    for text in ("1f3a9c2e0", "xyz"):
        compare.run([text, "a"])
        assert compared.asked[-1][0] == Path(text)
    documents = []
    monkeypatch.setattr(compare, "print_document", lambda name, data: documents.append((name, data)))
    caplog.clear()
    compare.run(["a.json", "b.json", "--json"])
    assert documents == [("taylor.comparison/1", {"a": 1})] and not caplog.messages
    Path("file").write_text("")
    with pytest.raises(InputError, match="--html"):
        compare.run(["a.json", "b.json", "--html", "file/p.html"])


def test_devices_models_and_rules_are_listed_or_shown_one_by_one(monkeypatch, capsys, caplog):
    monkeypatch.setattr("taylor.report.devices.devices_table", lambda found: f"{len(found)} devices")
    monkeypatch.setattr("taylor.report.models.models_table", lambda found: f"{len(found)} models")
    monkeypatch.setattr("taylor.report.devices.device_page", lambda device: f"page of {device.name}")
    monkeypatch.setattr("taylor.report.models.model_page", lambda model: f"page of {model.name}")
    monkeypatch.setattr("taylor.report.rules.rules_table", lambda found: f"{len(found)} rules")
    monkeypatch.setattr("taylor.report.rules.rule_page", lambda rule: f"page of {rule.name}")
    for module, key, name in (
        (devices, "devices", "h100-80g"), (models, "models", "llama2-7b"), (rules, "rules", "experts-by-ep"),
    ):  # fmt: skip
        module.run(["--json"])
        number = len(json.loads(capsys.readouterr().out)[key])
        module.run([])
        whole = module is rules
        assert number > 9 and printed(capsys) == [f"{number} {key} {whole}"]
        module.run([name])
        assert printed(capsys) == [f"page of {name} {whole}"]
        module.run([name, "--json"])
        assert json.loads(capsys.readouterr().out)["name"] == name
    caplog.clear()
    models.run([SHAPE])
    assert printed(capsys)[0].startswith("page of qwen3_8b") or caplog.messages
    models.run([SHAPE, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["notes"] == caplog.messages and document["schema"] == "taylor.model/1"


def test_rules_are_those_of_a_framework_or_of_a_folder(monkeypatch, capsys, caplog):
    asked = []
    monkeypatch.setattr(known_rules, "known_rules", lambda *words: asked.append(words) or [])
    monkeypatch.setattr(known_rules, "known_rule", lambda *words: asked.append(words) or Has(name="r"))
    monkeypatch.setattr("taylor.report.rules.rules_table", lambda found: "none")
    monkeypatch.setattr("taylor.report.rules.rule_page", lambda rule: "page")
    rules.run(["--framework", "megatron", "--register_path", "reg"])
    assert not caplog.messages
    rules.run(["r", "--framework", "megatron"])
    rules.run(["r"])
    assert asked == [(Path("reg"), "megatron"), ("r", None), ("r", None)]
    assert caplog.messages == ["--framework: has no effect beside a rule's name"]


def test_this_installation_is_shown_as_pairs_or_as_data(monkeypatch, capsys):
    import taylor

    monkeypatch.setattr(looking, "diagnose", lambda version: Has(version=version, to_dict=lambda: {"version": version}))
    monkeypatch.setattr(looking, "doctor_lines", lambda found: [("version", found.version)])
    doctor.run([])
    assert capsys.readouterr().out.split() == ["version:", taylor.__version__]
    documents = []
    monkeypatch.setattr(doctor, "print_document", lambda name, data: documents.append((name, data)))
    doctor.run(["--json"])
    assert documents == [("taylor.doctor/1", {"version": taylor.__version__})]


def test_support_is_asked_for_with_every_part_of_the_combination(monkeypatch, capsys):
    asked = []
    answer = Has(launcher="megatron", reasons=("no fp4",), to_dict=lambda: {"launcher": "megatron"})
    monkeypatch.setattr(supporting, "support", lambda question: asked.append(question) or [answer])
    monkeypatch.setattr("taylor.report.support.support_table", lambda rows: f"table {rows}")
    support.run([])
    support.run(["--model", "m", "--device", "d", "--launcher", "l", "--precision", "fp8", "--feature", "cp",
        "--feature",
                 "tp", "--register_path", "r"])  # fmt: skip
    assert asked == [
        supporting.Question(None, None, None, None, (), None),
        supporting.Question("m", "d", "l", "fp8", ("cp", "tp"), Path("r")),
    ]
    assert [" ".join(line.split()) for line in printed(capsys)[:2]] == [
        "table [{'launcher': 'megatron'}] True", "megatron: no fp4",
    ]  # fmt: skip
    documents = []
    monkeypatch.setattr(support, "print_document", lambda name, data: documents.append((name, data)))
    support.run(["--json"])
    assert documents == [("taylor.support/1", {"launchers": [{"launcher": "megatron"}]})]


def test_schemas_are_listed_by_name_or_printed(capsys):
    schema.run([])
    names = printed(capsys)
    assert "taylor.result/1" in names and names == sorted(names)
    schema.run(["--json"])
    assert json.loads(capsys.readouterr().out)["schemas"] == names
    schema.run(["error"])
    text = capsys.readouterr().out
    assert json.loads(text)["$id"] == "taylor.error/1" and not text.endswith("\n\n")
    schema.run(["error", "--json"])
    assert json.loads(capsys.readouterr().out)["json_schema"] == json.loads(text)


def test_kernels_are_compiled_and_their_time_is_logged(monkeypatch, caplog):
    monkeypatch.setattr(warming, "warm", lambda: 7.4)
    warm.run([])
    assert caplog.messages == ["the solver's kernels are compiled: 7 s"]


def test_a_timeline_is_drawn_of_what_the_flags_name(monkeypatch, capsys):
    asked, unwritten = [], []

    def draw(options):
        asked.append(options)
        return Has(shares="shares", files={"trace": "t.json"}, unwritten=unwritten)

    monkeypatch.setattr(timeline, "draw_timeline", draw)
    monkeypatch.setattr("taylor.report.share_tables.shares_table", lambda shares: f"table {shares}")
    timeline_tool.run([])
    line = (
        "--log_dir l --multi_machine --profile_dir p --solution s --unit_ms 2 --devices 0,1 --step 0 --window 1,2 "
        "--trace t --html h --png g"
    )
    timeline_tool.run(line.split())
    timeline_tool.run(["--steps", "1,3", "--trace", "pipeline_profile.json"])
    assert asked == [
        timeline.TimelineOptions(
            log_dir=None, profile_dir=None, solution=None, unit_ms=None, devices=None, multi_machine=False, steps=None,
            window_ms=None, trace=Path("pipeline_profile.json"), html=None, picture=None, trace_named=False,
        ),
        timeline.TimelineOptions(
            log_dir=Path("l"), profile_dir=Path("p"), solution=Path("s"), unit_ms=2.0, devices=(0, 1),
                multi_machine=True,
            steps=(0, 0), window_ms=(1.0, 2.0), trace=Path("t"), html=Path("h"), picture=Path("g"), trace_named=True,
        ),
        timeline.TimelineOptions(
            log_dir=None, profile_dir=None, solution=None, unit_ms=None, devices=None, multi_machine=False, steps=(1,
                3),
            window_ms=None, trace=Path("pipeline_profile.json"), html=None, picture=None, trace_named=True,
        ),
    ]  # fmt: skip
    assert printed(capsys)[:2] == ["table shares False", "       trace: t.json"]
    unwritten.append("html")
    with pytest.raises(WriteError, match="html"):
        timeline_tool.run([])


def test_shards_are_joined_before_they_are_ranked(monkeypatch, caplog):
    kept = []
    monkeypatch.setattr(shards, "join_shards", lambda *words: kept.append(words) or 3)
    monkeypatch.setattr(merge, "rank_candidates", lambda args, words, program: kept.append((args.gbs, words, program)))
    words = ["s1", "s2", "--yaml_path", "y", "--output_path", "o", "--gbs", "8"]
    merge.run(words, "taylor merge")
    assert kept == [([Path("s1"), Path("s2")], Path("y"), {"gbs": "8"}, Path("o")), (8, words, "taylor merge")]
    assert caplog.messages == ["3 shards are joined; what they have not solved to its end is solved now"]


def test_the_server_of_agents_reads_and_writes_the_folders_named(monkeypatch):
    served = []
    monkeypatch.setattr("taylor.serve.mcp_server.run", lambda questions: served.append(questions))
    monkeypatch.setattr("taylor.serve.agent_questions.AgentQuestions", lambda *words: words)
    Path("in").mkdir()
    mcp.run([])
    mcp.run(["--folder", "in", "--output", "out", "--time_limit", "5", "--workers", "3", "--memory_mib", "100"])
    assert (served[0][0].folders, served[0][0].output, served[0][2:]) == ((), None, (60.0, 420 << 20, 2))
    here = Path.cwd().resolve()
    assert (served[1][0].folders, served[1][0].output) == ((here / "in",), here / "out")
    assert served[1][2:] == (5.0, 100 << 20, 3)
    for words, said in ((["--json"], "--json: has no document"), (["--folder", "none"], "--folder: no such folder")):
        with pytest.raises(InputError, match=said):
            mcp.run(words)
    monkeypatch.setitem(sys.modules, "taylor.serve.mcp_server", None)
    with pytest.raises(InputError, match="needs the package mcp; pip install"):
        mcp.run([])


@pytest.fixture
def page(monkeypatch):
    kept = Has(jobs=[], servers=[], ended=None, signals=[])

    def run():
        if kept.ended is not None:
            raise SystemExit(kept.ended)

    monkeypatch.setattr("taylor.serve.jobs.Jobs", lambda *words: kept.jobs.append(words) or Has(own="own"))
    monkeypatch.setattr("taylor.serve.app.application", lambda page: page)
    monkeypatch.setattr(
        "taylor.serve.connections.server_of", lambda app, *place: kept.servers.append((app, *place)) or Has(run=run)
    )
    monkeypatch.setattr(signal, "signal", lambda number, what: kept.signals.append((number, what)))
    return kept


def test_the_page_is_served_on_this_machine_alone(page, caplog):
    Path("in").mkdir()
    serve.run(["--folder", "in", "--port", "65535", "--workers", "3"])
    here = Path.cwd().resolve()
    app, host, port = page.servers[0]
    assert (host, port) == ("127.0.0.1", 65535) and len(app.token) == 32
    assert page.jobs[0][1:] == (3, (here / "in",), str(here / "pipeline_output" / "history.sqlite"))
    assert caplog.messages == [f"open http://127.0.0.1:65535/?token={app.token} (Ctrl-C ends it)"]
    serve.run(["--store", "none"])
    assert page.jobs[1][2:] == ((), "") and page.servers[1][2] == 8765
    assert page.signals[0][0] == signal.SIGTERM
    with pytest.raises(SystemExit) as ended:
        page.signals[0][1](15, None)
    page.ended = ended.value.code
    with pytest.raises(SystemExit):
        serve.run([])
    page.ended = 1
    with pytest.raises(InputError, match="--port: cannot be had: is it taken?"):
        serve.run([])
    for words, said in ((["--port", "65536"], "--port: is no port"), (["--folder", "none"], "no such folder")):
        with pytest.raises(InputError, match=said):
            serve.run(words)


def test_completion_knows_the_values_of_the_flag_that_names_them():
    whole = completion.command_parser("taylor")
    commands = whole._subparsers._group_actions[0].choices
    assert list(commands) == list(dict.fromkeys(name.partition(" ")[0] for name in main.SUBCOMMANDS))
    assert list(commands["profile"]._subparsers._group_actions[0].choices) == ["hardware", "model"]

    def values(parser, dest):
        [found] = [action.choices for action in parser._actions if action.dest == dest]
        return set(found or ())

    model_names, device_names = values(commands["solve"], "model"), values(commands["solve"], "device")
    assert "llama2-7b" in model_names and "h100-80g" in device_names
    assert values(commands["models"], "name") == model_names and values(commands["devices"], "name") == device_names
    assert values(commands["rules"], "name") == values(commands["search"], "disable_rule") >= {"experts-by-ep"}
    assert not values(commands["schema"], "name") and not values(commands["completion"], "shell") - set(
        completion.SHELLS
    )
    assert values(completion.command_parser("parallel-tool"), "model") == model_names


def test_a_command_of_two_words_takes_what_follows_both(monkeypatch, capsys):
    asked = []
    for name in ("profile_hardware", "models"):
        module = importlib.import_module(f"taylor.command_lines.{name}")
        monkeypatch.setattr(module, "run", lambda words, program: asked.append((list(words), program)))
    main.run(["profile", "hardware", "--run"])
    main.run(["models", "a"])
    assert asked == [(["--run"], "taylor profile hardware"), (["a"], "taylor models")]
    with pytest.raises(InputError, match="^profile: is no command of taylor"):
        main.run(["profile"])
    with pytest.raises(SystemExit):
        main.run(["-h"])
    assert "usage: taylor COMMAND" in capsys.readouterr().out


def test_the_purposes_of_commands_of_one_word_are_in_one_column():
    lines = main.build_parser().format_help().splitlines()
    purposes = [command.purpose for name, command in main.SUBCOMMANDS.items() if " " not in name]
    longest = max(len(name) for name in main.SUBCOMMANDS if " " not in name)
    assert {line.index(one) for one in purposes for line in lines if line.endswith(one)} == {longest + 4}


def test_taylor_as_a_module_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["taylor", "nothing"])
    monkeypatch.setattr(sys, "path", ["here", *sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("taylor", run_name="__main__", alter_sys=True)
    assert ended.value.code == 2
    assert ("here" in sys.path) == bool(getattr(sys.flags, "safe_path", sys.flags.isolated))
    monkeypatch.setattr(sys, "path", ["here", *sys.path])
    runpy.run_module("taylor.__main__", run_name="other")
    assert sys.path[0] == "here"


def placed(*words, ending=""):
    args = solve_parser().parse(list(words))
    place_file(args, ending)
    return args


def test_a_word_goes_to_the_flag_of_its_form():
    for word, flag in (("a.yaml", "shell"), ("dir/a", "shell"), ("c.json", "hf"), ("a.sh x 8", "shell")):
        args = placed(word)
        assert {name: getattr(args, name) for name in ("yaml", "shell", "toml", "hf")} == dict.fromkeys(
            ("yaml", "shell", "toml", "hf")
        ) | {flag: word}
    Path("there").mkdir()
    Path("plain").write_text("")
    assert placed("there").hf == "there" and placed("plain").shell == "plain" and placed().shell is None
    for words, said in (
        (["plai"], "FILE: is no file (found 'plai'); a registered model is named by --model plai"),
        (["a.yaml", "--model", "m"], "FILE: is named twice: by --model too (found 'a.yaml'); name it once"),
        (["a.yaml", "-hf", "m"], "by -hf too"), (["a.yaml", "-toml", "m"], "by -toml too"),
        (["a.yaml", "-shell", "m"], "by -shell too"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            placed(*words)
        assert said in str(refused.value)


def test_files_are_read_with_the_variables_of_the_command():
    Path("a.sh").write_text("")
    args = Has(shell="a.sh x 8", env=["N=2"], model_as=None)
    with file_started(args, "shell"):
        assert args.shell == "a.sh"
    with files_started(Has(env=["N=2"], model_as=None)):
        pass
    for wrong in (["N"], ["1N=2"]):
        with pytest.raises(InputError, match="--env"), files_started(Has(env=wrong, model_as=None)):
            pass


def test_a_model_needs_ranks_unless_its_file_is_there(monkeypatch):
    asked = []
    monkeypatch.setattr(model_job, "model_file", lambda *words: asked.append(words) or Path("jobs/m/config.json"))

    def args(model, ranks=None):
        return Has(
            model=model, world_size=ranks, register_path=Default("reg"), override={"a": 1}, software=("fp8=mxfp8",)
        )

    assert model_path(args("m", 8), Path("out")) == Path("jobs/m/config.json")
    assert asked == [("m", Path("out"), None, {"a": 1})]
    assert model_path(args("jobs/m/config.json"), Path("out")) and software_of(args("m")) == {"fp8": "mxfp8"}
    Path("folder").mkdir()
    assert model_path(args("folder"), Path("out"))
    with pytest.raises(InputError, match="--world_size: is needed with a registered model; name the ranks"):
        model_path(args("m"), Path("out"))
