"""Answers of the page's server, and what it refuses."""

from __future__ import annotations

import html
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from taylor.base.errors import WriteError
from taylor.parsers.read import read_config
from taylor.pipeline.plan import PipelinePlan
from taylor.serve.child import DONE, JOB, work
from taylor.serve.question import Question
from taylor.workflows.measuring.history import Store, remember_solve
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

ASK = {"model": "llama3-70b", "device": "h100-80g", "ranks": 64, "tp": 8, "pp": 4}


def until(what, seconds=300):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "the page did not come to it"
        time.sleep(0.1)
    return found


@contextmanager
def served(tmp_path: Path, folders: tuple[Path, ...] = (), store: Store | None = None):
    """A client of a page that works below a folder."""
    testclient = pytest.importorskip("starlette.testclient")
    from taylor.serve.app import Page, application
    from taylor.serve.jobs import Jobs
    from taylor.serve.own_files import OwnFiles
    from taylor.serve.question import Models

    jobs = Jobs(tmp_path / "jobs", 1, folders)
    page = Page("right", Models(tmp_path / "work", folders, OwnFiles(jobs.own)), jobs, store)
    with testclient.TestClient(application(page), base_url="http://127.0.0.1", headers={"X-Token": "right"}) as made:
        yield made


@pytest.fixture
def client(tmp_path: Path):
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "mine.json").write_text((ROOT / "config" / "qwen3_8b.json").read_text())
    (tmp_path / "secret.json").write_text((ROOT / "config" / "qwen3_8b.json").read_text())
    (tmp_path / "given" / "out.json").symlink_to(tmp_path / "secret.json")
    with served(tmp_path, (tmp_path / "given",)) as made:
        yield made


def ask(client, **changes):
    return client.post("/api/estimate", content=json.dumps(ASK | changes))


def test_a_wrong_token_or_another_host_is_told_nothing(client):
    paths = ("/", "/api/choices", "/api/history", "/api/job/0123456789abcdef", "/api/job/0123456789abcdef/config")
    for path in paths:
        for token in ("", "wrong", "righ", "right ", "ünd"):
            assert client.get(path, headers={"X-Token": token.encode()}).status_code == 403
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert client.get("/api/choices").status_code == 200


def test_the_front_page_holds_its_token_and_asks_nobody_else(client):
    page = client.get("/")
    assert page.status_code == 200 and '"right"' in html.unescape(page.text)
    assert not re.search(r"%TOKEN%|/\*CSS\*/|/\*JS\*/", page.text)
    assert (
        page.headers["Referrer-Policy"] == "no-referrer"
        and "default-src 'none'" in page.headers["Content-Security-Policy"]
    )


def test_runs_of_the_store_are_listed_and_compared(tmp_path: Path):
    store = Store(str(tmp_path / "h.sqlite"))
    with served(tmp_path, store=store) as made:
        assert made.get("/api/history").json() == {"runs": []}
        job = FileJob(path=ROOT / "config" / "pretrain_llama2_7b.yaml", dryrun=False, check=False, device="ascend-910b")
        planned = evaluate_file(job, Outputs(folder=tmp_path))
        first, second = (remember_solve(store, "pipeline_tool", [], planned) for _ in range(2))
        runs = made.get("/api/history").json()["runs"]
        assert {run["id"] for run in runs} == {first, second} and not any(run["ranking"] for run in runs)
        told = made.get(f"/api/compare/{first}/{second}").json()
        assert told["names"] == [first, second] and told["differences"] == {}
        assert told["parts"] and all(before == after for before, after in told["parts"].values())


def test_without_a_store_there_is_no_history_and_nothing_to_compare(client):
    assert client.get("/api/history").json() == {"runs": []}
    refused = client.get("/api/compare/1/2")
    assert refused.status_code == 400 and "--store" in refused.json()["error"]


@pytest.mark.parametrize(
    "model", ["../secret.json", "0/../secret.json", "0/out.json", "1/mine.json", "0/", "/etc/passwd", "0/mine\0.json",
              "secret.json", "99999999999/mine.json", "no-such-model"],
)  # fmt: skip
def test_a_model_outside_the_folders_given_is_refused(client, model, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    refused = ask(client, model=model)
    assert refused.status_code == 400 and "model" in refused.json()["error"]
    inside = ask(client, model="0/mine.json", ranks=8, tp=2, pp=1)
    assert inside.status_code == 200 and inside.json()["peak_mib"]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"device": "../h100.yaml"}, "device"),
        ({"ranks": 0}, "ranks"),
        ({"ranks": 65}, "divisible"),
        ({"tp": 3}, "divisible"),
        ({"gbs": 511}, "gbs"),
        ({"pp": 64, "tp": 1, "vpp": 2}, "layers"),
        ({"recompute": float("nan")}, "recompute"),
        ({"more": 1}, "more"),
        ({"model": "x" * 301}, "model"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_what_is_wrong(client, changes, words):
    refused = ask(client, **changes)
    assert refused.status_code in (400, 422) and words in refused.json()["error"], refused.text


@pytest.mark.parametrize(
    "changes", [{"ranks": 65}, {"gbs": 511}, {"pp": 1, "vpp": 2}, {"pp": 64, "tp": 1, "vpp": 2},
                {"model": "no-such-model"}, {"ranks": 0}, {"ranks": 10**7}, {"ranks": "many"}],
)  # fmt: skip
def test_what_a_person_is_told_most_often_the_page_also_says_in_chinese(client, changes):
    script = (ROOT / "serve" / "assets" / "serve.js").read_text()
    patterns = re.findall(r"^  \[/(.+)/,", script.split("const CHINESE = [")[1].split("];")[0], flags=re.MULTILINE)
    assert len(patterns) >= 10
    told = ask(client, **changes).json()["error"]
    assert any(re.search(pattern, told) for pattern in patterns), told


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 60_000, b" " * 70_000, b'{"model": 1}'])
def test_a_malformed_request_is_refused_and_the_next_one_is_answered(client, content):
    for path in ("/api/estimate", "/api/jobs/solve", "/api/jobs/rank"):
        assert client.post(path, content=content).status_code == 400
    assert client.post("/api/jobs/erase", content=json.dumps(ASK)).status_code == 400
    assert ask(client).status_code == 200


@pytest.mark.slow
def test_twenty_sessions_at_once_each_get_the_answer_to_their_own_question(client):
    settings = [{"tp": 2**tp, "recompute": 25.0 * share} for tp in range(4) for share in range(5)]
    alone = [ask(client, **one).json() for one in settings]
    with ThreadPoolExecutor(20) as pool:
        together = [reply.json() for reply in pool.map(lambda one: ask(client, **one), settings)]
    for one, other in zip(alone, together, strict=True):
        assert one | {"answered_in_ms": 0} == other | {"answered_in_ms": 0} and one["step_ms"] > 0


def test_a_file_of_a_job_is_had_by_its_name_alone(client, tmp_path):
    folder = tmp_path / "jobs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "job.json").write_text("{}")
    assert client.get("/api/job/0123456789abcdef/config").content == b"{}"
    for path in ("0123456789abcdef/job.json", "0123456789abcdef/..%2f..%2fsecret.json", "..%2f/config", "x/config"):
        assert client.get(f"/api/job/{path}").status_code in (400, 404)


def test_a_report_opens_by_a_link_of_its_own_and_reaches_neither_the_page_nor_the_network(client, tmp_path):
    folder = tmp_path / "jobs" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<p>a plan</p>")
    (folder / "config.json").write_text("{}")
    (folder / DONE).write_text("{}")
    links = client.get("/api/job/0123456789abcdef").json()["links"]
    assert "report" in links and "right" not in str(links)
    client.headers.pop("X-Token")
    report = client.get(links["report"])
    assert report.status_code == 200 and report.text == "<p>a plan</p>"
    policy = dict(part.strip().partition(" ")[::2] for part in report.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert "allow-same-origin" not in policy["sandbox"] and "connect-src" not in policy
    assert report.headers["Referrer-Policy"] == "no-referrer" and report.headers["Cache-Control"] == "no-store"
    ticket = links["report"].rpartition("/")[2]
    for other in (f"/file/0123456789abcdef/config/{ticket}", f"/api/job/0123456789abcdef/report?token={ticket}", "/"):
        assert client.get(other).status_code == 403


@pytest.mark.slow
def test_a_stopped_job_says_so_and_a_stopped_solve_keeps_its_best_plan(client):
    """One runs at a time; the solve is far from its proof when it is stopped."""
    hard = ASK | {"model": "llama3-405b", "ranks": 512, "pp": 16, "vpp": 7, "seq": 8192, "seconds": 600.0}
    first, second = (client.post("/api/jobs/solve", content=json.dumps(hard)).json()["job"] for _ in range(2))

    def state(name):
        return client.get(f"/api/job/{name}").json()

    client.post(f"/api/job/{second}/stop")
    assert state(second)["state"] == "waiting"
    until(lambda: all((state(first).get("progress") or {"step": None}).get(one) for one in ("step", "bound")))
    client.post(f"/api/job/{first}/stop")
    until(lambda: state(second)["state"] == "done")
    told = state(first)
    assert told["answer"]["stopped"] and told["answer"]["step_ms"] > told["answer"]["bound_ms"]
    assert {"script", "result"} <= set(told["files"]) and "report" not in told["files"]
    assert state(second)["answer"]["error"].startswith("stopped")


@pytest.mark.slow
def test_a_sizing_finds_the_devices_of_a_model(client):
    small = ASK | {"model": "llama3-8b", "seconds": 300.0, "gbs": 16}
    name = client.post("/api/jobs/size", content=json.dumps(small)).json()["job"]
    until(lambda: client.get(f"/api/job/{name}").json()["state"] == "done")
    answer = client.get(f"/api/job/{name}").json()["answer"]
    assert answer.get("error") is None and answer["sized"]["least"]["devices"] <= 16


def test_the_plan_of_the_page_is_the_one_that_its_start_script_says(tmp_path):
    """The first stage alone needs recompute, of two layers; Megatron knows one count for all stages."""
    from taylor.serve.child import _solve
    from taylor.serve.question import Models, Question

    ask = Question(model="qwen2.5-7b", device="h100-80g", ranks=16, tp=2, pp=4, seq=32768, seconds=20.0)
    told = _solve(tmp_path, ask, Models(tmp_path / "models"), None)
    written = read_config(tmp_path / "train.sh")
    assert len(set(written.plan.recomputed("full")[0])) == 1
    again = evaluate_file(
        FileJob(path=tmp_path / "train.sh", dryrun=False, check=False, device=ask.device),
        Outputs(folder=tmp_path / "again"),
    ).result().to_dict()  # fmt: skip
    assert again["step_ms"] == told["step_ms"] and again["peak_memory"] == told["peak_memory"]


def test_a_plan_is_shown_and_remembered_although_its_page_could_not_be_written(tmp_path, monkeypatch):
    from taylor.report import outputs
    from taylor.serve.child import _solve
    from taylor.serve.question import Models

    def refuse(*_: object, **__: object) -> None:
        raise WriteError("no space")

    monkeypatch.setattr(outputs, "write_html_report", refuse)
    ask = Question(model="qwen2.5-7b", device="h100-80g", ranks=16, tp=2, pp=4, seq=4096, seconds=20.0)
    store = Store(str(tmp_path / "store.db"))
    found = _solve(tmp_path / "job", ask, Models(tmp_path / "models"), store)
    assert found["step_ms"] > 0 and found["run"] and "report.html" in found["unwritten"][0]


def test_an_answer_has_interval_risk_and_the_smallest_change(client):
    def ask(**changes: object) -> dict:
        return client.post("/api/estimate", json={**ASK, "ranks": 32, "gbs": 32, "seq": 9216, **changes}).json()

    close = ask(pp=2, recompute=0)
    assert close["verdict"]["fit"] == "exceeds the risk" and not close["fits"]
    assert 0.05 < close["verdict"]["risk"] < 0.5 and "full recompute of" in close["verdict"]["sentence"]
    assert all(
        low < peak < high for peak, (low, high) in zip(close["peak_mib"], close["peak_interval_mib"], strict=True)
    )
    bold = ask(pp=2, recompute=0, risk=20)
    assert bold["fits"] and max(bold["limits_mib"]) > max(close["limits_mib"])
    assert bold["whole_mib"] == pytest.approx(close["whole_mib"])
    assert ask(stage_limit={"1": 20_000})["verdict"]["fit"] == "does not fit"


def test_a_run_of_other_settings_corrects_the_answer(client):
    run = {"tp": 8, "pp": 4, "recompute": 100}
    ask = {**ASK, "ranks": 32, "gbs": 32, "seq": 8192}
    plain = client.post("/api/estimate", json=ask).json()
    peak = plain["peak_mib"][0] + 5000.0
    seen = {**run, "measured_peak": {"0": peak}, "peak_of": "card"}
    corrected = client.post("/api/estimate", json={**ask, "run": seen}).json()
    assert corrected["peak_mib"][0] == pytest.approx(peak, abs=1.0)
    assert corrected["peak_mib"][1:] == pytest.approx(plain["peak_mib"][1:])
    assert "stage 0 needed 5,000 MiB more than predicted" in corrected["learned"][0]
    failed = client.post("/api/estimate", json={**ask, "run": {**run, "out_of_memory": [2]}}).json()
    assert failed["verdict"]["fit"] == "does not fit" and failed["peak_mib"][2] > failed["whole_mib"][2]
    for wrong, words in (
        ({"run": {**run, "out_of_memory": [4]}}, "names no stage of 4"),
        ({"stage_limit": {"0": 1e9}}, "is above the 81,559 MiB"),
        ({"risk": 60}, "less than or equal to 50"),
    ):
        reply = client.post("/api/estimate", json={**ask, **wrong})
        assert reply.status_code == 400 and words in reply.json()["error"]


def give(client, name, data):
    return client.post(f"/api/own?name={name}", content=data)


@pytest.mark.parametrize(
    "file", ["pretrain_llama3_70b.yaml", "pretrain_llama3_70b.sh", "qwen3_8b.json", "pretrain_deepseek3_128p.yaml"]
)
def test_a_file_that_is_given_states_the_question_and_is_answered(client, file):
    given = give(client, file, (ROOT / "config" / file).read_bytes())
    assert given.status_code == 200, given.text
    stated, config = given.json(), read_config(ROOT / "config" / file)
    assert stated["ask"]["seq"] == config.rules.seq_length
    if not file.endswith(".json"):
        assert all(stated["ask"][name] == getattr(config.strategy, name) for name in ("tp", "pp", "ep", "cp", "mbs"))
        assert stated["ask"]["gbs"] == config.strategy.global_batch
    question = {"ranks": 8, "gbs": 64, "recompute": 100} | stated["ask"]
    answer = client.post("/api/estimate", json=question)
    assert answer.status_code == 200 and answer.json()["assumed"]["framework"] == stated["ask"].get(
        "framework", "megatron"
    )


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + turn)}: &{chr(98 + turn)} [{','.join(['*' + chr(97 + turn)] * 9)}]\n" for turn in range(12)
)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("run.sh", b"echo 1\n" * 750_000, "is longer than"),
        ("model.yaml", b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)), "is no text"),
        ("model.yaml", b"a\0b: 1", "is no text"),
        ("bomb.yaml", BOMB.encode(), "bomb.yaml"),
        ("..", b"a: 1", "has no name"),
        ("run.exe", b"a: 1", "run.exe"),
    ],
)
def test_a_file_that_is_no_training_file_is_refused_in_words(client, name, data, words, tmp_path):
    began = time.monotonic()
    refused = give(client, name, data)
    assert refused.status_code == 400 and words in refused.json()["error"], refused.text
    assert str(tmp_path) not in refused.text and time.monotonic() - began < 60
    assert ask(client).status_code == 200


@pytest.mark.parametrize("line", ["source {}", ". {}", "EXTRA=1; source {}"])
def test_a_given_script_reads_no_other_file_of_the_machine(client, tmp_path, line):
    (tmp_path / ".git").mkdir()  # the script lies in a checkout, whose files a user's own script may take in
    (tmp_path / "secret.sh").write_text("TP=4\n")
    script = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text()
    text = script.replace("TP=8\n", f"TP=8\n{line.format(tmp_path / 'secret.sh')}\n")
    assert text != script
    given = give(client, "run.sh", text.encode()).json()
    assert given["ask"]["tp"] == 8 and "secret.sh" in " ".join(given["notes"])
    kept = next((tmp_path / "jobs" / "own").rglob("run.sh"))
    assert read_config(kept).strategy.tp == 4, "without the bound it is read"
    assert ask(client, model=given["ask"]["model"], tp=8, ranks=32, gbs=32).status_code == 200


@pytest.mark.parametrize("model", ["own/../../secret.json", "own/0123456789abcdef/mine.yaml", "own/x", "own/"])
def test_a_file_that_was_not_given_is_refused(client, model):
    refused = ask(client, model=model)
    assert refused.status_code == 400 and "does not have" in refused.json()["error"]


def test_assumptions_can_be_changed_and_move_the_answer(client):
    plain = ask(client).json()
    assert plain["assumed"]["sequence_parallel"] and plain["assumed"]["optimizer_ranks"] == plain["dp"]
    low, high = plain["step_interval_ms"]
    assert low < plain["step_ms"] < high
    without = ask(client, sp=False).json()
    assert max(without["peak_mib"]) > max(plain["peak_mib"]) and not without["assumed"]["sequence_parallel"]
    whole = ask(client, op=False).json()
    assert max(whole["peak_mib"]) > max(plain["peak_mib"]) and whole["assumed"]["optimizer_ranks"] == 1
    assert ask(client, software=["fp8=mxfp8"]).json()["step_ms"] < plain["step_ms"]
    assert ask(client, limit_mib=20_000).json()["over"]
    refused = ask(client, software=["fp7"])
    assert refused.status_code == 400 and refused.json()["field"] == "--with"


def test_a_solve_has_the_limit_of_the_estimate(client, tmp_path):
    small = {"model": "llama2-7b", "device": "h100-80g", "ranks": 16, "tp": 4, "pp": 2, "gbs": 64, "seconds": 3}
    question = Question(**small, limit_mib=60_000, stage_limit={1: 50_000})
    estimate = client.post("/api/estimate", json=question.model_dump()).json()
    job = {"kind": "solve", "ask": question.model_dump(), "folders": [], "own": str(tmp_path), "store": ""}
    (tmp_path / JOB).write_text(json.dumps(job), encoding="utf-8")
    limits = work(tmp_path)["memory_limit"]
    assert limits == pytest.approx(estimate["limits_mib"]) and limits[1] < limits[0] < 60_000


@pytest.mark.parametrize(
    "kind, setting",
    [
        ("rank", {"limit_mib": 60_000}), ("rank", {"sp": False}), ("rank", {"op": False}),
        ("size", {"limit_mib": 60_000}), ("size", {"stage_limit": {"0": 60_000}}),
    ],
)  # fmt: skip
def test_a_setting_that_a_search_would_not_heed_is_refused(client, kind, setting):
    refused = client.post(f"/api/jobs/{kind}", json=ASK | setting)
    assert refused.status_code == 400 and refused.json()["field"] == next(iter(setting)), refused.text


def test_a_limit_above_the_card_is_refused(client):
    refused = ask(client, limit_mib=200_000)
    assert refused.status_code == 400 and refused.json()["field"] == "limit_mib"


def test_changes_are_what_the_question_says_when_it_is_asked_with_them(client):
    tight = ASK | {"ranks": 32, "gbs": 32, "seq": 9728, "recompute": 0, "pp": 2}
    changes = client.post("/api/changes", json=tight).json()["changes"]
    assert changes and len(changes) <= 3
    for change in changes:
        answer = client.post("/api/estimate", json=tight | change["change"]).json()
        assert answer["fits"] and answer["step_ms"] == pytest.approx(change["step_ms"])
    gains = client.post("/api/changes", json=ASK).json()["changes"]
    assert all(change["gain"] > 0 for change in gains)


@pytest.mark.parametrize("framework", ["megatron", "mindspeed", "mindformers"])
def test_a_start_file_of_each_framework_says_what_the_question_asks(client, framework, tmp_path):
    made = client.post(f"/api/start/{framework}", json=ASK)
    assert made.status_code == 200, made.text
    path = tmp_path / made.json()["name"]
    path.write_text(made.json()["text"])
    config = read_config(path)
    assert framework in made.json()["text"].lower() and config.strategy.tp == 8 and config.strategy.pp == 4
    assert config.strategy.global_batch == 512 and config.strategy.world_size == 64
    assert " on 8 ranks" not in made.json()["text"]
    assert client.post("/api/start/nosuch", json=ASK).status_code == 400


@pytest.mark.parametrize(("again", "percent"), [(0, 0), (4, 10), (12, 40), (26, 80), (32, 100)])
def test_the_recompute_of_a_files_plan_is_asked_in_steps_of_five_percent(again, percent):
    from taylor.serve.own_files import _degrees

    config = read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")
    plan = PipelinePlan({"dense": [[16, 16]]}, {"full": [[min(again, 16), max(0, again - 16)]]})
    assert _degrees(config.replace(plan=plan))["recompute"] == percent
