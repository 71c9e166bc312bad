"""Dry-runs of launch scripts and TOML files: run where the user runs them, kept apart from what they write over."""

from __future__ import annotations

import json
import os
import shutil
import sys

import pytest

from taylor.dryrun.interface import DryRun
from taylor.dryrun.launch import Starter
from taylor.dryrun.mindspore_backend import MindsporeBackend
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from tests.conftest import ROOT

LAUNCHER = """#!{python}
# Stands in for torchrun and for `python -m torchtitan.train`: takes the real command line, fails where it would.
import os, pathlib, re, sys
words = sys.argv[1:]
for name in ("MS_SIMULATION_LEVEL", "RANK_SIZE", "RANK_ID"):
    if name not in os.environ:
        sys.exit(name + " is not set")
if "--job.config_file" in words:
    text = pathlib.Path(words[words.index("--job.config_file") + 1]).read_text()
    needed = re.search('tokenizer_path *= *"(.*)"', text)[1]
    stages = int(re.search("pipeline_parallel_degree *= *([0-9]+)", text)[1])
else:
    program = next(word for word in words if word.endswith(".py"))
    if not pathlib.Path(program).is_file():
        sys.exit("can't open file " + program)
    value = dict(zip(words, words[1:]))
    needed, stages = value["--data-path"], int(value["--pipeline-model-parallel-size"])
if not pathlib.Path(needed).exists():
    sys.exit("no such file: " + needed)
world, rank = int(os.environ["RANK_SIZE"]), int(os.environ["RANK_ID"])
pathlib.Path(os.environ["JOURNAL"]).open("a").write(os.getcwd() + chr(10))
print("Used peak memory usage (without fragments): %dM" % (1000 * stages + rank // (world // stages)))
"""
SCRIPT = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text()
TOML = """[model]
name = "llama3"
flavor = "8B"
tokenizer_path = "assets/tokenizer.model"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
pipeline_parallel_degree = 4
tensor_parallel_degree = 2
data_parallel_shard_degree = 2
[activation_checkpoint]
mode = "none"
"""


@pytest.fixture
def place(tmp_path):
    """A user's folder with program, data and assets, and stand-ins on the PATH."""
    home, bin_ = tmp_path / "home", tmp_path / "bin"
    for folder in (home / "data", home / "assets", bin_):
        folder.mkdir(parents=True)
    (home / "pretrain_gpt.py").write_text("")
    (home / "data" / "tokens").write_text("")
    (home / "assets" / "tokenizer.model").write_text("")
    for name in ("torchrun", "python-with-torchtitan"):
        (bin_ / name).write_text(LAUNCHER.replace("{python}", sys.executable))
        (bin_ / name).chmod(0o755)
    (tmp_path / "env.json").write_text(
        json.dumps(
            {
                "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
                "JOURNAL": str(tmp_path / "journal"),
                "TAYLOR_DRYRUN_PYTHON": str(bin_ / "python-with-torchtitan"),
            }
        )
    )
    return tmp_path


def starter_of(config, place):
    return Starter.find(launcher_of(config), None, place / "env.json", None)


def measure(place, name, text):
    file = place / "home" / name
    file.write_text(text)
    before = {path: path.read_bytes() for path in (place / "home").rglob("*") if path.is_file()}
    config = read_config(file)
    with MindsporeBackend(starter_of(config, place), place / "runs", retries=0, timeout_s=30.0) as backend:
        result = backend.measure([DryRun(config, config.strategy, config.plan)])[0]
    after = {path: path.read_bytes() for path in (place / "home").rglob("*") if path.is_file()}
    assert after == before, "the user's folder changed"
    return result


WITH_DATA = SCRIPT.replace("    --bf16\n", "    --bf16\n    --data-path data/tokens\n")


@pytest.mark.parametrize(
    "text",
    [
        WITH_DATA,
        WITH_DATA.replace("GPUS_PER_NODE=8", 'cd "$(dirname "$0")"\nGPUS_PER_NODE=8'),
        WITH_DATA.replace(
            "GPUS_PER_NODE=8", 'HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\nGPUS_PER_NODE=8'
        ).replace("pretrain_gpt.py", "${HERE}/pretrain_gpt.py"),
    ],
)
def test_a_script_runs_in_its_own_folder_and_finds_its_program_and_data(place, text):
    assert "--data-path" in text
    result = measure(place, "pretrain.sh", text)
    assert [peak.peak_mib for peak in result.stages] == [4000, 4001, 4002, 4003], result.describe_failure()
    assert set((place / "journal").read_text().split()) == {str(place / "home")}
    for peak in result.stages:
        assert place / "runs" in peak.log.parents and (peak.log.parent / "result.json").is_file()


def test_the_variant_that_is_run_holds_the_strategy_and_plan_asked_for(place):
    measure(place, "pretrain.sh", WITH_DATA)
    config = read_config(place / "home" / "pretrain.sh")
    other = config.strategy.replace(pp=8, dp=1, tp=4)
    with MindsporeBackend(starter_of(config, place), place / "runs", retries=0) as backend:
        result = backend.measure([DryRun(config, other, None, (0, 7))])[0]
    assert [peak.peak_mib for peak in result.stages] == [8000, 8007], result.describe_failure()


def test_a_toml_file_runs_in_its_own_folder_too(place):
    result = measure(place, "llama3.toml", TOML)
    assert [peak.peak_mib for peak in result.stages] == [4000, 4001, 4002, 4003], result.describe_failure()
    assert set((place / "journal").read_text().split()) == {str(place / "home")}


def test_a_missing_program_is_told_with_the_launchers_own_words(place):
    (place / "home" / "pretrain_gpt.py").unlink()
    result = measure(place, "pretrain.sh", WITH_DATA)
    assert "pretrain_gpt.py" in result.describe_failure()


def test_the_same_script_elsewhere_is_another_run(place):
    measure(place, "pretrain.sh", WITH_DATA)
    shutil.copytree(place / "home", place / "elsewhere")
    config = read_config(place / "elsewhere" / "pretrain.sh")
    with MindsporeBackend(starter_of(config, place), place / "runs") as backend:
        result = backend.measure([DryRun(config, config.strategy, config.plan, (0,))])[0]
    assert not result.stages[0].cached and result.stages[0].peak_mib == 4000


@pytest.mark.slow
def test_pipeline_parallel_measures_and_checks_a_script(place, run_tool):
    file = place / "home" / "pretrain.sh"
    file.write_text(WITH_DATA)
    done = run_tool(
        "pipeline_parallel.py",
        "-shell",
        file,
        "--dryrun_backend",
        "mindspore",
        "--env_json",
        place / "env.json",
        "-layer_ratio",
        "1",
        "-write",
        "n",
        "-dryrun",
        "n",
        "-check",
        "y",
        "-memory",
        memory_file(place),
    )
    assert done.returncode == 0, done.stderr
    assert "check: the plan passes on 4 of 4 stages" in done.stderr


def memory_file(place):
    path = place / "memory.json"
    path.write_text(
        json.dumps(
            {
                "device_limit": 80_000,
                "static": {"first": 5120, "middle": 2950, "last": 8210},
                "layer": {"dense": 1500},
                "activation": {"dense": {"none": 402, "full": 61}},
            }
        )
    )
    return path
