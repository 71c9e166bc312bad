"""Variables and defaults of MLPerf as its harnesses state them, where a clone lies (`benchmarks/reliability`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, source
from taylor.parsers.mlperf import tuning, variables

REVISION = "441d65f4"
TABLE = Path(variables.__file__).with_name("variables.yaml")
TUNING = "NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo"
PRETRAINING = "NVIDIA/benchmarks/llama31_405b/implementations/hsg_ngpu2560_ngc25.09_nemo"
AMD = "AMD/benchmarks/llama2_70b_lora/implementations/MI355X_EPYC_9575F_pytorch_llama2_70b/src"


def text(path: str) -> str:
    try:
        return source("training_results_v5.1", REVISION, path)
    except NotHere as here:
        pytest.skip(str(here))


def defaults(path: str) -> dict[str, str]:
    """Default of every variable in a YAML of OmegaConf's, as PyYAML reads its values."""
    found: dict[str, str] = {}

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for each in value.values():
                walk(each)
        elif isinstance(value, str):
            for part in value.split("oc.env:")[1:]:
                name, comma, rest = part.partition(",")
                if comma and not rest.startswith("$"):
                    found.setdefault(name, rest.split("}")[0].strip("'\""))

    walk(yaml.safe_load(text(path)))
    return found


@pytest.mark.parametrize(
    ("ours", "path", "fixed"),
    [
        (variables.DEFAULTS, f"{PRETRAINING}/conf/custom.yaml", set()),
        (tuning.DEFAULTS, f"{TUNING}/conf/{tuning.YAML}", set()),
        # NeMo 1's YAML has no variable for these.
        (
            tuning.AMD_DEFAULTS,
            f"{AMD}/conf/{tuning.YAML}",
            {"CP_COMM_TYPE", "FP4", "FP4_RECIPE", "FP8_RECIPE", "CUDA_GRAPH_SCOPE", "CPU_OFFLOADING"}
            | {"CPU_OFFLOADING_NUM_LAYERS", "USE_DISTRIBUTED_OPTIMIZER"},
        ),
    ],
    ids=["pretraining", "tuning", "AMD's tuning"],
)
def test_defaults_are_those_of_the_harness_own_yaml(ours: dict[str, str], path: str, fixed: set[str]) -> None:
    own = defaults(path)
    assert {name: value for name, value in ours.items() if name not in fixed} == {
        name: own.get(name) for name in ours if name not in fixed
    }
    assert not fixed & set(own)


def test_every_variable_stands_in_the_line_that_is_cited() -> None:
    count = 0
    for group in yaml.safe_load(TABLE.read_text())["groups"]:
        for name, row in group["rows"].items():
            found = re.fullmatch(rf"training_results_v5\.1 {REVISION} (\w+) (\w+) (\S+):(\d+)", row["source"])
            assert found is not None, name
            line = text(f"{found[1]}/benchmarks/{found[2]}/implementations/{found[3]}").splitlines()[int(found[4]) - 1]
            assert re.search(rf"\b{name}\b", line), (name, row["source"])
            count += 1
    assert count > 150


def test_adapters_precision_and_model_are_those_that_the_training_states() -> None:
    calls = {
        ast.unparse(call.func): {each.arg: ast.unparse(each.value) for each in call.keywords}
        for call in ast.walk(ast.parse(text(f"{TUNING}/train.py")))
        if isinstance(call, ast.Call)
    }
    adapters = calls["LoRA"]
    values = variables.Variables(Path("config_H200.sh"), {}, tuning.DEFAULTS)
    ours = tuning.tuning_adapters(values)
    assert (str(ours.rank), ours.dropout) == (adapters["dim"], float(adapters["dropout"]) > 0)
    assert adapters["target_modules"] == str(["linear_proj", "linear_qkv"]) == str(tuning._TARGETS)
    assert calls["nl.MegatronMixedPrecision"]["grad_reduce_in_fp32"] == "False"
    assert "llm.Llama2Config70B" in calls and tuning.MODEL == "llama2-70b"


def test_amds_states_are_sharded_on_several_nodes_alone() -> None:
    own = yaml.safe_load(text(f"{AMD}/conf/{tuning.YAML}"))
    name = own["model"]["optim"]["name"]
    assert (
        re.sub(r"\s", "", name) == "${if:${gt:${oc.select:trainer.num_nodes,1},1},mcore_distributed_optim,fused_adam}"
    )
    assert own["model"]["disable_parameter_transpose_cache"] is True
