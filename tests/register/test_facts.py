"""Facts of frameworks by name, sizes stated otherwise, frozen layers, adapters and patterns, each by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.register import adapters, overrides, registration
from taylor.register.adapters import Adapters, named_targets, saved_ends
from taylor.register.device_file import device_text
from taylor.register.frozen import layers_in_order, trained_counts, with_frozen_layers, without_frozen
from taylor.register.model import ModelSpec
from taylor.register.overrides import FIELDS, overridden
from taylor.register.pattern import kinds_in_order, pattern_of, whole_period
from taylor.register.registration import load_registration
from taylor.register.registry import Registry
from tests.register.facts import KEPT, facts

REGISTRY = Registry.load(None)
DENSE, EXPERTS = REGISTRY.model("llama3-8b"), REGISTRY.model("deepseek-v3-671b")


def test_no_fact_of_a_framework_has_moved() -> None:
    kept = yaml.safe_load(KEPT.read_text(encoding="utf-8"))
    for kind, entries in yaml.safe_load(yaml.safe_dump(facts())).items():
        assert set(kept[kind]) == set(entries)
        for name, entry in entries.items():
            assert kept[kind][name] == entry, f"{name} (python -m tests.register.facts writes them again)"


@pytest.mark.parametrize(
    ("name", "value", "of"),
    [
        ("num_layers", 5, lambda m: (m.n_layers, m.moe and m.moe.first_dense)),
        ("n_layers", 2, lambda m: (m.n_layers, m.moe and m.moe.first_dense)),
        ("hidden_size", 4224, lambda m: m.hidden),
        ("num_attention_heads", 8, lambda m: m.n_heads),
        ("num_query_groups", 4, lambda m: m.n_kv_heads),
        ("kv_channels", 64, lambda m: m.head_dim),
        ("ffn_hidden_size", 1024, lambda m: m.ffn_hidden),
        ("vocab_size", 1000, lambda m: m.vocab),
        ("mtp_num_layers", 0, lambda m: m.mtp_layers),
        ("mtp_num_layers", 3, lambda m: m.mtp_layers),
    ],
)
def test_a_size_stated_otherwise_is_the_model_s(name: str, value: int, of) -> None:  # type: ignore[no-untyped-def]
    changed = overridden(DENSE, {name: value})
    wanted = (value, None) if "layers" in name and "mtp" not in name else value
    assert of(changed) == wanted
    assert changed.published_parameters is None and changed.aliases == ()


def test_sizes_of_experts_are_those_of_every_kind() -> None:
    changed = overridden(EXPERTS, {"num_experts": 64, "top_k": 4, "moe_intermediate_size": 512, "first_dense": 0})
    moe = changed.moe
    assert moe is not None
    assert (moe.n_experts, moe.top_k, moe.expert_hidden, moe.first_dense) == (64, 4, 512, 0)
    short = overridden(EXPERTS, {"num_layers": 2})
    assert short.moe is not None and (short.n_layers, short.moe.first_dense) == (2, 2)
    assert overridden(EXPERTS, {"num_layers": 3}).moe == EXPERTS.moe
    assert overridden(DENSE, {}) is DENSE
    assert overridden(EXPERTS, {"num_experts": 8}).moe.top_k == 8  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("model", "sizes", "words"),
    [
        (DENSE, {"hiden_size": 1}, "did you mean hidden_size"),
        (DENSE, {"zzzz": 1}, "known are num_layers"),
        (DENSE, {"num_layers": 0}, "state 1 to 10000"),
        (DENSE, {"num_layers": 10_001}, "state 1 to 10000"),
        (DENSE, {"hidden_size": 2**24 + 1}, "state 1 to 16777216"),
        (DENSE, {"mtp_layers": -1}, "state 0 to 10000"),
        (DENSE, {"hidden_size": True}, "must be a whole number"),
        (DENSE, {"hidden_size": 8.0}, "must be a whole number"),
        (DENSE, {"num_experts": 8}, "is a size of experts"),
        (EXPERTS, {"num_experts": 7}, "is more than the 7 experts"),
    ],
)
def test_a_size_that_the_model_cannot_have_is_refused(model: ModelSpec, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        overridden(model, sizes)


def test_a_model_of_several_kinds_is_cut_and_not_widened() -> None:
    model = next(each for each in map(REGISTRY.model, REGISTRY.models) if each.pattern and not each.mtp_layers)
    order = kinds_in_order(model.pattern)
    assert kinds_in_order(overridden(model, {"num_layers": len(order)}).pattern) == order
    assert kinds_in_order(overridden(model, {"num_layers": 3}).pattern) == order[:3]
    with pytest.raises(InputError, match=f"is more than the {len(order)} layers"):
        overridden(model, {"num_layers": len(order) + 1})
    for name in ("hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size"):
        with pytest.raises(InputError, match="is not one size"):
            overridden(model, {name: 128})
    assert overridden(model, {"vocab_size": 128}).vocab == 128
    assert FIELDS[0] == "num_layers" and len(FIELDS) == 12
    assert (overrides.LARGEST, overrides.MOST_LAYERS) == (2**24, 10_000)


def test_frozen_layers_are_kinds_of_their_own() -> None:
    small = overridden(EXPERTS, {"num_layers": 5, "mtp_layers": 0})
    first = small.moe.first_dense  # type: ignore[union-attr]
    assert layers_in_order(small) == ("dense",) * first + ("moe",) * (5 - first)
    lower = with_frozen_layers(small, [False] * 4 + [True], below=False)
    assert layers_in_order(lower) == ("dense+frozen",) * first + ("moe+frozen",) * (4 - first) + ("moe",)
    passed = with_frozen_layers(small, [True, False, True, False, False], below=False)
    assert layers_in_order(passed) == ("dense", "dense+passed", "dense", "moe+passed", "moe+passed")
    behind = with_frozen_layers(small, [False] * 5, below=True)
    assert set(layers_in_order(behind)) == {"dense+passed", "moe+passed"}
    assert [trained_counts(each) for each in (small, lower, passed, behind)] == [(5, 0), (1, 4), (2, 3), (0, 5)]
    assert with_frozen_layers(small, [True] * 5, below=False) is small
    for each in (lower, passed, behind):
        assert layers_in_order(without_frozen(each)) == layers_in_order(small)
    assert without_frozen(small) is small
    with pytest.raises(ValueError, match="has 5 layers, and 4"):
        with_frozen_layers(small, [True] * 4, below=False)


def test_adapters_have_a_rank_and_known_targets() -> None:
    assert Adapters(1).reaches(adapters.OUTPUT) and not Adapters(1, (adapters.DOWN,)).reaches(adapters.OUTPUT)
    assert adapters.FROZEN.rank == 0 and adapters.FROZEN.targets == ()
    plain = Adapters(8)
    assert (plain.dropout, plain.base_bytes, plain.gathers, plain.shared_by_experts) == (False, None, False, False)
    assert (plain.beside_experts, plain.saved, plain.decomposed) == (True, (), False)
    for wrong in (
        {"rank": 0},
        {"rank": 4, "targets": ()},
        {"rank": 4, "targets": ("x",)},
        {"rank": 4, "saved": ("x",)},
    ):
        with pytest.raises(ValueError):
            Adapters(**wrong)


def test_targets_and_saved_ends_are_read_by_their_last_part() -> None:
    everything = adapters.ALL_HUGGING_FACE
    assert named_targets(["all-linear"], everything) == tuple(sorted(everything))
    assert named_targets(["all"], everything) == tuple(sorted(everything))
    with pytest.raises(InputError, match="'all'"):
        named_targets(["all"], None)
    assert set(named_targets(["model.layers.0.q_proj", "v_proj"], None)) == {adapters.QUERY, adapters.VALUE}
    both = named_targets([r"layers.[0-9]+.(mlp|self_attn).(up|down)_proj"], everything)
    assert set(both) == {adapters.UP, adapters.DOWN}
    assert saved_ends(["model.embed_tokens", "lm_head"]) == tuple(sorted((adapters.EMBEDDING, adapters.HEAD)))
    with pytest.raises(InputError, match="neither embedding nor head"):
        saved_ends(["norm"])


def test_orders_of_layers_are_written_by_the_block_that_covers_most() -> None:
    orders = {
        "2 x (1 a, 1 b)": "abab", "3 a": "aaa", "1 a, 1 b": "ab", "1 c; 3 x (1 a, 1 b)": "cababab",
        "2 x (1 a, 1 b, 2 c); 1 d": "abccabccd", "2 x (1 a, 2 b); 1 a": "abbabba", "4 x (2 a, 1 b)": "aab" * 4,
        "2 x (1 a, 1 b, 1 a, 1 c)": "abacabac",
    }  # fmt: skip
    for pattern, order in orders.items():
        assert pattern_of(list(order)) == pattern
        assert kinds_in_order(pattern) == tuple(order)
    assert [whole_period(order) for order in ("abab", "aaaa", "aba", "abcabc", "aab")] == [2, 1, 3, 3, 3]


def test_a_registration_is_read_within_its_bounds(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"

    def nested(depth: int) -> str:
        return "a: " + "[" * depth + "1" + "]" * depth

    file.write_text(nested(registration.MAX_DEPTH - 1))
    assert load_registration(file)
    for text, words in [
        (nested(registration.MAX_DEPTH), "is nested more than 20 deep"), ("a: &x 1\nb: *x", "anchors and aliases"),
        ("- 1", "must contain `field: value` lines"), ("a: [", "is not valid YAML"),
        ("#" * (2**20 + 1), "is larger than 1048576 bytes"),
    ]:  # fmt: skip
        file.write_text(text)
        with pytest.raises(InputError, match=words):
            load_registration(file)


def test_a_device_is_written_as_a_registration_that_reads_back_to_it(tmp_path: Path) -> None:
    for device in map(REGISTRY.device, REGISTRY.devices):
        text = device_text(device, ["first", ""])
        assert text.startswith("# first\n#\n")
        data = yaml.safe_load(text)
        assert data["name"] == device.name and all(value not in (None, {}, []) for value in data.values())
        file = tmp_path / f"{device.name}.yaml"
        file.write_text(text)
        again = registration.dataclass_from(type(device), load_registration(file), file, "")
        shares = {name: float(f"{share:.5g}") for name, share in device.efficiency.items()}
        assert again.efficiency == shares
        assert again == replace(device, efficiency=again.efficiency)
