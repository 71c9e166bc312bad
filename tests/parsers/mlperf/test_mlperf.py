"""MLPerf's ``config_*.sh``: read as bash sources them, with the defaults of the harness' YAML."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of

COMMON = """\
export USE_DIST_OPTIMIZER=True
export MICRO_BATCH_SIZE=1
export OVERLAP_GRAD_REDUCE=True
export FP8=True
export FP8_PARAM_GATHER=True
export FP8_RECIPE="tensorwise"
"""
LARGE = 'export MODEL_SIZE="405b"\nexport TARGET_LOG_PPL="5.6"\n'
SYSTEM = """\
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
source $(dirname ${BASH_SOURCE[0]})/config_common_405b.sh

export MINIBS=144
export TENSOR_MODEL_PARALLEL=4
export PIPELINE_MODEL_PARALLEL=8
export INTERLEAVED_PIPELINE=8
export ASYM_PP_EMBED=True
export ASYM_PP_LOSS=True
export DGXNNODES=128
export DGXNGPU=4
export SEGMENT=$(( (TENSOR_MODEL_PARALLEL * PIPELINE_MODEL_PARALLEL) / DGXNGPU ))
export DGXSYSTEM=$(basename $(readlink -f ${BASH_SOURCE[0]}) | sed 's/^config_//' | sed 's/\\.sh$//' )
"""
HARNESS = """\
model:
  context_parallel_size: ${oc.decode:${oc.env:CONTEXT_PARALLEL,2}}
  encoder_seq_length: 8192
  fp8_recipe: ${oc.decode:${oc.env:FP8_RECIPE,delayed}}
"""
AMD = """\
export NNODES=1
export GPUS_PER_NODE=8
export SIZE="8b"
export GBS=32
export MBS=2
export TP=1
export PP=1
export CP=1
export FP8_PARAMS=1
export MLPERF_SUBMISSION_PLATFORM="MI355X"
"""


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A configuration of the 405 B model with the files that it takes in."""
    folder = tmp_path / "benchmarks" / "llama31_405b"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "custom.yaml").write_text(HARNESS)
    (folder / "config_common.sh").write_text(COMMON)
    (folder / "config_common_405b.sh").write_text(LARGE)
    path = folder / "config_GB200_128x4x144xtp4pp8cp2_cg.sh"
    path.write_text(SYSTEM)
    return path


def test_a_configuration_is_what_bash_exports_and_the_harness_multiplies(system: Path) -> None:
    config = read_config(system)
    names = ("TENSOR_MODEL_PARALLEL", "PIPELINE_MODEL_PARALLEL", "INTERLEAVED_PIPELINE", "MICRO_BATCH_SIZE", "MINIBS",
             "DGXNNODES", "DGXNGPU")  # fmt: skip
    shown = " ".join(f"${name}" for name in names)
    done = subprocess.run(
        ["bash", "-c", f'source "{system}"; echo {shown}'], capture_output=True, text=True, check=True
    )
    tp, pp, vpp, mbs, minibs, nodes, each = map(int, done.stdout.split())
    strategy = config.strategy
    assert (strategy.tp, strategy.pp, strategy.vpp, strategy.mbs) == (tp, pp, vpp, mbs)
    assert strategy.cp == 2, "the default of custom.yaml"
    assert strategy.dp == nodes * each // (tp * pp * 2) and strategy.micro_batches * mbs == minibs
    assert config.launcher == "mlperf" and config.model is not None and config.model.n_layers == 126
    assert config.rules.seq_length == 8192 and config.rules.narrow is not None
    assert config.rules.narrow.name == "tensorwise"
    assert launcher_of(config).usual_device_of(config).name == "gb200-nvl72"


def test_the_embedding_and_the_loss_take_the_places_of_layers(system: Path) -> None:
    plan = read_config(system).plan
    assert plan is not None
    layers = plan.total_layers()
    assert sum(map(sum, layers)) == 126 and layers[0][0] == 1 and layers[-1][-1] == 1
    assert {count for row in layers for count in row} == {1, 2}


def test_a_configuration_of_the_other_harness_is_read_by_its_own_variables(tmp_path: Path) -> None:
    path = tmp_path / "config_MI355X_1x8x1_8b.sh"
    path.write_text(AMD)
    config = read_config(path)
    assert (config.strategy.dp, config.strategy.mbs, config.strategy.micro_batches) == (8, 2, 2)
    assert config.model is not None and config.model.n_layers == 32
    assert launcher_of(config).usual_device_of(config).name == "mi355x-288g"


@pytest.mark.parametrize(
    ("folder", "text", "reason"),
    [
        ("flux1", SYSTEM, "trains FLUX, a diffusion model"),
        ("llama31_8b", COMMON, "states a part of an MLPerf configuration"),
        ("llama31_8b", SYSTEM.replace("export MINIBS=144\n", ""), "MINIBS: is missing.*--env MINIBS=VALUE"),
        ("llama31_8b", SYSTEM.replace("=128", "=many"), "DGXNNODES: must be a whole number"),
        ("llama31_8b", SYSTEM + 'export MODEL_SIZE="3b"\n', "MODEL_SIZE: is no model that is read"),
    ],
)
def test_a_refusal_names_the_benchmark_or_the_variable(tmp_path: Path, folder: str, text: str, reason: str) -> None:
    path = tmp_path / folder / "config_DGXB200_1x8.sh"
    path.parent.mkdir()
    path.write_text(
        text.replace("source $(dirname ${BASH_SOURCE[0]})/config_common", "#") + "export MICRO_BATCH_SIZE=1\n"
    )
    with pytest.raises(InputError, match=reason):
        read_config(path)
