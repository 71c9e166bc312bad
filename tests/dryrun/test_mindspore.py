"""Real MindSpore, in simulation: a small LLaMA stage through the runner, held against the closed forms.

Runs where an interpreter with MindSpore is available (``make test-mindspore``), else it is skipped.
"""

from __future__ import annotations

import json

import pytest

from taylor.cost_model.job.parameters import layer_parameters
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.dryrun.dataset import ensure_dataset
from taylor.dryrun.launch import Starter
from taylor.dryrun.logs import read_peak
from taylor.dryrun.processes import ProgramRun, run_program
from taylor.parsers.mindformers.launcher import MindFormers
from taylor.register.frameworks import MINDFORMERS
from taylor.register.model import DENSE, ModelSpec
from tests.conftest import ROOT

MIB = 2**20
TOKENS = 512
SHAPES = [(8, 2816), (8, 1408), (4, 2816)]
"""Heads and MLP width, with a hidden size of 1024."""


def model(heads, ffn):
    # The program has no rotary embedding, so nothing is kept beside queries and keys.
    return ModelSpec("small-llama", 4, 1024, heads, heads, 1024 // heads, ffn, 1, learned_positions=TOKENS)


@pytest.fixture(scope="module")
def starter(tmp_path_factory):
    env = tmp_path_factory.mktemp("env") / "env.json"
    env.write_text(json.dumps({"GLOG_v": "1"}))
    found = Starter.find(MindFormers(), ROOT / "tests" / "mindspore_stage.py", env, None)
    if found.mindspore_version() is None:
        pytest.skip("no MindSpore here: pip install -e '.[mindspore]', or name its Python in TAYLOR_DRYRUN_PYTHON")
    return found


def peak_mib(starter, folder, layers, again, heads, ffn):
    shape = {"layers": layers, "again": again, "hidden": 1024, "heads": heads, "ffn": ffn, "tokens": TOKENS}
    file = folder / f"stage_{layers}_{again}.json"
    file.write_text(json.dumps(shape))
    environment = starter.full_environment(starter.settings(Strategy(1, 1, 1), 0))
    place = folder / f"run_{layers}_{again}"
    command = starter.launcher.dryrun_command(file, file, starter.tools)
    outcome = run_program(ProgramRun(command, environment, place, place / "dryrun.log", 300.0))
    assert outcome.failure == "", (place / "dryrun.log").read_text(errors="replace")[-3000:]
    return read_peak(place / "dryrun.log").used_mib


@pytest.mark.parametrize("heads, ffn", SHAPES)
def test_without_recompute_a_layer_adds_what_the_closed_forms_say(starter, tmp_path, heads, ffn):
    # The peak is where the backward begins, with all activations alive and no gradient yet.
    kept = (peak_mib(starter, tmp_path, 4, 0, heads, ffn) - peak_mib(starter, tmp_path, 2, 0, heads, ffn)) / 2
    rules = TrainingRules(framework=MINDFORMERS, seq_length=TOKENS, flash_attention=False, compute_bytes=4)
    form = float(activation_bytes(model(heads, ffn), DENSE, "none", Strategy(1, 1, 1, sp=False), rules))
    # The program's operators are less fused than a training program's: each of its two norms keeps the
    # normalized input before the weight too, SiLU one more tensor of the MLP's width, softmax its input.
    unfused = 4 * (2 * TOKENS * 1024 + TOKENS * ffn + heads * TOKENS**2)
    assert kept == pytest.approx((form + unfused) / MIB, abs=1.0)


def test_with_recompute_a_layer_adds_its_gradients(starter, tmp_path):
    # The peak is where the backward ends, with all gradients (fp32, the program's own) and one layer rebuilt.
    heads, ffn = SHAPES[0]
    rebuilt = (peak_mib(starter, tmp_path, 4, 4, heads, ffn) - peak_mib(starter, tmp_path, 2, 2, heads, ffn)) / 2
    assert rebuilt == pytest.approx(4 * layer_parameters(model(heads, ffn), DENSE) / MIB, abs=1.0)


def test_the_small_data_set_is_written_by_mindspores_own_writer(starter, tmp_path):
    path = ensure_dataset(tmp_path / "small" / "tokens.mindrecord", 128, 1000, starter)
    assert path is not None and path.is_file() and path.stat().st_size > 64 * 129 * 4
    assert ensure_dataset(path, 128, 1000, starter) == path
