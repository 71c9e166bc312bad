"""The register: built-in models and devices, a user's own, and what a typo in them says."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import active_parameters, layer_parameters, total_parameters
from taylor.parsers.read import read_config
from taylor.register import registry
from taylor.register.model import MOE, MTP
from taylor.register.pattern import kinds_in_order
from taylor.register.registry import Registry
from tests.conftest import SHARED

ROUNDED = {"deepseek-v4-pro": 0.02, "kimi-linear-48b-a3b": 0.025, "nemotron-3.5-lightning-30b-a3b": 0.055}
"""Share by which the published size, 1.6 T, 48 B and 30 B, is off the count of the published configuration."""
UNPUBLISHED = ("galvatron-100b", "galvatron-30b", "gpt2-13b", "gpt3-15b", "mimo-7b", "minimax-m3")
"""Models whose authors publish no parameter count, or a round name alone."""
COUNTED = SHARED / "data" / "model_configs" / "models.csv"
REGISTRY = Registry.load()

A_MODEL = """\
n_layers: 4
hidden: 64
n_heads: 8
n_kv_heads: 2
head_dim: 8
ffn_hidden: 128
vocab: 1000
"""

A_DEVICE = """\
memory_mib: 1000
usable_memory_mib: 900
peak_bf16_tflops: 10
memory_gb_s: 100
intra_node_gb_s: 10
inter_node_gb_s: 1
devices_per_node: 4
"""

TIERS = """\
memory_mib: 1000
usable_memory_mib: 900
peak_tflops: {bf16: 10, fp8: 20}
memory_gb_s: 100
links:
  - {name: node, cards: 4, gb_s: 20}
  - {name: domain, cards: 8, gb_s: 10, latency_us: 2}
  - {name: fabric, gb_s: 5}
aliases: [Other Name]
sources: {all: made up, domain: measured}
"""


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama2-13b", 13_015_864_320),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2-7b", 7_615_616_512),
        ("qwen2-72b", 72_706_203_648),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("deepseek-v3-671b", 671_026_419_200),
        ("gpt3-175b", 174_604_259_328),
    ],
)
def test_parameters_are_counted_exactly_as_published(name: str, published: int) -> None:
    assert total_parameters(REGISTRY.model(name)) == published


@pytest.mark.parametrize("name", REGISTRY.model_names())
def test_a_registered_model_has_the_parameters_that_its_authors_publish(name: str) -> None:
    """Cards round: 1.7 B for 1.72 B, 1.04 T where the weights hold 1.026 T, and some names more than that."""
    model = REGISTRY.model(name)
    if model.published_parameters is None:
        assert name in UNPUBLISHED
    else:
        assert total_parameters(model) == pytest.approx(model.published_parameters, rel=ROUNDED.get(name, 0.015))


@pytest.mark.skipif(not COUNTED.is_file(), reason="the counted configurations are not here")
def test_registered_models_have_the_parameters_that_transformers_counts() -> None:
    """Step-3.7 was counted from a file without ``attention_other_setting``, with its class's own vocabulary: 81 words
    less, and 64 query heads with their gates, not 96, in its 33 layers of the window."""
    counts = {row["model"].lower(): row for row in csv.DictReader(COUNTED.open(encoding="utf-8"))}
    checked = 0
    for name in set(REGISTRY.model_names()) & set(counts):
        row, model = counts[name], REGISTRY.model(name)
        if row["counted_parameters"]:
            more = 81 * 2 * model.hidden + 33 * 32 * (2 * 128 + 1) * model.hidden if name == "step-3.7-flash" else 0
            assert total_parameters(model) == int(row["counted_parameters"]) + more, name
            checked += 1
        if model.pattern:
            assert kinds_in_order(model.pattern) == kinds_in_order(row["pattern"])
    assert checked >= 40


def test_deepseek_v3_without_the_routers_bias_has_58_moe_layers_times_256_parameters_less() -> None:
    model = REGISTRY.model("deepseek-v3-671b")
    assert total_parameters(model) - 671_026_404_352 == 58 * 256


def test_a_deepseek_v3_moe_layer_has_the_parameters_counted_by_hand() -> None:
    attention = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * 7168 * 2048 + 256 * 7168 + 256
    assert layer_parameters(REGISTRY.model("deepseek-v3-671b"), MOE) == attention + experts + 2 * 7168


def test_an_mtp_module_is_a_body_layer_with_a_projection_and_three_norms() -> None:
    model = REGISTRY.model("deepseek-v3-671b")
    assert layer_parameters(model, MTP) - layer_parameters(model, MOE) == 2 * 7168 * 7168 + 3 * 7168
    assert total_parameters(model, with_mtp=True) - total_parameters(model) == layer_parameters(model, MTP)


@pytest.mark.parametrize(
    ("name", "billions"), [("deepseek-v3-671b", 37), ("qwen3-30b-a3b", 3.3), ("mixtral-8x7b", 12.9)]
)
def test_active_parameters_are_what_the_papers_round_to(name: str, billions: float) -> None:
    assert active_parameters(REGISTRY.model(name)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_a_layer_kind_that_a_model_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="no layers of kind 'moe'"):
        layer_parameters(REGISTRY.model("llama2-7b"), MOE)


def test_every_built_in_registration_reads_and_names_its_source() -> None:
    for name in REGISTRY.model_names():
        assert REGISTRY.model(name).name == name
        assert "source:" in REGISTRY.models[name].read_text()
        assert all(layer_parameters(REGISTRY.model(name), kind) > 0 for kind in REGISTRY.model(name).kind_counts)
    for name in REGISTRY.device_names():
        assert REGISTRY.device(name).name == name
    assert {"ascend-910b", "ascend-a3", "a100-80g", "h100-80g", "h800-80g", "h200-141g"} <= set(REGISTRY.device_names())


def test_glm_5_2_has_an_indexer_where_megatron_core_computes_the_tokens(tmp_path: Path) -> None:
    """Megatron-LM d98e8a64 megatron/core/transformer/experimental_attention_variant/dsa.py:37-47."""
    model = Registry.load().model("glm-5.2")
    kinds = kinds_in_order(model.pattern)
    own = [at for at, kind in enumerate(kinds, 1) if model.layer(kind).attention.indexer.n_heads]
    assert own == [at for at in range(1, 79) if max(at - 3, 0) % 4 == 0] and len(own) == 21
    text = (Path(registry.__file__).parent / "models" / "glm-5.2.yaml").read_text(encoding="utf-8")
    (folder := tmp_path / "models").mkdir()
    (folder / "mine.yaml").write_text(text.replace("{n_heads: 64, n_kv_heads", "{n_heads: 0, n_kv_heads"))
    with pytest.raises(InputError, match="attention.n_heads: must be an integer > 0"):
        Registry.load(tmp_path).model("glm-5.2")


def test_names_do_not_depend_on_capitals_or_underscores() -> None:
    assert REGISTRY.model("LLaMA2_7B") == REGISTRY.model("llama2-7b")


@pytest.mark.parametrize(
    "published, name",
    [
        ("meta-llama/Llama-3.1-70B", "llama3-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3-671b"),
        ("GPT-3", "gpt3-175b"),
    ],
)
def test_names_under_which_a_model_is_published_are_known(published: str, name: str) -> None:
    assert REGISTRY.model(published).name == REGISTRY.model(published.rpartition("/")[2]).name == name
    config = COUNTED.parent / "models" / f"{published.rpartition('/')[2]}.json"
    if config.is_file():
        its, ours = read_config(config).model, REGISTRY.model(name)
        assert (its.n_layers, its.hidden, its.vocab) == (ours.n_layers, ours.hidden, ours.vocab)
        # The routers' correction bias of DeepSeek-V3 is counted in the registered one alone.
        assert total_parameters(its) == pytest.approx(total_parameters(ours), rel=1e-7)


def test_no_two_models_share_an_alias() -> None:
    every = [alias for name in REGISTRY.model_names() for alias in REGISTRY.model(name).aliases]
    assert len(set(every)) == len(every) and not set(every) & set(REGISTRY.model_names())


def test_an_unknown_name_lists_the_near_ones() -> None:
    with pytest.raises(InputError, match="--device: no device of that name.*'ascend-901b'.*ascend-910b"):
        REGISTRY.device("ascend-901b")


def test_a_user_s_model_goes_before_the_built_in_one_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(A_MODEL)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "other.yaml").write_text("name: llama2-7b\n" + A_MODEL)
    registry = Registry.load(tmp_path)
    assert registry.model("mine").hidden == 64
    assert registry.model("llama2-7b").hidden == 64
    assert registry.model("llama2-13b") == REGISTRY.model("llama2-13b")


def test_a_file_with_device_memory_is_a_device_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "card.yaml").write_text(A_DEVICE)
    assert Registry.load(tmp_path).device("card").memory_gb_s == 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (A_MODEL.replace("hidden:", "hiden:", 1), r"mine\.yaml: hiden: is no known field \(found 64\); did.*hidden"),
        (A_MODEL.replace("hidden: 64\n", "", 1), r"mine\.yaml: hidden: is missing"),
        (A_MODEL.replace("n_heads: 8", "n_heads: eight"), r"n_heads: must be an integer > 0 \(found 'eight'\)"),
        (A_MODEL.replace("vocab: 1000", "vocab: 0"), r"vocab: must be an integer > 0 \(found 0\)"),
        (A_MODEL.replace("vocab: 1000", "vocab: .inf"), r"vocab: must be an integer > 0"),
        (A_MODEL.replace("n_kv_heads: 2", "n_kv_heads: 3"), r"n_kv_heads: must divide n_heads \(found 3\)"),
        (A_MODEL + "gated_mlp: 1\n", r"gated_mlp: must be true or false \(found 1\)"),
        (A_MODEL + "moe: 3\n", r"moe: must contain `field: value` lines \(found 3\)"),
        (A_MODEL + "moe: {n_experts: 4, topk: 2, expert_hidden: 8}\n", r"moe\.topk: is no known field.*mean top_k"),
        (A_MODEL + "moe: {n_experts: 4, top_k: 8, expert_hidden: 8}\n", r"moe\.top_k: must be <= n_experts"),
        (
            A_MODEL + "pattern: 3 dense\nkinds: [{name: dense, mlp: {width: 4}}]\n",
            r"mine\.yaml: model mine has 4 layers",
        ),
        (A_MODEL + "pattern: 4 dense\n", r"mine\.yaml: model mine describes no layer kind dense"),
        (A_MODEL + "pattern: 4 (dense\n", r"mine\.yaml: no pattern of layers"),
        (A_MODEL + "kinds: [{name: a}]\n", r"mine\.yaml: kinds\.0: layer kind a has no module"),
        (
            A_MODEL + "kinds: [{name: a, mlp: {with: 4}}]\n",
            r"kinds\.0\.mlp\.with: is no known field.*did you mean width",
        ),
        (A_MODEL + "kinds: {name: a}\n", r"kinds: must be a list"),
        (
            A_MODEL + "kinds: [{name: a, attention: {n_heads: 2, n_kv_heads: 2, head_dim: 4, reach: far}}]\n",
            r"mine\.yaml: kinds\.0\.attention: reach 'far' is none of full, sliding, chunked",
        ),
        (
            A_MODEL + "pattern: 4 a\nkinds: [{name: a, attention: {n_heads: 4, n_kv_heads: 3, head_dim: 4}}]\n",
            r"kinds\.0\.attention\.n_kv_heads: must divide n_heads \(found 3\)",
        ),
        (
            A_MODEL + "pattern: 4 a\nkinds: [{name: a, moe: {n_experts: 2, top_k: 3, expert_hidden: 4}}]\n",
            r"kinds\.0\.moe\.top_k: must be <= n_experts",
        ),
        (A_DEVICE.replace("usable_memory_mib: 900", "usable_memory_mib: 9000"), r"usable_memory_mib: must be <= mem"),
        (A_DEVICE + "efficiency: {matmul: 1.7}\n", r"efficiency\.matmul: must be a share in \(0, 1\] \(found 1\.7\)"),
        (
            A_DEVICE.replace("intra_node_gb_s: 10", "intra_node_gb_s: 0"),
            r"mine\.yaml: intra_node_gb_s: must be a number",
        ),
        (
            A_DEVICE.replace("peak_bf16_tflops: 10", "peak_tflops: {bf17: 10}"),
            r"peak_tflops: is no known precision.*'bf17'",
        ),
        (A_DEVICE.replace("peak_bf16_tflops: 10", "peak_tflops: {fp8: 10}"), r"peak_tflops: lacks the peak of 16 bits"),
        (A_DEVICE.replace("peak_bf16_tflops: 10\n", ""), r"peak_tflops: is missing"),
        (A_DEVICE + "links: []\n", r"intra_node_gb_s: is no known field"),
        (A_DEVICE + "sources: {memory: mine}\n", r"sources: is no figure of the device \(found 'memory'\)"),
        (A_DEVICE + "aliases: mine\n", r"aliases: must be a list"),
        (TIERS.replace("cards: 8", "cards: 2"), r"links: must go from near to far"),
        (TIERS.replace(", cards: 8", ""), r"links: has no fast links"),
        (TIERS.replace("gb_s: 5", "gbs: 5"), r"links\.2\.gbs: is no known field.*did you mean gb_s"),
        ("- a\n- b\n", r"must contain `field: value` lines"),
        ("", r"must contain `field: value` lines"),
        ("a: [1\n", r"is not valid YAML \(line 2, column 1\)"),
        ("a: &x [1]\nb: *x\n", r"anchors and aliases have no place in a registration"),
        ("!!python/object/apply:os.system ['true']\n", r"is not valid YAML"),
    ],
)
def test_a_wrong_registration_says_file_field_value_and_cure(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        Registry.load(tmp_path)


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--register_path: no such folder"):
        Registry.load(tmp_path / "nowhere")
