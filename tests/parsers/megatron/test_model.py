"""The model that Megatron's and MindSpeed's flags describe."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.parameters import total_parameters
from taylor.parsers.read import read_config
from tests.conftest import SHARED
from tests.parsers.megatron.test_scripts import BASE, needs_samples, script_of


@pytest.mark.parametrize(
    ("flag", "gated"),
    [
        ("--swiglu", True),
        ("--quick-geglu", True),
        ("--geglu", True),
        ("--gelu-tanh", True),
        ("--squared-relu", False),
        ("--openai-gelu", False),
        ("", False),
    ],
)
def test_the_activation_says_whether_the_mlp_is_gated(flag: str, gated: bool, tmp_path: Path) -> None:
    flags = BASE + f"{flag}\n"
    assert read_config(script_of(tmp_path, flags)).model.gated_mlp is gated


@needs_samples
@pytest.mark.parametrize(("file", "billions"), [("msp_gemma2_27b.sh", 27.2), ("meg_gpt-oss-120b.sh", 116.8)])
def test_a_gated_model_has_its_published_parameters(file: str, billions: float) -> None:
    model = read_config(SHARED / "data" / "configs_more" / file).model
    assert total_parameters(model) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--hybrid-layer-pattern M-M*-M-", "Mamba layers"),
        ("--is-hybrid-model", "Mamba layers"),
        ("--full-attention-interval 4", "linear attention"),
        ("--experimental-attention-variant gated_delta_net", "linear attention"),
        ("--spec mindspeed_llm.tasks.models.spec.longcat_spec layer_spec", "two attentions a layer"),
    ],
)
def test_layers_that_are_not_modelled_are_refused_by_their_name(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_config(script_of(tmp_path, BASE + more + "\n"))


@needs_samples
@pytest.mark.parametrize("file", ["meg_mamba.sh", "meg_Nemotron-H-56B-Base-8K.sh", "msp_qwen3_next_80b_A3.sh"])
def test_a_real_script_of_other_layers_is_refused_by_their_name(file: str) -> None:
    with pytest.raises(InputError, match="asks for what is not modelled"):
        read_config(SHARED / "data" / "configs_more" / file)


@pytest.mark.parametrize("value", ["0", "1"])
def test_full_attention_everywhere_is_read(value: str, tmp_path: Path) -> None:
    assert read_config(script_of(tmp_path, f"{BASE}--full-attention-interval {value}\n")).model.n_layers == 24
