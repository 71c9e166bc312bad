"""A cluster and a model measured here over gloo, killed and gone on with; the tables are those that Galvatron reads."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError, OutsideProgramError
from taylor.command_lines import main as command
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.galvatron.hardware import read_hardware
from taylor.parsers.galvatron.memory import read_memory
from taylor.profiling.measuring.hardware_tables import hardware_tables, measured_device
from taylor.profiling.measuring.model_plan import MEMORY, STATES, ModelPlan, ModelRun, model_runs
from taylor.profiling.measuring.plan import ALL_REDUCE, TRANSFER, HardwareJob, HardwarePlan, group_of, hardware_jobs
from taylor.profiling.measuring.samples import MOST_SPREAD, Kept, TimedSample, read_samples, settle
from taylor.register.registry import Registry
from tests.conftest import ROOT

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
TINY = ["--hidden", "64", "--heads", "4", "--ffn", "128", "--vocab", "256", "--model_name", "tiny"]
# Every rank loads torch, and a memory profile starts 1 + 2 + … of them: 4 by `make profilers`, which takes minutes.
RANKS = MAX_TP = int(os.environ.get("TAYLOR_PROFILE_RANKS", "2"))
# One sample has no spread, so that what was measured stands.
FAST = ["--num_gpus_per_node", str(RANKS), "--end_mb", "2", "--bandwidth_mb", "1", "--width", "64", "--repeats", "1"]


@given(st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_the_groups_of_a_measurement_share_out_the_ranks(world_log: int, ranks_log: int, consecutive: bool) -> None:
    world, ranks = 1 << max(world_log, ranks_log), 1 << ranks_log
    groups = {group_of(rank, HardwareJob(ALL_REDUCE, ranks, consecutive), world) for rank in range(world)}
    assert sorted(rank for group in groups for rank in group) == list(range(world))
    assert all(len(group) == ranks for group in groups)


def test_the_groups_are_galvatron_s() -> None:
    keys = [job.key for job in hardware_jobs(HardwarePlan(2, 4, kinds=(ALL_REDUCE, TRANSFER), bandwidth_mib=64))]
    assert keys == [
        "allreduce 8 consec 1 64 MiB",
        "allreduce 4 consec 1 64 MiB",
        "allreduce 4 consec 0 64 MiB",
        "allreduce 2 consec 1 64 MiB",
        "allreduce 2 consec 0 64 MiB",
        "p2p 2 64 MiB",
        "p2p 4 64 MiB",
        "p2p 8 64 MiB",
    ]


def test_samples_that_scatter_are_taken_again_and_then_marked() -> None:
    calm, wild = iter([1.0] * 100), iter([1.0, 3.0] * 100)
    assert settle(lambda: next(calm), 5, 3).disturbed == ""
    sample = settle(lambda: next(wild), 5, 3)
    assert sample.attempts == 3 and sample.spread > MOST_SPREAD and "spread" in sample.disturbed


def test_a_disturbance_that_passes_leaves_no_mark() -> None:
    values = iter([9.0, 1.0, 5.0, 1.0, 9.0, *[2.0] * 20])
    sample = settle(lambda: next(values), 5, 3, warm=0)
    assert (sample.value, sample.attempts, sample.disturbed) == (2.0, 2, "")


def test_a_device_that_others_use_is_marked() -> None:
    assert "40 % of the memory" in settle(lambda: 1.0, 3, 1, memory_free=0.6).disturbed


def test_measurements_of_another_machine_are_not_taken_over(tmp_path: Path) -> None:
    Kept(tmp_path / "m.json", {"device": "a"}).keep("x", TimedSample(1.0, 0.0, 1))
    assert Kept(tmp_path / "m.json", {"device": "a"}).settled("x")
    assert not Kept(tmp_path / "m.json", {"device": "b"}).settled("x")


def test_bandwidths_and_times_are_in_galvatron_s_units_and_read_back(tmp_path: Path) -> None:
    plan = HardwarePlan(1, 2, end_mib=128, bandwidth_mib=100)
    measured = {job.key: TimedSample(0.01, 0.0, 1) for job in hardware_jobs(plan)}
    tables = hardware_tables(plan, measured)
    for name, table in tables.items():
        (tmp_path / name).write_text(json.dumps({**table, **({"overlap_coe": 1.1} if "overlap" in name else {})}))
    # 100 MiB in 10 ms are 10.5 GB/s, of which an all-reduce of two puts one half twice on the bus.
    assert tables["p2p_bandwidth_1nodes_2gpus_per_node.json"]["pp_size_2"] == pytest.approx(10.48576)
    assert tables["allreduce_bandwidth_1nodes_2gpus_per_node.json"]["allreduce_size_2_consec_1"] == pytest.approx(
        10.48576
    )
    assert tables["sp_time_1nodes_2gpus_per_node.json"]["all2all_size_2_64MB_time"] == pytest.approx(10.0)
    profile = read_hardware(sorted(tmp_path.glob("*.json")))
    assert profile.overlap_slowdown == 1.1
    assert set(profile.all_reduce) == {2}


def test_a_measured_device_is_a_valid_registration(tmp_path: Path) -> None:
    from taylor.register.device_file import device_text

    plan = HardwarePlan(2, 4)
    measured = {job.key: TimedSample(1e13 if job.kind == "products" else 0.01, 0.0, 1) for job in hardware_jobs(plan)}
    for name in ("h100-80g", "gb300-nvl72", "ascend-910b"):
        card = measured_device(Registry.load().device(name), plan, measured, "measured")
        path = tmp_path / f"{card.name}.yaml"
        path.write_text(device_text(card), encoding="utf-8")
        assert Registry.load().device(str(path)).devices_per_node == 4


@pytest.fixture
def killed_then_resumed(tmp_path: Path) -> tuple[dict[str, TimedSample], dict[str, TimedSample], str, Path]:
    """Measurements at the kill and at the end, what the second run said, and the folder."""
    kept = tmp_path / "measuring" / "hardware" / "measured.json"
    words = [sys.executable, "-m", "taylor", "profile", "hardware", *FAST, "--run", "--output_path", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(read_samples(kept)) < 2 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    first.wait()
    # The ranks end with the command; what they were writing is whole.
    time.sleep(3)
    before = read_samples(kept)
    log = tmp_path / "measuring" / "hardware" / "logs" / "rank0.log"
    subprocess.run([*words, "--device", "h100-80g"], cwd=ROOT, env=environment, check=True, capture_output=True)
    return before, read_samples(kept), log.read_text(encoding="utf-8"), tmp_path


@pytest.mark.slow
@needs_torch
def test_a_hardware_profile_that_was_killed_goes_on_where_it_was(killed_then_resumed) -> None:
    before, after, said, folder = killed_then_resumed
    assert before
    for key, sample in before.items():
        assert after[key] == sample
        assert f"{key}:" not in said
    plan = HardwarePlan(1, RANKS, end_mib=2, bandwidth_mib=1)
    assert set(after) == {job.key for job in hardware_jobs(plan)} - {"host_link"}
    profile = read_hardware([path for path in folder.glob("*.json")])
    assert profile.overlap_slowdown is not None and profile.overlap_slowdown >= 1
    assert set(profile.all_reduce) == {ranks for ranks in (2, 4) if ranks <= RANKS}
    assert Registry.load().device(str(folder / "h100-80g-measured.yaml")).devices_per_node == RANKS


@pytest.mark.slow
@needs_torch
def test_a_computation_profile_of_built_in_layers_reads_as_galvatron_s(tmp_path: Path) -> None:
    command.run(
        ["profile", "model", *TINY, "--profile_mode", "batch", "--profile_max_batch_size", "2",
         "--profile_fixed_seq_length_list", "128", "--layernum_max", "5",
         "--output_path", str(tmp_path)]
    )  # fmt: skip
    profile = read_computation(tmp_path / "computation_profiling_bf16_tiny_all.json")
    assert len(profile.runs_ms) == 4
    assert all(time > 0 for time in profile.runs_ms.values())


@pytest.mark.slow
@needs_torch
def test_a_memory_profile_tells_the_states_of_a_layer(tmp_path: Path) -> None:
    words = ["profile", "model", *TINY, "--profile_type", "memory", "--max_tp_deg", str(MAX_TP),
             "--profile_fixed_seq_length_list", "32", "--output_path", str(tmp_path)]  # fmt: skip
    command.run(words)
    file = tmp_path / "memory_profiling_bf16_tiny_all.json"
    table = json.loads(file.read_text())
    degrees = [tp for tp in (1, 2, 4) if tp <= MAX_TP]
    assert set(table) == {f"1_{tp}_{MAX_TP // tp}{mark}" for tp in degrees for mark in ("", "_c")}
    parameters = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64

    def a_layer(what: str, tp: int = 1, mark: str = "") -> float:
        runs, dp = table[f"1_{tp}_{MAX_TP // tp}{mark}"], MAX_TP // tp
        return runs[f"layernum[2]_bsz{dp}_seq32_rank0_{what}"] - runs[f"layernum[1]_bsz{dp}_seq32_rank0_{what}"]

    # Weight, gradient and two moments in fp32; norms are whole on every rank.
    for tp in degrees:
        assert a_layer("ms", tp) == pytest.approx(16 * ((parameters - 128) / tp + 128) / 2**20, rel=1e-3)
    kept = [a_layer("act", mark=mark) for mark in ("", "_c")]
    # Of a recomputed layer its input stays, in fp32: a residual stream under autocast.
    assert kept[1] == pytest.approx(32 * 64 * 4 / 2**20, rel=1e-3)
    assert kept[0] > 5 * kept[1]
    assert read_memory([file])


@pytest.mark.slow
@needs_torch
def test_a_model_profile_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    kept = tmp_path / "measuring" / "memory" / "measured.json"
    words = [sys.executable, "-m", "taylor", "profile", "model", *TINY, "--profile_type", "memory",
             "--profile_mode", "sequence", "--profile_fixed_seq_length_list", "16,32",
             "--output_path", str(tmp_path)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not read_samples(kept) and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(1)
    before = read_samples(kept)
    assert before and len(before) % 3 == 0
    subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    after = read_samples(kept)
    assert before.items() <= after.items()
    assert len(after) == 3 * 4 * 2
    again = json.loads((tmp_path / "measuring" / "memory" / "run" / "run.json").read_text())["runs"]
    assert not [run for run in again if f"{key_of(run)} {STATES}" in before]
    assert read_memory([tmp_path / "memory_profiling_bf16_tiny_all.json"])


def key_of(run: dict) -> str:
    return ModelRun(**{**run, "layers": tuple(run["layers"])}).key


SCRIPT = """
import sys
layers, batch, length = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if length > 1024:
    print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    sys.exit(1)
for step in range(8):
    took = (99 if step < 2 else 10) + 5 * layers * batch
    print(f" iteration {step} | elapsed time per iteration (ms): {took:.1f} |")
print(f"[Rank 0] memory (MB) | allocated: {100 + 40 * layers} | max allocated: {130 + 60 * layers} |")
"""


@pytest.fixture
def training(tmp_path: Path) -> list[str]:
    """A user's training command."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return [sys.executable, str(tmp_path / "train.py"), "{layers}", "{batch}", "{length}"]


def test_a_user_s_own_command_tells_what_a_layer_takes(tmp_path: Path, training: list[str]) -> None:
    words = ["profile", "model", "--output_path", str(tmp_path), "--profile_fixed_seq_length_list", "512"]
    command.run([*words, "--profile_mode", "batch", "--profile_max_batch_size", "3", "--", *training])
    table = json.loads((tmp_path / "computation_profiling_bf16_model_all.json").read_text())
    assert table["layertype_0_bsz3_seq512"] == pytest.approx(5.0)
    assert table["layertype_other_bsz2_seq512"] == pytest.approx(5.0)
    command.run([*words, "--profile_type", "memory", "--", *training])
    memory = json.loads((tmp_path / "memory_profiling_bf16_model_all.json").read_text())["1_1_1"]
    assert memory["layernum[2]_bsz1_seq512_rank0_ms"] == 180
    assert memory["layernum[2]_bsz1_seq512_rank0_act"] == 70


def test_out_of_memory_halves_the_sequence_and_says_which_mode_then_holds(
    tmp_path: Path, training: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["profile", "model", "--output_path", str(tmp_path), "--profile_fixed_seq_length_list", "4096"]
    command.run([*words, "--", *training])
    table = json.loads((tmp_path / "computation_profiling_bf16_model_all.json").read_text())
    assert table["layertype_0_bsz1_seq1024"] == pytest.approx(5.0)
    said = " ".join(capsys.readouterr().err.split())
    assert "measured with 1024" in said and "--time_mode sequence" in said


@pytest.mark.parametrize(
    ("script", "problem", "message"),
    [
        ("print('nothing')", InputError, "no line is like"),
        ("import sys; print('boom'); sys.exit(3)", OutsideProgramError, "exit code 3"),
    ],
)
def test_a_command_that_tells_nothing_or_fails_is_named(
    tmp_path: Path, script: str, problem: type[Exception], message: str
) -> None:
    with pytest.raises(problem, match=message):
        command.run(
            ["profile", "model", "--output_path", str(tmp_path), "--", sys.executable, "-c", f"{script}  # {{layers}}"]
        )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hardwar"], "hardware"),
        (["hardware", "--only", "allreduced"], "allreduce"),
        (["model", "--layernum_max", "1"], "--layernum_max"),
        (["model", "--profile_fixed_seq_length_list", "a"], "lengths with commas"),
        (["model", "--heads", "3"], "--max_tp_deg|does not divide"),
        (["model", "--time_pattern", "(", "--", "x", "{layers}"], "no regular expression"),
        (["model", "--", "x"], "says nothing of layers"),
        (["hardware", "--num_nodes", "2", "--run", "--output_path", "{tmp}"], "several nodes"),
    ],
)
def test_a_wrong_flag_is_answered(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        command.run(["profile", *(word.replace("{tmp}", str(tmp_path)) for word in words)])


def test_several_kinds_of_layers_are_told_apart_by_one_run_each() -> None:
    plan = ModelPlan(layer_types=2)
    assert [run.layers for run in model_runs(plan)] == [(1, 1), (2, 1), (1, 2)]
    assert len(list(model_runs(ModelPlan(kind=MEMORY, max_tp=4)))) == 12


def test_without_run_the_script_for_every_node_is_written(tmp_path: Path) -> None:
    command.run(["profile", "hardware", "--num_nodes", "2", "--output_path", str(tmp_path)])
    script = tmp_path / "profile_hardware.sh"
    assert "--nnodes 2" in script.read_text()
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
