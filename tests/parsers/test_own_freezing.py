"""Frozen layers as their programs' own functions freeze them, where clones are available (`benchmarks/reliability`)."""

from __future__ import annotations

import ast
import logging
import re
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.base.errors import InputError
from taylor.parsers.axolotl.unfrozen import UNFROZEN, with_unfrozen
from taylor.parsers.llamafactory.freeze import EXTRA, LAYERS, partly_frozen
from taylor.parsers.swift.frozen import with_frozen
from taylor.parsers.swift.options import FORM
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.script_flags import flags_of
from taylor.parsers.text.shell_source import ShellScript
from taylor.register.adapters import EMBEDDING, HEAD
from taylor.register.frozen import layers_in_order
from taylor.register.layers import PASSED, UNREACHED
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from tests.parsers.swift.files import SWIFT

MODEL = Registry.load().model("llama2-7b")
FILE = Path("train.yaml")
HUGGING_FACE = {
    "embedding": "model.embed_tokens.weight",
    "head": "lm_head.weight",
    "layer": "model.layers.{}.",
    "after": "model.norm.weight",
    "parts": [
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"{name}_layernorm.weight" for name in ("input", "post_attention")),
    ],
}
"""Names of LLaMA's parameters in transformers 4.57.1 (models/llama/modeling_llama.py), in order."""
MEGATRON = {
    "embedding": "embedding.word_embeddings.weight",
    "head": "output_layer.weight",
    "layer": "decoder.layers.{}.",
    "after": "decoder.final_layernorm.weight",
    "parts": [
        "self_attention.linear_proj.weight",
        "self_attention.linear_qkv.layer_norm_weight",
        "self_attention.linear_qkv.weight",
        "mlp.linear_fc1.layer_norm_weight",
        "mlp.linear_fc1.weight",
        "mlp.linear_fc2.weight",
    ],
}
"""Names of the same in Megatron Core d98e8a64 with layers of transformer engine."""
SIZES = {"word_embeddings": 32000 * 4096, "output_layer": 32000 * 4096, "proj": 4096**2, "qkv.weight": 3 * 4096**2}
SIZES |= {"fc1.weight": 2 * 4096 * 11008, "fc2": 4096 * 11008}


class Parameter:
    """What the programs' functions ask of a parameter."""

    def __init__(self, elements: int) -> None:
        self.elements, self.requires_grad, self.data = elements, True, SimpleNamespace(to=lambda _: None)

    def __len__(self) -> int:
        return 32000  # Rows of the two on which an entry names some.

    def requires_grad_(self, trains: bool) -> None:
        self.requires_grad = trains

    def numel(self) -> int:
        return self.elements

    def register_hook(self, hook: object) -> None:
        assert callable(hook)


class Network:
    """What they ask of a model."""

    def __init__(self, named: dict[str, Any]) -> None:
        self.config = SimpleNamespace(num_hidden_layers=MODEL.n_layers, model_type="llama")
        names = [named["embedding"]]
        names += [f"{named['layer'].format(at)}{part}" for at in range(MODEL.n_layers) for part in named["parts"]]
        names += [named["after"], named["head"]]
        found = {name: next((size for word, size in SIZES.items() if word in name), 4096) for name in names}
        self.layer = named["layer"].format
        self.ends = {EMBEDDING: named["embedding"], HEAD: named["head"]}
        self.by_name = {name: Parameter(size) for name, size in found.items()}

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        return iter(self.by_name.items())

    def parameters(self) -> Iterator[Parameter]:
        return iter(self.by_name.values())

    def trained(self, *, entered: bool = False) -> tuple[list[str | None], list[str]]:
        """How each layer is frozen, as `LayerSpec.frozen` (None: a part of its matrices trains), and the frozen ends.

        Parameters
        ----------
        entered : bool
            The embedding's result takes a gradient though the embedding may be frozen.
        """
        ends = [end for end, name in self.ends.items() if not self.by_name[name].requires_grad]
        found: list[str | None] = []
        reached = entered or EMBEDDING not in ends
        for at in range(MODEL.n_layers):
            own = {
                name: each.requires_grad for name, each in self.named_parameters() if name.startswith(self.layer(at))
            }
            reached = reached or any(own.values())
            matrices = {trains for name, trains in own.items() if "norm" not in name}
            frozen = PASSED if reached else UNREACHED
            found.append(None if len(matrices) > 1 else "" if True in matrices else frozen)
        return found, ends


def read(model: ModelSpec, frozen: tuple[str, ...]) -> tuple[list[str | None], list[str]]:
    """The same of a model as it was read."""
    return [model.layer(kind).frozen for kind in layers_in_order(model)], [*frozen]


def text_of(repository: str, revision: str, path: str) -> str:
    try:
        return source(repository, revision, path)
    except NotHere as here:
        pytest.skip(str(here))


def functions(text: str, *names: str) -> str:
    kept = [node for node in ast.parse(text).body if getattr(node, "name", None) in names]
    assert len(kept) == len(names)
    return "from __future__ import annotations\n" + ast.unparse(ast.Module(kept, []))


@pytest.mark.parametrize("extra", ["", "lm_head", "norm", "embed_tokens,norm"])
@pytest.mark.parametrize("number", [-40, -32, -3, -1, 1, 2, 8, 31, 32, 50])
@pytest.mark.parametrize("spread", [False, True])
def test_llama_factory_trains_the_layers_that_are_read(number: int, extra: str, spread: bool) -> None:
    text = text_of("LLaMA-Factory", "ff6d4d12", "src/llamafactory/model/adapter.py")
    logger = SimpleNamespace(info_rank0=lambda _: None)
    around = {"logger": logger, "re": re, "COMPOSITE_MODELS": {}, "get_forbidden_modules": lambda *_: set()}
    own = loaded("own_freeze", functions(text, "_setup_freeze_tuning"), **around)
    settings = SimpleNamespace(
        use_llama_pro=spread,
        freeze_trainable_layers=number,
        freeze_trainable_modules=["all"],
        freeze_extra_modules=extra.split(",") if extra else None,
        freeze_multi_modal_projector=True,
    )
    fields = Fields({LAYERS: number, EXTRA: extra or None, "use_llama_pro": spread}, FILE)
    network = Network(HUGGING_FACE)
    try:
        own._setup_freeze_tuning(network, settings, True, False)
    except ValueError:
        with pytest.raises(InputError, match="must divide"):
            partly_frozen(fields, MODEL, [])
        return
    if spread and number < 0:  # It trains no layer at all.
        with pytest.raises(InputError, match="must divide"):
            partly_frozen(fields, MODEL, [])
        return
    assert read(*partly_frozen(fields, MODEL, [])) == network.trained()


@pytest.mark.parametrize(
    "patterns",
    [
        ["model.layers.3[01]."],
        ["^model.layers.2[89].", "^lm_head.weight$[:32000]"],
        ["model.layers.[0-9]."],
        ["model.layers.1[0-5]+."],
        ["model.embed_tokens.weight$[0:100]", "model.layers.5."],
        ["model.layers.1"],
        ["model.layers.3[1]"],
        ["lm_head"],
        ["layers.3"],
        ["model.layers.4.mlp"],
    ],
)
def test_axolotl_trains_the_layers_that_are_read(patterns: list[str]) -> None:
    text = text_of("axolotl", "067b021c", "src/axolotl/utils/freeze.py")
    own = loaded(
        "own_unfrozen",
        without_imports(text, "axolotl"),
        is_main_process=lambda: False,
        get_logger=logging.getLogger,
    )
    network = Network(HUGGING_FACE)
    own.freeze_layers_except(network, patterns)
    # src/axolotl/train.py:111-116
    layers, ends = network.trained(entered=any(end in each for each in patterns for end in ("lm_head", "embed_tokens")))
    fields = Fields({UNFROZEN: patterns}, FILE)
    if None in layers or ("" not in layers and len(ends) == 2):
        with pytest.raises(InputError, match=r"trains (a part of|no) layer"):
            with_unfrozen(fields, MODEL, [])
    else:
        assert read(*with_unfrozen(fields, MODEL, [])) == (layers, ends)


@pytest.mark.parametrize(
    ("ratio", "frozen", "trained"),
    [
        (0.0, ["embedding."], []),
        (0.0, ["decoder.layers.1"], []),
        (0.0, ["decoder.layers.1."], []),
        (0.0, ["embedding", "decoder", "output"], ["decoder.layers.31."]),
        (0.0, ["decoder.layers.0.mlp"], []),
        (0.01, [], []),
        (0.25, [], []),
        (0.5, ["output_layer"], ["decoder.layers.0."]),
        (0.99, [], []),
    ],
)
def test_ms_swift_trains_the_layers_that_are_read(
    ratio: float, frozen: list[str], trained: list[str], tmp_path: Path
) -> None:
    text = text_of("ms-swift", "3602360a", "swift/utils/transformers_utils.py")
    around = {"np": np, "re": re, "bisect_right": bisect_right, "logger": logging.getLogger(__name__)}
    own = loaded(
        "own_frozen",
        functions(text, "freeze_parameters", "activate_parameters"),
        get_n_params_grads=lambda model: ([each.numel() for each in model.parameters()], None),
        List=list,
        Optional=list,
        nn=SimpleNamespace(Module=object),
        **around,
    )
    network = Network(MEGATRON)
    own.freeze_parameters(network, ratio, frozen)
    own.activate_parameters(network, trained)
    layers, ends = network.trained(entered=True)  # mcore-bridge f020e479 src/mcore_bridge/model/gpt_model.py:212-214
    words = [f"--freeze_parameters_ratio {ratio}"] if ratio else []
    given = (("freeze", frozen), ("trainable", trained))
    words += [f"--{name}_parameters {' '.join(each)}" for name, each in given if each]
    script = SWIFT.replace("--pipeline_model_parallel_size 4", "--pipeline_model_parallel_size 1")
    script = script.replace("--max_length", f"{' '.join(words)} --max_length", 1)
    options = flags_of(ShellScript(script, tmp_path / "run.sh"), FORM)
    if None in layers and not ratio:
        with pytest.raises(InputError, match="freezes a part of layer"):
            with_frozen(MODEL, options, [])
    else:
        # Of a ratio, the layer that is frozen in part counts as trained.
        assert read(*with_frozen(MODEL, options, [])) == ([each or "" for each in layers], ends)
