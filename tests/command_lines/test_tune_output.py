"""What `taylor tune` passes on, prints of its runs, laws and plans, and ends with."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace as Has

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import tune
from taylor.workflows.tuning import tune as tuning
from taylor.workflows.tuning import tune_page


def setting(**changes):
    words = {"dp": 2, "tp": 1, "cp": 1, "pp": 1, "mbs": 1, "ep": 2, "experts": 4, "layers": 3, "seq": 512}
    return Has(**words | changes, differences=lambda other: f"dp {other.dp}")


def small_run(name, ended=None, seconds=12.4):
    run = Has(name=name, setting=setting(), why="the base")
    return Has(run=run, ended=ended, seconds=seconds, folder=Path("tune/runs") / name)


def verified(**changes):
    return Has(**{"run": "check-1", "predicted_ms": 10.04, "measured_ms": 11.06} | changes)


def best(**changes):
    ranked = Has(
        run=Has(dp=8, replicas=2, tp=4, pp=3, vpp=5, cp=6, ep=7, mbs=9), step_ms=1234.56,
        plan=Has(total_layers=lambda: ((4, 3), (2, 1))),
    )  # fmt: skip
    usual = {"ranked": ranked, "verified": None, "before_ms": None, "low_ms": 1100.4, "high_ms": 1300.6,
             "peak": 3 * 2**30, "upper": 3.26 * 2**30, "script": "plan.sh", "recomputed": "none", "switches": (),
             "full_size": None}  # fmt: skip
    return Has(**usual | changes)


def done(*, experts=1, runs=None, left_out=(), laws=None, covered=None, searched=None, not_searched="", weights=None):
    return Has(
        sizes=Has(own=Has(layers=48, experts=experts, seq=4096), weights=weights), machines=Has(nodes=1, per_node=8),
        ranks=1024, runs=runs or [small_run("base")], left_out=left_out, law_summary=laws, laws="laws.json",
        covered=covered, searched=searched, not_searched=not_searched,
    )  # fmt: skip


def test_the_small_runs_are_printed_with_their_ends(capsys):
    runs = [small_run("base"), small_run("tp2", ""), small_run("pp2", "out of memory")]
    tune._print(done(runs=runs, left_out=("pp of 8 cards",)))
    degrees = "dp 2, tp 1, cp 1, pp 1, mbs 1, layers 3, seq 512: the base"
    assert capsys.readouterr().out.splitlines() == [
        "job: 48 layers, 4,096 tokens a sample, 1,024 ranks",
        "small runs: 3 on 1 x 8 cards, one profile each",
        f"  base         {degrees}; written",
        f"  tp2          {degrees}; ran in 12 s",
        f"  pp2          {degrees}; failed (out of memory)",
        "  left out: pp of 8 cards",
        "files: tune/runs",
    ]
    tune._print(done(experts=2))
    shown = capsys.readouterr().out
    assert "48 layers, 2 experts, 4,096" in shown and "mbs 1, ep 2, experts 4, layers 3" in shown


def test_the_laws_are_printed_with_what_would_settle_the_others(capsys):
    further = Has(setting=setting(dp=4), fits=(1, 2, 3), shown=5)
    laws = Has(operators=9, settled=4, ambiguous=3, scattered=2, lawless=1, deciding=[further],
               conditions=[("always", 7), ("first stage", 2)])  # fmt: skip
    coverage = Has(by_count=0.504, by_time=0.756, unknown=(1, 2, 3, 4, 5, 6))
    tune._print(done(laws=laws, covered=Has(coverage=coverage, operators=20, unsure=3, further=further)))
    assert capsys.readouterr().out.splitlines()[4:] == [
        "operators: 9; 4 with exact laws, 3 with several, 2 that scatter, 1 without",
        "they run: always (7), first stage (2)",
        "undecided: a run with dp 4 distinguishes the laws of 3 sizes",
        "laws: laws.json",
        "job at its own degrees: 20 operators predicted, 3 not settled; the base has 50 % of those that compute, "
        "76 % of their time",
        "further run: with dp 4 it shows 5 of the 6 that are missing",
    ]
    tune._print(done(laws=laws, covered=Has(coverage=coverage, operators=20, unsure=3, further=None)))
    assert "further run" not in capsys.readouterr().out
    tune._print(done(laws=laws))
    assert capsys.readouterr().out.splitlines()[-1] == "laws: laws.json"


def found(*plans):
    return Has(own_error=0.0123, own_worst=0.0456, found=Has(legal=70, solved=6), assumed=("a link of 25 GB/s",),
               best=plans, file="best.json")  # fmt: skip


def switch(**changes):
    usual = {"on": True, "switch": Has(name="mc2", flag="--use-mc2"), "before_ms": 5.04, "after_ms": 4.06, "fits": True,
             "memory": 1.0}  # fmt: skip
    return Has(**usual | changes)


def test_the_plans_are_printed_as_a_table_and_line_by_line(capsys):
    other = best(
        before_ms=3.0, script=None, recomputed="2 of 8",
        switches=(switch(), switch(on=False, fits=False, memory=1.25), switch(after_ms=math.inf, on=False)),
        full_size=Has(step_ms=1240.04, peak=2.5 * 2**30, run="f.log"),
    )  # fmt: skip
    third = best(verified=verified(), full_size=Has(step_ms=None, peak=None, run="f.log"))
    tune._print_plans(done(searched=found(best(), other, third), not_searched="no cards"))
    assert capsys.readouterr().out.splitlines() == [
        "no plan searched: no cards",
        "laws on the small runs' own passes: 1.2% off in the middle, 4.6% at most; 70 choices of degrees can start, "
        "6 were solved exactly",
        "assumed: a link of 25 GB/s",
        "   dp  tp  pp  vpp  cp  mbs  step ms     interval  GiB  at most  verified: predicted, measured ms",
        "1   8   4   3    5   6    9  1,234.6  1,100-1,301  3.0      3.3                                 -",
        "2   8   4   3    5   6    9  1,234.6  1,100-1,301  3.0      3.3        the base has its operators",
        "3   8   4   3    5   6    9  1,234.6  1,100-1,301  3.0      3.3               check-1: 10.0, 11.1",
        "plan 1: layers 4,3; 2,1; recomputed none; plan.sh",
        "plan 2: layers 4,3; 2,1; recomputed 2 of 8; its flags cannot say it",
        "  mc2 (--use-mc2): a layer takes 5.0 ms, switched 4.1; on",
        "  mc2 (--use-mc2): a layer takes 5.0 ms, switched 4.1, no memory for 1.25 times the tensors; off",
        "  mc2 (--use-mc2): its small run failed; off",
        "  at full size: 1,240.0 ms, at most 2.5 GiB",
        "plan 3: layers 4,3; 2,1; recomputed none; plan.sh",
        "  at full size: failed, see f.log",
        "as JSON: best.json",
    ]
    tune._print_plans(done(searched=found(best(full_size=Has(step_ms=1.0, peak=None, run=""))), experts=2, weights=1))
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split()[:9] == ["dp", "replicas", "tp", "pp", "vpp", "cp", "ep", "mbs", "step"]
    assert shown[3].split()[:9] == ["1", "8", "2", "4", "3", "5", "6", "7", "9"]
    assert shown[5] == "  at full size: 1.0 ms"
    tune._print_plans(done())
    assert capsys.readouterr().out == ""


def test_the_exit_code_is_that_of_a_plan_of_failed_runs_or_of_none(caplog):
    failed, ran, written = small_run("a", "killed"), small_run("b", ""), small_run("c")
    plan, none = found(best()), found()
    for given, dry, first, code in (
        (done(runs=[failed, failed], searched=plan), False, True, 5), (done(runs=[failed], searched=plan), True, False,
         5),
        (done(runs=[failed, ran], searched=plan), False, True, None), (done(runs=[failed, ran]), False, True, 4),
        (done(runs=[written]), True, True, None), (done(runs=[written]), False, False, None),
        (done(runs=[written]), False, True, 4), (done(runs=[ran], searched=none), False, True, 4),
        (done(runs=[failed, written]), True, True, 5), (done(runs=[ran], not_searched="no cards"), False, True, 4),
    ):  # fmt: skip
        assert tune._exit_code(given, dry=dry, first=first) == code
    assert caplog.messages[0] == "all 2 small runs failed: killed"
    assert caplog.messages[-1] == "no plan was found: no cards"
    assert "no plan was found: too few small runs ended with a profile" in caplog.messages


@pytest.fixture
def asked(monkeypatch, tmp_path, capsys):
    """Options that a command line hands to the tuner."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text("")
    kept = []

    def stand_in(options):
        kept.append(options)
        return done(searched=found(best()))

    monkeypatch.setattr(tuning, "tune", stand_in)
    return lambda *words: (tune.run(["a.sh", *words]), kept[-1])


def test_the_defaults_of_a_tuning_are_those_of_its_page(asked):
    code, options = asked()
    assert code is None and options == tuning.TuneOptions(
        Path("a.sh"), Path("tune"), nodes=None, per_node=None, master_addr=None, master_port=None, node_rank=None,
        searched=["tp", "cp", "ep", "pp", "vpp", "mbs", "replicas"], tokens=None, timeout_s=1800.0, dry=False,
        retry=False, base=None, origin=options.origin, ranks=None, job_nodes=None, batch=None, limit=None, verify=True,
        risk=options.risk, switches=[], full_size=False,
    )  # fmt: skip
    assert (options.origin.device, options.risk) == ("this cluster", 0.01)


def test_each_flag_of_a_tuning_reaches_it(asked):
    _, options = asked(
        "--search", " tp, modules ,", "--tokens", "9", "--world_size", "16", "--gbs", "8", "--memory_gib", "2",
        "--risk", "5%", "--switches", "mc2, cp_ring,", "--nnodes", "2", "--nproc_per_node", "4", "--master_addr", "h",
        "--master_port", "77", "--node_rank", "0", "--work_dir", "w", "--dry", "--timeout", "5", "--retry",
        "--no_verify", "--full_size", "--target_nnodes", "3", "--base", "b.sqlite", "--device", "card", "--driver", "d",
        "--toolkit", "t",
    )  # fmt: skip
    assert (options.searched, options.tokens, options.ranks, options.batch) == (["tp", "modules"], 9, 16, 8)
    assert (options.limit, options.risk, options.switches) == (2 * 2**30, 0.05, ["mc2", "cp_ring"])
    assert (options.nodes, options.per_node, options.master_addr, options.master_port) == (2, 4, "h", 77)
    assert (options.node_rank, options.dry, options.timeout_s, options.retry) == (0, True, 5.0, True)
    assert (options.verify, options.full_size, options.job_nodes, options.base) == (False, True, 3, Path("b.sqlite"))
    assert (options.origin.device, options.origin.driver, options.origin.toolkit) == ("card", "d", "t")
    assert asked("--device", "ascend-910b")[1].limit == tuning.memory_of("ascend-910b") is not None
    assert asked("--auto-tuning-ranks", "6", "--auto-settings-work-dir", "v")[1].ranks == 6


def test_another_node_than_the_first_ends_without_a_plan(monkeypatch, asked):
    monkeypatch.setattr(tuning, "tune", lambda options: done(runs=[small_run("a", "")]))
    with pytest.raises(IndexError):
        asked("--node_rank", "1")  # the command ended well, and no options were kept
    assert tune.run(["a.sh", "--node_rank", "1"]) is None
    assert tune.run(["a.sh", "--node_rank", "0"]) == tune.run(["a.sh"]) == 4


def test_the_page_is_written_where_it_is_asked_for(monkeypatch, asked, capsys):
    pages = []
    monkeypatch.setattr(tune_page, "write_tune_page", lambda *words: pages.append(words))
    asked("--html", "p.html", "--memory_gib", "1")
    assert [(page[0], page[2], page[3]) for page in pages] == [(Path("p.html"), Path("a.sh"), 2**30)]
    assert capsys.readouterr().out.endswith("html: p.html\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "FILE: is missing; name the script that starts the training"),
        (["a.sh", "--search", "tp,xx,yy"], "--search: names no degree (found 'xx, yy')"),
        (["a.sh", "--search", ","], "--search: names no degree"),
        (["a.sh", "--node_rank", "-1"], "--node_rank: must be at least 0 (found -1)"),
        (["a.sh", "--base", "b"], "--device: is missing; name the card that the small runs are measured on"),
        (["a.sh", "--html", "a.sh/p.html"], "--html"),
    ],
)
def test_a_tuning_that_cannot_be_is_refused(words, said, asked):
    with pytest.raises(InputError) as refused:
        tune.run(words)
    assert said in str(refused.value)


def test_the_log_is_as_the_manual_of_mindspeed_asks(monkeypatch, asked):
    levels = []
    monkeypatch.setattr(tune, "start_logging", lambda **words: levels.append((words["verbose"], words["quiet"])))
    for words in ([], ["--log_level", "debug"], ["--log_level", "warning"], ["--verbose"], ["--quiet"]):
        asked(*words)
    assert levels == [(False, False), (True, False), (False, True), (True, False), (False, True)]
