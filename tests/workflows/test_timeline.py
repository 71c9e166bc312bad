"""Plans and measurements are drawn from the files that the tools themselves write."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import timeline_tool

LINE = "Profiler Info: Job ({job}), type = {kind}, micro_batch_id = {i}, job_start_time = {a}, job_end_time = {b}\n"


@pytest.fixture
def log_dir(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    for device in (0, 1):
        lines = [
            LINE.format(job=3, kind="forward", i=i, a=1000.0 + 10 * i + device, b=1008.0 + 10 * i + device)
            for i in range(4)
        ]
        (folder / f"workerlog.{device}").write_text("".join(lines))
    return folder


def events(path):
    data = json.loads(path.read_text())
    return data["traceEvents"] if isinstance(data, dict) else data


def blocks(path):
    return [event for event in events(path) if event["ph"] == "X" and event.get("cat") != "step"]


def test_worker_logs_become_a_trace(log_dir, tmp_path):
    timeline_tool.run(
        ["--log_dir", str(log_dir), "--trace", str(tmp_path / "t.json"), "--html", str(tmp_path / "t.html")]
    )
    assert len(blocks(tmp_path / "t.json")) == 8
    assert "<html" in (tmp_path / "t.html").read_text()[:400].lower()


def test_a_window_and_the_devices_leave_the_rest_out(log_dir, tmp_path):
    timeline_tool.run(
        ["--log_dir", str(log_dir), "--devices", "1", "--window", "0,9", "--trace", str(tmp_path / "t.json")]
    )
    assert len(blocks(tmp_path / "t.json")) == 1


@pytest.mark.parametrize("words", [[], ["--log_dir", "nowhere"], ["--solution", "nowhere.json"]])
def test_no_source_or_a_missing_one_is_named(words):
    with pytest.raises(InputError, match="nowhere|no source"):
        timeline_tool.run(words)


@pytest.mark.slow
def test_a_saved_result_is_drawn_as_it_was_planned(run_tool, reference_yaml, tmp_path):
    done = run_tool(
        "pipeline_parallel.py",
        "-yaml",
        reference_yaml,
        "-memory",
        tmp_path / "memory.json",
        "-write",
        "n",
        "--result_json",
        tmp_path / "r.json",
        "--html",
        tmp_path / "r.html",
    )
    assert done.returncode == 0, done.stderr
    assert "as in the file" in (tmp_path / "r.html").read_text()
    timeline_tool.run(["--solution", str(tmp_path / "r.json"), "--trace", str(tmp_path / "t.json")])
    step_ms = json.loads((tmp_path / "r.json").read_text())["step_ms"]
    assert max(event["ts"] + event["dur"] for event in blocks(tmp_path / "t.json")) == pytest.approx(
        1000 * step_ms, rel=1e-6
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda r: r["problem"].update(stages=0), "stages"),
        (lambda r: r["problem"].update(kinds="x"), "kinds"),
        (lambda r: r["layers"].update(moe=[[1]]), "shape|layers"),
        (lambda r: r.pop("problem"), "no solved plan"),
    ],
)
def test_a_damaged_result_is_refused(tmp_path, change, words):
    result = {
        "layers": {"moe": [[1, 1]]},
        "recompute": {"full": [[0, 0]]},
        "problem": {
            "stages": 2,
            "interleaves": 1,
            "micro_batches": 2,
            "static_mib": [0, 0],
            "limit_mib": [9, 9],
            "kinds": [
                {"name": "moe", "count": 2, "forward": 1, "layer_mib": 1, "activation_mib": {"none": 1, "full": 0}}
            ],
        },
    }
    change(result)
    (tmp_path / "r.json").write_text(json.dumps(result))
    with pytest.raises(InputError, match=words):
        timeline_tool.run(["--solution", str(tmp_path / "r.json"), "--trace", str(tmp_path / "t.json")])


def a_result(path, **problem):
    """A result of a tiny plan, as `--result_json` writes it; the unit is unknown unless it is given."""
    kinds = [{"name": "moe", "count": 2, "forward": 1, "layer_mib": 1, "activation_mib": {"none": 1, "full": 0}}]
    stated = {"stages": 2, "interleaves": 1, "micro_batches": 4, "static_mib": [0, 0], "limit_mib": [9, 9]}
    result = {
        "layers": {"moe": [[1, 1]]},
        "recompute": {"full": [[0, 0]]},
        "problem": stated | {"kinds": kinds} | problem,
    }
    path.write_text(json.dumps(result))
    return path


def test_a_plan_lies_beside_a_measurement_once_its_unit_is_told(log_dir, tmp_path, capsys):
    plan = a_result(tmp_path / "r.json")
    words = ["--solution", str(plan), "--log_dir", str(log_dir), "--trace", str(tmp_path / "t.json")]
    with pytest.raises(InputError, match="--unit_ms"):
        timeline_tool.run(words)
    timeline_tool.run([*words, "--unit_ms", "2.5"])
    names = [event["args"]["name"] for event in events(tmp_path / "t.json") if event["name"] == "process_name"]
    assert names == [
        "planned: stage 0",
        "planned: stage 1",
        "worker logs: GPU0(machine:0)",
        "worker logs: GPU1(machine:0)",
        "steps",
    ]
    # 4 micro-batches of a forward and a backward of twice its time, and one of each to fill and drain.
    last = max(block["ts"] + block["dur"] for block in blocks(tmp_path / "t.json") if block["pid"] <= 2)
    assert last == pytest.approx(1000 * 2.5 * 3 * 5)
    assert "planned: stage 0" in capsys.readouterr().out


@pytest.mark.parametrize("other", [{"micro_batches": 6}, {"micro_batches": 2}])
def test_a_plan_of_another_job_is_refused_beside_a_measurement(log_dir, tmp_path, other):
    plan = a_result(tmp_path / "r.json", unit_ms=2.0, **other)
    words = ["--solution", str(plan), "--log_dir", str(log_dir), "--trace", str(tmp_path / "t.json")]
    with pytest.raises(InputError, match=r"another job than the plan: 2 devices with .* 2 stages with [26]"):
        timeline_tool.run(words)
    assert not (tmp_path / "t.json").exists()


def test_a_unit_that_the_result_tells_needs_no_flag_and_gives_way_to_one(log_dir, tmp_path):
    plan = a_result(tmp_path / "r.json", unit_ms=2.0)
    words = ["--solution", str(plan), "--log_dir", str(log_dir), "--trace", str(tmp_path / "t.json")]
    ends = []
    for more in ([], ["--unit_ms", "4"]):
        timeline_tool.run([*words, *more])
        ends.append(max(one["ts"] + one["dur"] for one in blocks(tmp_path / "t.json") if one["pid"] <= 2))
    assert ends == pytest.approx([2000 * 3 * 5, 4000 * 3 * 5])


def test_a_unit_without_a_plan_and_a_step_that_is_not_there_are_refused(log_dir, tmp_path):
    words = ["--log_dir", str(log_dir), "--trace", str(tmp_path / "t.json")]
    with pytest.raises(InputError, match="--unit_ms"):
        timeline_tool.run([*words, "--unit_ms", "3"])
    with pytest.raises(InputError, match="step 7 of 1"):
        timeline_tool.run([*words, "--step", "7"])
    with pytest.raises(InputError, match="step 7 of 1"):
        timeline_tool.run([*words, "--steps", "0,7"])
    with pytest.raises(InputError, match="must not come after the last"):
        timeline_tool.run([*words, "--steps", "3,1"])


def test_the_terminal_tells_compute_and_idle_of_every_device(log_dir, tmp_path, capsys):
    timeline_tool.run(["--log_dir", str(log_dir), "--trace", str(tmp_path / "t.json")])
    lines = capsys.readouterr().out.splitlines()
    # Four forwards of 8 ms in 39 ms, from the first device's first job to the second one's last.
    assert [line.split()[3:5] for line in lines if line.startswith("GPU")] == [["39.000", "82.1"]] * 2
