"""Software features by plain names, and sizes of a registered model stated otherwise."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.cost_model.job.strategy import GRAPHED_MIXER
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.read import read_config
from taylor.parsers.software import FEATURES, features_of
from taylor.parsers.training_config import TrainingConfig
from taylor.register.overrides import FIELDS, overridden
from taylor.register.pattern import kinds_in_order
from taylor.register.registry import Registry
from taylor.workflows.searching.model_job import ModelJob, model_file, state_model


def stated(folder: Path, model: str, words: str = "", framework: str = "megatron", **sizes: int) -> TrainingConfig:
    """Configuration that a model's job is written in."""
    software = features_of(words.split(",") if words else ())
    job = ModelJob(model_file(model, folder, override=sizes), 16, 4096, 64, framework=framework, software=software)
    return read_config(state_model(job, folder))


def test_named_features_stand_in_the_written_file_and_are_read_back(tmp_path: Path) -> None:
    words = "tp-comm-overlap,fp8=mxfp8,dispatcher=deepep,cuda-graphs,fused-loss"
    config = stated(tmp_path, "qwen3-30b-a3b", words)
    text = config.path.read_text()
    rules, plain = config.rules, stated(tmp_path, "qwen3-30b-a3b").rules
    assert rules.overlap_tensor and rules.dispatch_by_node and GRAPHED_MIXER in rules.graphed
    assert rules.narrow is not None and rules.narrow.name == "mxfp8"
    assert not (plain.overlap_tensor or plain.dispatch_by_node or plain.graphed or plain.narrow)
    assert text.count("--moe-token-dispatcher-type") == 1 and "--moe-token-dispatcher-type flex" in text


def test_a_dense_model_s_graphs_hold_its_mlp_and_no_router(tmp_path: Path) -> None:
    assert "--cuda-graph-scope attn mlp\n" in stated(tmp_path, "llama3-8b", "cuda-graphs").path.read_text()


def test_an_overlap_of_experts_exchanges_is_not_written_with_full_recompute(tmp_path: Path) -> None:
    config = stated(tmp_path, "qwen3-30b-a3b", "ep-overlap")
    assert config.rules.overlap_experts and "--recompute-granularity full" not in config.path.read_text()


def test_torchtitan_s_file_compiles_and_computes_in_8_bits_where_asked(tmp_path: Path) -> None:
    rules = stated(tmp_path, "llama3-8b", "compile,fp8=rowwise", "torchtitan").rules
    assert rules.compiled and rules.narrow is not None and rules.narrow.name == "rowwise"


def test_what_is_assumed_of_the_software_is_logged_without_what_was_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        stated(tmp_path, "llama3-8b", "fp8=delayed")
    said = next(line for line in caplog.messages if line.startswith("software assumed"))
    assert "no CUDA graphs" in said and "16 bits" not in said and "dispatcher" not in said


@pytest.mark.parametrize(
    "words, cure",
    [
        ("tp-com-overlap", "did you mean tp-comm-overlap or"),
        ("fp8=mxfp9", "did you mean mxfp8?"),
        ("fp8", "fp8=delayed"),
        ("fused-loss=te", "name fused-loss alone"),
        ("compile,compile", "name it once"),
    ],
)
def test_a_feature_that_is_none_is_refused_with_near_ones(words: str, cure: str) -> None:
    with pytest.raises(InputError, match="--with") as refused:
        features_of(words.split(","))
    assert cure in str(refused.value)


@pytest.mark.parametrize(
    "model, words, framework",
    [
        ("llama3-8b", "dispatcher=deepep", "megatron"),
        ("llama3-8b", "compile", "megatron"),
        ("llama3-8b", "fp8=rowwise", "megatron"),
        ("llama3-8b", "tp-comm-overlap", "mindformers"),
        ("llama3-8b", "tp-comm-overlap", "json"),
    ],
)
def test_a_feature_that_the_file_cannot_state_is_refused(
    tmp_path: Path, model: str, words: str, framework: str
) -> None:
    with pytest.raises(InputError, match="--with"):
        stated(tmp_path, model, words, framework)


def test_every_feature_of_a_framework_has_a_name_and_values_that_can_be_given() -> None:
    for one in NEW_FILES.values():
        for name, by_value in one.features.items():
            for value in by_value:
                assert features_of([f"{name}={value}" if value else name]) == {name: value}
    assert {name for one in NEW_FILES.values() for name in one.features} == set(FEATURES)


def test_a_model_with_fewer_layers_and_another_vocabulary_has_the_parameters_counted_by_hand(tmp_path: Path) -> None:
    model = stated(tmp_path, "llama3-70b", num_layers=14, vocab_size=32000).model
    attention = 8192 * (8192 + 2 * 1024) + 8192 * 8192
    layer = attention + 3 * 8192 * 28672 + 2 * 8192
    assert total_parameters(model) == 14 * layer + 2 * 32000 * 8192 + 8192


def test_experts_of_every_kind_of_layer_change_together() -> None:
    model = overridden(Registry.load().model("nemotron-3-nano-30b-a3b"), {"num_experts": 16, "num_experts_per_tok": 2})
    experts = [kind.moe for kind in model.kinds if kind.moe is not None]
    assert experts and all(one.n_experts == 16 and one.top_k == 2 for one in experts)


def test_a_model_whose_layers_differ_keeps_its_first_ones() -> None:
    whole = Registry.load().model("nemotron-3-nano-30b-a3b")
    cut = overridden(whole, {"num_layers": 5})
    assert cut.n_layers == 5 and sum(cut.body_counts.values()) == 5
    assert kinds_in_order(cut.pattern) == kinds_in_order(whole.pattern)[:5]


@pytest.mark.parametrize(
    "name, sizes, says",
    [
        ("llama3-70b", {"num_layer": 14}, "did you mean num_layers"),
        ("llama3-70b", {"num_layers": 0}, "state 1 to 10000"),
        ("llama3-70b", {"num_layers": 10**9}, "state 1 to 10000"),
        ("llama3-70b", {"num_layers": True}, "whole number"),
        ("llama3-70b", {"num_layers": "14"}, "whole number"),
        ("llama3-70b", {"num_experts": 4}, "has none"),
        ("qwen3-30b-a3b", {"num_experts": 4}, "is more than the 4 experts"),
        ("gpt-oss-20b", {"num_layers": 99}, "more than the 24 layers"),
        ("gpt-oss-20b", {"hidden_size": 99}, "whose layers differ"),
    ],
)
def test_a_size_that_a_model_does_not_have_is_refused(name: str, sizes: dict[str, int], says: str) -> None:
    with pytest.raises(InputError) as refused:
        overridden(Registry.load().model(name), sizes)
    assert says in str(refused.value) and "--override" in str(refused.value)


def test_every_size_can_be_stated_as_it_is() -> None:
    model = Registry.load().model("qwen3-30b-a3b")
    assert model.moe is not None
    now = (48, 2048, 32, 4, 128, model.ffn_hidden, model.vocab, 0, 128, 8, 768, 0)
    same = overridden(model, dict(zip(FIELDS, now, strict=True)))
    assert same == model


def test_sizes_of_a_model_s_own_file_are_changed_there(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    with pytest.raises(InputError, match="is for registered models"):
        model_file(str(path), tmp_path, override={"num_layers": 2})
