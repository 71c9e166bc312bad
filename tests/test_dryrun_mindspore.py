"""Real MindSpore, in simulation: a small LLaMA stage through the runner, held against the closed forms.

Runs where an interpreter with MindSpore is at hand (``make test-mindspore``), else it is skipped.
"""

from __future__ import annotations

import json

import pytest

from cost_model.activations import activation_bytes
from cost_model.parameters import layer_parameters
from cost_model.strategy import Strategy, TrainingRules
from dryrun.dataset import ensure_dataset
from dryrun.launch import Launcher
from dryrun.logs import read_peak
from dryrun.processes import Job, run_job
from register.model import DENSE, ModelSpec
from tests.conftest import ROOT

MIB = 2**20
MODEL = ModelSpec("small-llama", 4, 1024, 8, 8, 128, 2816, 1)
TOKENS = 512


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    env = tmp_path_factory.mktemp("env") / "env.json"
    env.write_text(json.dumps({"GLOG_v": "1"}))
    found = Launcher.find(ROOT / "tests" / "mindspore_stage.py", env, None)
    if found.mindspore_version() is None:
        pytest.skip("no MindSpore here: pip install -e '.[mindspore]', or name its Python in TAYLOR_DRYRUN_PYTHON")
    return found


def peak_mib(launcher, folder, layers, again):
    shape = {"layers": layers, "again": again, "hidden": 1024, "heads": 8, "ffn": 2816, "tokens": TOKENS}
    file = folder / f"stage_{layers}_{again}.json"
    file.write_text(json.dumps(shape))
    environment = launcher.full_environment(launcher.settings(Strategy(1, 1, 1), 0))
    place = folder / f"run_{layers}_{again}"
    outcome = run_job(Job(launcher.command(file), environment, place, place / "dryrun.log", 300.0))
    assert outcome.failure == "", (place / "dryrun.log").read_text(errors="replace")[-3000:]
    return read_peak(place / "dryrun.log").used_mib


def test_a_layer_adds_what_the_closed_forms_say_with_and_without_recompute(launcher, tmp_path):
    kept = (peak_mib(launcher, tmp_path, 4, 0) - peak_mib(launcher, tmp_path, 2, 0)) / 2
    rebuilt = (peak_mib(launcher, tmp_path, 4, 4) - peak_mib(launcher, tmp_path, 2, 2)) / 2
    # Without recompute the peak is where the backward begins, with all activations alive and no gradient yet;
    # with it, where the backward ends, with all gradients (fp32, the program's own) and one layer rebuilt.
    assert rebuilt == pytest.approx(4 * layer_parameters(MODEL, DENSE) / MIB, abs=1.0)
    rules = TrainingRules(framework="mindformers", seq_length=TOKENS, flash_attention=False)
    in_bf16 = float(activation_bytes(MODEL, DENSE, "none", Strategy(1, 1, 1, sp=False), rules)) / MIB
    # The closed forms count 2-byte activations, the program computes in fp32; its operators are unfused.
    assert kept == pytest.approx(2 * in_bf16, rel=0.25)


def test_the_small_data_set_is_written_by_mindspores_own_writer(launcher, tmp_path):
    path = ensure_dataset(tmp_path / "small" / "tokens.mindrecord", 128, 1000, launcher)
    assert path is not None and path.is_file() and path.stat().st_size > 64 * 129 * 4
    assert ensure_dataset(path, 128, 1000, launcher) == path
