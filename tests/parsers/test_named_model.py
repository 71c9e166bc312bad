"""Names that models have on the Hugging Face hub, and the registered model of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.named_model import named_model

SCRIPT = Path("train.sh")


@pytest.mark.parametrize(
    ("name", "registered"),
    [
        ("zai-org/GLM-4.6", "glm-4.5"),
        ("zai-org/GLM-4.7", "glm-4.5"),
        ("zai-org/GLM-4.6V", "glm-4.5v"),
        ("Qwen/Qwen3.6-27B", "qwen3.5-27b"),
        ("Qwen/Qwen3-Coder-Next", "qwen3-next-80b-a3b"),
        ("moonshotai/Kimi-K2.6", "kimi-k2"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3-671b"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", "qwen3-8b"),
        ("Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b"),
        ("lmsys/vicuna-7b-v1.5", "llama2-7b"),
        ("PrimeIntellect/INTELLECT-3", "glm-4.5-air"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "qwen3-8b"),
        ("allenai/Olmo-3-32B-Think", "olmo-3-32b"),
        ("allenai/OLMo-2-1124-13B-SFT", "olmo-2-13b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("HuggingFaceH4/zephyr-7b-beta", "mistral-7b"),
        ("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", "deepseek-v2-lite"),
    ],
)
def test_a_name_of_a_registered_shape_is_taken_for_it_with_a_note(name: str, registered: str) -> None:
    model, notes = named_model(name, SCRIPT, "--model")
    assert model.name == registered
    assert notes == (f"--model {name} is taken for the registered model {registered}",)


@pytest.mark.parametrize(
    ("name", "registered"),
    [
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-30b-a3b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
    ],
)
def test_a_model_for_code_is_its_own_where_it_is_registered(name: str, registered: str) -> None:
    assert named_model(name, SCRIPT, "--model")[0].name == registered


@pytest.mark.parametrize("name", ["Qwen/Qwen3.7-27B", "deepseek-ai/DeepSeek-V4", "upstage/SOLAR-10.7B-v9"])
def test_a_name_of_no_registered_shape_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is no registered model, and no folder with a config.json"):
        named_model(name, SCRIPT, "--model")
