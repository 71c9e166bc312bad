"""What commands print of a result, and what of their flags reaches the work; the work itself is replaced."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace as Has

import pytest

from taylor.base.errors import InputError
from taylor.blackbox import operator_base
from taylor.command_lines import (
    bounded,
    cluster,
    history,
    lengths,
    operators,
    profile_hardware,
    profile_model,
    ranking,
    size,
    why_memory,
)  # fmt: skip
from taylor.workflows.measuring import history as stored
from taylor.workflows.measuring import operators as filling
from taylor.workflows.measuring import profile_hardware as hardware
from taylor.workflows.measuring import profile_model as profiling
from taylor.workflows.running import cluster as clusters
from taylor.workflows.searching import size as sizing
from taylor.workflows.solving import unlike_lengths
from taylor.workflows.solving import why_memory as reasons
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TAYLOR_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


def lines(capsys):
    """Printed lines, without the widths of columns and the rules of tables."""
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    return [line for line in shown if line.strip("─╴╶ ")]


def lengths_found(**changes):
    plan = Has(layers={"dense": ((4, 4), (5, 3))}, recompute={"full": ((1, 0), (0, 0)), "select": ((0, 0), (0, 0))},
               uses=lambda mode: mode == "full")  # fmt: skip
    expected = Has(plan=plan, bound=99.0, gap=0.01, step_times=(1, 2, 3), mean=100.0)
    usual = {"found": expected, "unit_ms": 10.0, "fresh_ms": 1000.0, "slow_ms": 1100.0, "usual_ms": 1050.0,
             "choice": Has(order="drawn"), "other_order_ms": 980.0, "tokens_a_second": 5000.0, "samples_a_second": 2.5,
             "padding": 0.123, "hours": 7.25, "cut": 0, "written": None}  # fmt: skip
    return Has(**usual | changes)


def test_a_plan_for_unlike_lengths_is_printed_beside_that_for_equal_ones(capsys):
    lengths._print(lengths_found())
    assert lines(capsys) == [
        "dense: 4 4 / 5 3",
        "full: 1 0 / 0 0",
        "step: 1,000 ms in the mean of 3 sampled steps, no plan takes less than 990 ms (gap 1.00%)",
        "fresh samples: 1,000 ms in the mean, 1,100 ms in nine of ten",
        "equal lengths: the plan for them takes 1,050 ms on the same: -4.8%",
        "other order: largest first: 980 ms (-2.0%)",
        "speed: 5,000 tokens/s, 2.5 samples/s; 12% padding; an epoch takes 7.2 h",
    ]
    lengths._print(lengths_found(choice=Has(order="largest"), cut=1, written=Path("a.sh"), usual_ms=None))
    shown = lines(capsys)
    assert "other order: drawn: 980 ms (-2.0%)" in shown and not [one for one in shown if "equal lengths" in one]
    assert shown[-2:] == [
        "cut: 1 samples are longer than the sequence length, and counted as long as it",
        "config: a.sh",
    ]


def test_the_flags_of_a_plan_for_unlike_lengths_reach_it(monkeypatch, capsys):
    kept = []

    def planned(job, choice, folder, *, gap, time_limit, output):
        kept.append((choice.packing, choice.order, choice.scenarios, choice.seed, gap, time_limit, output))
        kept.append((job.device, job.world_size, folder))
        return lengths_found()

    monkeypatch.setattr(unlike_lengths, "plan_lengths", planned)
    file, table = str(ROOT / "config" / "finetune_llama3_70b_lora.sh"), str(ROOT / "config" / "sample_lengths.csv")
    lengths.run([file, "--lengths", table])
    assert kept == [("padded", "drawn", 32, 0, 0.01, 60, None), (None, None, Path("pipeline_output"))]
    more = ["--packing", "packed", "--order", "largest", "--scenarios", "4", "--seed", "3", "-gap", "0", "-t", "5"]
    lengths.run([file, "--lengths", table, *more, "-o", "x.sh", "--device", "d", "--world_size", "8"])
    assert kept[2:] == [("packed", "largest", 4, 3, 0.0, 5, Path("x.sh")), ("d", 8, Path("pipeline_output"))]
    for gap in ("1", "-0.01", "nan"):
        with pytest.raises(InputError, match="-gap: must lie in 0 to 1"):
            lengths.run([file, "--lengths", table, "-gap", gap])
    lengths.run([file, "--lengths", table, "-gap", "0.99"])


def stage(number, kept=()):
    parts = Has(stage=number, total_mib=900.0, parts_mib={"weights": 900.0}, parts={"weights": 900.0})
    return Has(stage=number, limit_mib=1000.0, moment=Has(sentence=f"step {number}"), kept=kept, parts=parts)


def test_reasons_of_a_peak_are_printed_with_what_lowers_it(monkeypatch, capsys):
    monkeypatch.setattr("taylor.report.memory_reasons.parts_table", lambda *words: kept.append(words) or Has())
    monkeypatch.setattr("taylor.report.terminal.print_table", lambda table: None)
    kept: list[object] = []
    layers = (
        Has(kind="dense", mode="all", layers=4, mib=1234.5, each_mib=10.25, parts={"attention": 1000.0, "MLP": 234.5}),
        Has(kind="moe", mode="full recompute", layers=2, mib=20.0, each_mib=1.0, parts={}),
    )
    levers = [Has(name=f"lever {n}", saved_mib=1000.0 + n, fits=n == 0, largest_mib=500.0) for n in range(30)]
    found = Has(stages=[stage(0), stage(1, layers)], fullest=1, levers=levers)
    why_memory._print(found)
    shown = lines(capsys)
    assert kept[0][1:] == ([1000.0, 1000.0], 1)
    assert shown[:4] == [
        "stage 0: peak at the step 0",
        "stage 1: peak at the step 1",
        "kept: 4 dense layers of stage 1 keep all: 1,234 MiB, 10.2 a micro-batch and layer (attention 1,000, MLP 234)",
        "kept: 2 moe layers of stage 1 under full recompute: 20 MiB, 1.0 a micro-batch and layer",
    ]
    assert shown[4:6] == [
        "lever: lever 0: 1,000 MiB less; every stage fits then",
        "lever: lever 1: 1,001 MiB less; the largest peak is 500 MiB then",
    ]
    assert len(shown) == 4 + reasons.MOST_LEVERS
    many = [stage(number) for number in range(100)]
    why_memory._print(Has(stages=many, fullest=7, levers=[]))
    assert lines(capsys) == [
        "stage 7: peak at the step 7", "lever: no single change that the framework starts lowers this peak",
    ]  # fmt: skip
    from taylor.report.memory_reasons import MOST_STAGES

    why_memory._print(Has(stages=many[:MOST_STAGES], fullest=0, levers=[]))
    assert len(lines(capsys)) == MOST_STAGES + 1


def test_the_flags_of_an_explanation_reach_it(monkeypatch, capsys):
    kept = []

    def explained(job, stage, folder):
        kept.append((stage, job.device, job.world_size, job.images, job.stage_limits, job.measured, folder))
        return Has(to_dict=lambda: {"file": "f", "stages": [], "fullest": 0, "levers": []})

    monkeypatch.setattr(reasons, "why_memory", explained)
    monkeypatch.setattr(why_memory, "_print", lambda found: print("printed"))
    file = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    why_memory.run([file])
    assert kept[0][:5] == (None, None, None, "", ()) and capsys.readouterr().out == "printed\n"
    more = ["--stage", "0", "--device", "d", "--world_size", "8", "--images", "2", "--stage_limits", "1=5"]
    why_memory.run([file, *more, "--measured_peaks", "0=7", "--peak_of", "card", "--out_of_memory", "1", "--json"])
    assert kept[1][:5] == (0, "d", 8, "2", ((1, 5.0),))
    assert (kept[1][5].peaks, kept[1][5].out_of_memory, kept[1][5].peak_of) == (((0, 7.0),), (1,), "card")
    assert json.loads(capsys.readouterr().out)["schema"] == "taylor.reasons/1"
    with pytest.raises(InputError, match="--peak_of: has no effect without --measured_peak"):
        why_memory.run([file, "--peak_of", "card"])


def plan(**changes):
    usual = {"number": 1, "strategy": '{"dp": 2, "tp": 1, "pp": 4, "mbs": 2, "op": 8}', "status": "optimal",
             "step_ms": 1234.56, "gap": 0.0, "mfu": 0.4, "peak_mib": 5.0, "name": "a"}  # fmt: skip
    return stored.Plan(**usual | changes)


def run_of(*plans, count=1):
    return stored.Run(
        "1f3a9c2e", "2026-01-02T03:04:05", "taylor solve", "a.sh", "llama", "h100", 1024, "2.0", count, plans
    )


class Kept:
    """A store that writes down what it is asked."""

    def __init__(self, *runs):
        self.all, self.asked = list(runs), []

    def runs(self, **words):
        self.asked.append(words)
        return self.all

    def run(self, *words):
        self.asked.append(words)
        return self.all[0]

    def measure(self, *words, **more):
        self.asked.append((*words, more))

    def result(self, *words):
        self.asked.append(("result", *words))
        return Has(to_dict=lambda: {"lines": []})

    def configuration(self, *words):
        self.asked.append(("configuration", *words))
        return "a.sh", "text"


@pytest.fixture
def store(monkeypatch):
    kept = Kept(
        run_of(plan(), plan(number=2, measured_ms=1200.0), plan(number=3, step_ms=None, measured_ms=9.0), count=4)
    )
    monkeypatch.setattr(history, "store_to_read", lambda args: kept)
    return kept


def test_runs_are_listed_and_one_is_shown_with_its_plans(store, capsys):
    history.run([])
    shown = lines(capsys)
    assert store.asked == [{"model": "", "device": "", "most": 20}]
    assert shown[-1] == "1f3a9c2e 2026-01-02 03:04 llama h100 1,024 4 DP2 PP4 MBS2 optimal 1,234.6"
    store.all.append(run_of(count=0))
    history.run(["--model", "m", "--device", "d", "--topn", "3"])
    assert lines(capsys)[-1] == "1f3a9c2e 2026-01-02 03:04 llama h100 1,024 0"
    assert store.asked[-1] == {"model": "m", "device": "d", "most": 3}
    history.run(["1f3a9c2e"])
    assert lines(capsys) == [
        "1f3a9c2e: taylor solve, 2026-01-02T03:04:05 UTC, taylor 2.0",
        "llama on 1,024 ranks of h100; a.sh", "Plans", "plan strategy status step ms measured ms off by",
        "1 DP2 PP4 MBS2 optimal 1,234.6", "2 DP2 PP4 MBS2 optimal 1,234.6 1,200.0 +2.9 %",
        "3 DP2 PP4 MBS2 optimal 9.0", "1 more: --topn",
    ]  # fmt: skip
    assert store.asked[-1] == ("1f3a9c2e", 20)
    store.all[0] = run_of(plan(), count=1)
    history.run(["1f3a9c2e", "--json"])
    assert json.loads(capsys.readouterr().out)["plans"][0]["step_ms"] == 1234.56
    history.run(["1f3a9c2e"])
    assert "more" not in capsys.readouterr().out
    history.run(["--json"])
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_facts_of_one_plan_are_stored_and_written(store, capsys, caplog, monkeypatch):
    monkeypatch.setattr(history, "start_logging", lambda **_: None)
    monkeypatch.setattr(history, "write_document", lambda path, schema, data: f"{path} {schema}")
    caplog.set_level("INFO")
    history.run(["ab", "--measured", "7", "--source", "job 1", "--plan", "2"])
    assert store.asked[0] == ("ab", 2, {"step_ms": 7.0, "peak_mib": None, "source": "job 1"})
    history.run(["ab", "--peak", "9", "--result_json", "r.json", "-o", "c.sh"])
    assert store.asked[2] == ("ab", 1, {"step_ms": None, "peak_mib": 9.0, "source": ""})
    assert store.asked[3:5] == [("result", "ab", 1), ("configuration", "ab", 1)]
    assert Path("c.sh").read_text() == "text"
    assert "result: r.json taylor.result/1" in lines(capsys)
    assert caplog.messages[0] == "stored; taylor calibrate STORE fits a device to all that was measured"
    history.run(["ab", "--measured", "7", "--store", "s.sqlite"])
    assert caplog.messages[-1].startswith("stored; taylor calibrate s.sqlite fits")
    for words in (["--plan", "2"], ["--measured", "1"], ["--peak", "1"], ["-o", "x"], ["--source", "x"]):
        with pytest.raises(InputError, match="without ID; leave it out, or name a run"):
            history.run(words)
    with pytest.raises(InputError, match="--device: has no effect with ID"):
        history.run(["ab", "--device", "x"])


def test_a_store_is_that_of_the_flag_of_the_folder_or_none(monkeypatch):
    def asked(text):
        return argparse.Namespace(store=text)

    assert cluster.chosen_store(asked(" NONE"), Path("out")) is None
    assert cluster.chosen_store(asked(""), Path("out")) == stored.Store("out/history.sqlite")
    assert (
        cluster.chosen_store(asked("s.sqlite"), Path("out")) == stored.Store("s.sqlite") and Path("s.sqlite").is_file()
    )
    assert cluster.store_to_read(asked("s.sqlite")) == stored.Store("s.sqlite")
    with pytest.raises(InputError, match="no run is remembered here .*; name a store"):
        cluster.store_to_read(asked(""))
    Path("pipeline_output").mkdir()
    Path("pipeline_output/history.sqlite").write_text("")
    assert cluster.store_to_read(asked("")) == stored.Store("pipeline_output/history.sqlite")
    for wanted in (lambda: cluster.chosen_store(asked("a.sh"), Path()), lambda: cluster.store_to_read(asked("a.sh"))):
        with pytest.raises(InputError, match="--store: is no store .*'a.sh'"):
            wanted()


def test_a_cluster_is_opened_where_one_is_named(monkeypatch):
    @contextmanager
    def opened(address):
        yield f"executor of {address}"

    monkeypatch.setattr(clusters, "open_cluster", opened)
    for address, executor in (("", None), ("local:2", "executor of local:2")):
        with cluster.chosen_cluster(argparse.Namespace(cluster=address)) as found:
            assert found == executor


def test_a_ranking_is_remembered_where_there_is_a_store(monkeypatch, caplog, capsys):
    caplog.set_level("INFO")
    names = iter(["ab12", None])
    monkeypatch.setattr(stored, "remember_ranking", lambda *words: next(names))
    ranking.remember_ranking(None, "p", [], Has())
    ranking.remember_ranking(Has(), "p", [], Has())
    ranking.remember_ranking(Has(), "p", [], Has())
    assert caplog.messages == ["remembered as ab12: taylor history ab12"]
    ranking.print_files(Has(csv=Path("t.csv"), report=None, folder=Path("run")))
    assert capsys.readouterr().out == "     ranking: t.csv\n run's files: run\n"


@pytest.fixture
def base(monkeypatch):
    merged = []
    monkeypatch.setattr(operator_base, "OperatorBase", lambda path: Has(
        merge=lambda other: merged.append(other) or 3, export=lambda file: file))  # fmt: skip
    ends = [
        Has(left_out="a.txt: no profile", path="", known=False, taken=0, rejected=0, unread=0),
        Has(left_out="", path="p1", known=True, taken=0, rejected=0, unread=0),
        Has(left_out="", path="p2", known=False, taken=9, rejected=2, unread=0),
        Has(left_out="", path="p3", known=False, taken=9, rejected=2, unread=1),
    ]
    asked = []
    monkeypatch.setattr(filling, "fill_base", lambda one, folders, origin: asked.append((folders, origin)) or ends)
    line = Has(operators=5, error=0.123)
    each = Has(origin="card", operators=7, samples=70, rejected={"warm-up": 2, "late": 1},
               lines={("type", "MatMul"): line, ("core", "cube"): line})  # fmt: skip
    bare = Has(origin="other", operators=1, samples=1, rejected={}, lines={})
    monkeypatch.setattr(filling, "summaries", lambda one: [each, bare])
    return asked


def test_a_base_of_operators_is_printed_with_what_was_taken(base, capsys, caplog, monkeypatch):
    monkeypatch.setattr(operators, "start_logging", lambda **_: None)
    operators.run(["b.sqlite", "--fill", "d1", "d2", "--device", "card", "--merge", "o.sqlite", "--export", "e.csv"])
    assert base[0][0] == [Path("d1"), Path("d2")] and base[0][1].device == "card"
    assert caplog.messages == ["left out: a.txt: no profile"]
    assert capsys.readouterr().out.splitlines() == [
        "p1: was in the base",
        "p2: 9 samples taken, 2 left out",
        "p3: 9 samples taken, 2 left out, 1 rows without readable shapes",
        "o.sqlite: 3 profiles merged",
        "card: 7 operators from 70 samples; left out: 1 late, 2 warm-up",
        "  all of cube: 5 shapes, off by 12 % (median of those left out of the fit)",
        "  MatMul: 5 shapes, off by 12 % (median of those left out of the fit)",
        "other: 1 operators from 1 samples; left out: none",
        "exported: e.csv",
    ]


def test_a_base_that_is_not_there_is_filled_or_merged_first(base, capsys, caplog, monkeypatch):
    monkeypatch.setattr(operators, "start_logging", lambda **_: None)
    with pytest.raises(InputError, match="b.sqlite: no such file; fill it from profiles"):
        operators.run(["b.sqlite"])
    with pytest.raises(InputError, match="--device: is missing"):
        operators.run(["b.sqlite", "--fill", "d"])
    operators.run(["b.sqlite", "--merge", "o.sqlite", "--device", "x"])
    assert "--device: has no effect without --fill" in caplog.messages
    operators.run(["b.sqlite", "--fill", "d", "--device", "x"])
    Path("b.sqlite").write_text("")
    operators.run(["b.sqlite"])
    assert "exported" not in capsys.readouterr().out


@pytest.fixture
def profiled(monkeypatch):
    kept = []

    def stand_in(options):
        kept.append(options)
        return Has(notes=("scattered",), files=(Path("a.json"),))

    monkeypatch.setattr(profiling, "profile_model", stand_in)
    return lambda *words: (profile_model.run(list(words)), kept[-1])[1]


@pytest.mark.parametrize(
    ("words", "batches", "lengths_"),
    [
        ([], (1,), (4096,)), (["--profile_fixed_batch_size", "3"], (3,), (4096,)),
        (["--profile_fixed_seq_length_list", "64,128"], (1,), (64,)),
        (["--profile_mode", "batch", "--profile_max_batch_size", "3"], (1, 2, 3), (4096,)),
        (["--profile_mode", "batch", "--profile_min_batch_size", "2", "--profile_max_batch_size", "6",
          "--profile_batch_size_step", "3"], (2, 5, 6), (4096,)),
        (["--profile_mode", "sequence", "--profile_max_seq_length", "12288"], (1,), (4096, 8192, 12288)),
        (["--profile_mode", "sequence", "--profile_min_seq_length", "8", "--profile_max_seq_length", "24",
          "--profile_seq_length_step", "8"], (1,), (8, 16, 24)),
        (["--profile_mode", "sequence", "--profile_fixed_seq_length_list", "64, 128,"], (1,), (64, 128)),
    ],
)  # fmt: skip
def test_a_profile_varies_what_its_mode_says(words, batches, lengths_, profiled, capsys):
    options = profiled(*words)
    assert (options.plan.batches, options.plan.lengths, options.command) == (batches, lengths_, ())
    assert capsys.readouterr().out == "a.json\n"


def test_the_flags_of_a_profile_and_the_command_behind_them_reach_it(profiled):
    usual = profiled()
    assert usual == profiling.ModelProfileOptions(profiling.ModelPlan(), Path("output/configs"))
    words = ["--profile_type", "memory", "--layernum_min", "2", "--layernum_max", "3", "--num_layertype", "2",
             "--max_tp_deg", "4", "--profile_mixed_precision", "fp16", "--model_name", "a-1.b", "--hidden", "64",
             "--heads", "8", "--ffn", "128", "--vocab", "9", "--repeats", "7", "--attempts", "2", "--timeout", "5",
             "--output_path", "o", "--time_pattern", "t", "--states_pattern", "s", "--peak_pattern", "p"]  # fmt: skip
    assert profiled(*words, "--", "bash", "a.sh", "--", "{layers}") == profiling.ModelProfileOptions(
        profiling.ModelPlan("memory", "static", (1,), (4096,), 2, 3, 2, 4, "fp16", "a-1.b", 64, 8, 128, 9, 7, 2),
        Path("o"), ("bash", "a.sh", "--", "{layers}"), "t", "s", "p", 5.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--layernum_max", "1"], "--layernum_max: must be above --layernum_min (found 1)"),
        (["--model_name", "a/b"], "--model_name: must be of letters, digits, - and . (found 'a/b')"),
        (["--max_tp_deg", "3"], "--max_tp_deg: does not divide the layer (found 3)"),
        (["--max_tp_deg", "2", "--ffn", "11"], "--max_tp_deg: does not divide the layer"),
        (["--hidden", "65"], "--max_tp_deg: does not divide the layer"),
        (["--max_tp_deg", "64", "--ffn", "64"], "--max_tp_deg: does not divide the layer"),
        (["--profile_fixed_seq_length_list", "64,x"], "--profile_fixed_seq_length_list: must be lengths with commas"),
        (["--profile_fixed_seq_length_list", "64,0"], "must be lengths with commas (found '64,0')"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(words, said, profiled):
    with pytest.raises(InputError) as refused:
        profiled(*words)
    assert said in str(refused.value)
    assert profiled("--profile_fixed_seq_length_list", "1").plan.lengths == (1,)


def test_the_flags_of_a_profile_of_hardware_reach_it(monkeypatch, capsys):
    kept = []
    monkeypatch.setattr(hardware, "profile_hardware", lambda options: kept.append(options) or Has(files=("a.json",)))
    monkeypatch.setattr(hardware, "tell", lambda done: None)
    profile_hardware.run([])
    usual = hardware.HardwareProfileOptions(
        hardware.HardwarePlan(), Path("output/hardware_configs"), False, None, None, 14400.0
    )
    assert kept == [usual] and capsys.readouterr().out == "a.json\n"
    profile_hardware.run(["--only", " overlap, copy,", "--run", "--timeout", "5", "--device", "d"])
    assert (kept[1].plan.kinds, *list(vars(kept[1]).values())[2:]) == (("overlap", "copy"), True, "d", None, 5.0)
    with pytest.raises(InputError, match="--only: is no measurement .*did you mean overlap"):
        profile_hardware.run(["--only", "overlp"])


def sized(*names):
    return Has(to_dict=lambda *_: {"devices": [{"device": name} for name in names]}, plot=lambda: None)


def test_sizes_are_printed_by_device_and_beside_each_other(monkeypatch, capsys):
    from taylor.report import size as tables

    for name in ("size_table", "beside"):
        monkeypatch.setattr(tables, name, lambda data, name=name: f"{name} {data.get('device', '')}")
    monkeypatch.setattr(tables, "question_text", lambda data: "question")
    monkeypatch.setattr(tables, "answer_lines", lambda device, data: ["first", "second"])
    monkeypatch.setattr("taylor.report.terminal.print_table", print)
    size._print(sized("a"))
    assert lines(capsys) == ["size_table a", "training: question", "a: first", "a: second"]
    size._print(sized("a", "b"))
    assert lines(capsys)[:4] == ["size_table a", "size_table b", "beside", "training: question"]


def test_the_flags_of_a_size_reach_it(monkeypatch, capsys):
    kept = []
    monkeypatch.setattr(sizing, "size", lambda jobs, options, output: kept.append((jobs, options)) or sized("a"))
    monkeypatch.setattr(size, "_print", lambda found: print("printed"))
    size.run(["--model", "llama2-7b"])
    [job], options = kept[0]
    assert (job.world_size, job.seq_length, job.gbs, job.device, job.framework) == (16384, None, None, None, None)
    assert options == sizing.SizeOptions(None, None, 8, 16384, {}, options.workers, seconds=None)
    assert options.workers == sizing.SizeOptions(None, None).workers
    prices = str(ROOT / "config" / "device_prices.csv")
    size.run([
        "--model", "llama2-7b", "--device", "a", "--device", "b", "--device", "a", "--tokens", "1B", "--days", "3",
            "-t",
        "7", "--workers", "2", "--min_devices", "4", "--max_devices", "64", "--prices", prices, "--fix", "tp=2",
        "--seq", "64", "--gbs", "32", "--images", "2",
    ])  # fmt: skip
    jobs, options = kept[1]
    assert [job.device for job in jobs] == ["a", "b"]
    assert (jobs[0].world_size, jobs[0].seq_length, jobs[0].gbs, jobs[0].fix, jobs[0].images) == (
        64,
        64,
        32,
        {"tp": 2},
        "2",
    )
    assert (options.tokens, options.days, options.least, options.most) == (1e9, 3.0, 4, 64)
    assert (options.workers, options.seconds, bool(options.prices)) == (2, 7.0, True)
    assert lines(capsys) == ["printed", "printed"]
    with pytest.raises(InputError, match="picture"):
        size.run(["--model", "llama2-7b", "--picture", "a.doc"])


def test_a_question_of_an_agent_runs_below_others_and_within_its_memory(monkeypatch):
    asked = []
    for name in ("end_with_parent", "limit_memory"):
        monkeypatch.setattr(bounded, name, lambda number, name=name: asked.append((name, number)))
    monkeypatch.setattr(os, "nice", lambda by: asked.append(("nice", by)))
    monkeypatch.setattr(bounded, "taylor", lambda: 7)
    monkeypatch.setenv(bounded.PARENT, "12")
    monkeypatch.setenv(bounded.MOST_BYTES, "34")
    assert bounded.main() == 7
    assert asked == [("end_with_parent", 12), ("limit_memory", 34), ("nice", 5)]


COMMANDS = (
    "calibrate check compare completion devices doctor galvatron history layerwise lengths mcp merge models operators "
    "parallel_tool pipeline_parallel pipeline_tool profile_hardware profile_model rl rules schema serve size support "
    "timeline_tool tune warm why_memory"
)


def test_every_console_entry_point_takes_the_words_behind_its_name(monkeypatch, capsys):
    import importlib

    for words in (["--no_such_flag", "--json"], ["--json", "--no_such_flag"]):
        monkeypatch.setattr(sys, "argv", ["name", *words])
        for name in (*COMMANDS.split(), "main"):
            module = importlib.import_module(f"taylor.command_lines.{name}")
            assert module.main() == 2, name
            field = json.loads(capsys.readouterr().out)["field"]
            assert field == (words[0] if name == "main" else "--no_such_flag"), (name, field)
