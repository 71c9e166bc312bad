r"""The modules of a layer that MindFormers' ``select_recompute`` can name, and what its patterns mean layer by layer.

A pattern is split at ``\.``; each part must match one level's name in full: cells, and at the end an operator or a
cell (master f52743ca mindformers/parallel_core/training_graph/transformer/utils.py:618-660,
``LayerSetting.set_pattern_recompute``; r1.5.0 mindformers/models/utils.py:571-612). It holds in as many of a chunk's
first layers as its entry counts (:536-550). An operator runs again and its result is given up. Of a cell all
operators run again; its own result stays where something needs it, and a cell within it must not be named again
(mindspore/python/mindspore/nn/cell.py, ``Cell._recompute``: ``output_no_recompute``, RuntimeError).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taylor.cost_model.choices.module_choices import ModuleWords, choice_name
from taylor.cost_model.choices.nested_choices import is_chain
from taylor.parsers.text.fields import Fields
from taylor.pipeline.plan import FULL, Grid, PipelinePlan, as_grid
from taylor.register.frameworks import (
    ATTENTION_CORE,
    DENSE_ACTIVATION,
    DENSE_MLP,
    EXPERT_BLOCK,
    NORMS,
    SHARED_ACTIVATION,
    SHARED_EXPERTS,
)

_SEPARATOR = r"\."


@dataclass(frozen=True)
class Module:
    """Parts that run again under a word, and the operators or cells, by their path in a layer, that say so together."""

    parts: tuple[str, ...]
    paths: tuple[str, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        """As ``select_recompute`` names the paths."""
        return tuple(path.replace(".", _SEPARATOR) for path in self.paths)


def modules_of(section: Fields, *, mcore: bool) -> dict[str, Module]:
    """The modules of a model's layers, by the word that reports name them with.

    Legacy: the decoder layers of Llama and DeepSeek (r1.5.0 mindformers/models/llama/llama_transformer.py:870-975,
    llama_layer.py:172-240 and 355-470, research/deepseek3/deepseek2_model.py:989-1071), whose names other legacy
    models do not share. Mcore: master f52743ca mindformers/parallel_core/training_graph/transformer,
    transformer_layer.py:99-148, mlp.py:84-170, norm.py:314-352, attention.py:182, moe/moe_layer.py:157.

    Left out are what is there in another form or would free nothing: norms whose result is fp32 and is cast once more
    (``fp32_residual_connection``), unfused norms, the fused SwiGLU of mcore, which runs again in any case
    (activation.py:39), and in legacy files attention without its fused kernel.

    Parameters
    ----------
    section : Fields
        ``model.model_config`` with its defaults.
    """
    return _mcore_modules(section) if mcore else _legacy_modules(section)


def _legacy_modules(section: Fields) -> dict[str, Module]:
    if section.raw("type") not in ("LlamaConfig", "DeepseekV2Config", "DeepseekV3Config"):
        return {}
    operators = ("mul", "activate.silu" if section.raw("qkv_concat") is True else "w1.activation.silu")
    norm = tuple(f"{cell}.{operator}" for cell in ("attention_norm", "ffn_norm") for operator in ("norm", "rcast"))
    core = {"core_attention": Module((ATTENTION_CORE,), ("attention.flash_attention",))}
    return {
        "norms": Module((NORMS,), norm),
        **(core if section.raw("use_flash_attention") is True else {}),
        **_of_mlp("feed_forward", operators),
    }


def _mcore_modules(section: Fields) -> dict[str, Module]:
    found: dict[str, Module] = {}
    wide = section.raw("fp32_residual_connection") is True or section.raw("residual_dtype") == "float32"
    if not wide and section.raw("fused_norm") is not False and section.raw("normalization") in (None, "RMSNorm"):
        cells = ("input_layernorm", "pre_mlp_layernorm")
        found["norms"] = Module((NORMS,), tuple(f"{cell}.{name}" for cell in cells for name in ("norm", "cast")))
    found["core_attention"] = Module((ATTENTION_CORE,), ("self_attention.core_attention",))
    operators: dict[Any, tuple[str, ...]] = {
        "silu": ("mul", "activation_func.silu"),
        "swiglu": ("activation_func.silu", "activation_func.mul"),
    }
    fused = section.raw("bias_swiglu_fusion") is True
    named = section.raw("hidden_act") or "silu"  # as in the classes of mcore models
    return found | _of_mlp("mlp", () if fused and named == "swiglu" else operators.get(named, ()))


def _of_mlp(cell: str, operators: Sequence[str]) -> dict[str, Module]:
    """The activation functions of an MLP and of shared experts, these as a whole, and MLP or experts as a whole."""
    shared = f"{cell}.shared_experts"
    activations = {
        "activation": Module((DENSE_ACTIVATION,), tuple(f"{cell}.{name}" for name in operators)),
        "shared_activation": Module((SHARED_ACTIVATION,), tuple(f"{shared}.{name}" for name in operators)),
    }
    return {
        **(activations if operators else {}),
        "shared_experts": Module((SHARED_EXPERTS,), (shared,)),
        "mlp": Module((DENSE_MLP, EXPERT_BLOCK), (cell,)),
    }


def module_words(modules: Mapping[str, Module]) -> ModuleWords:
    """The words with what runs again under them."""
    return ModuleWords({word: module.parts for word, module in modules.items()}, nested=True)


def matches(pattern: str, path: str) -> bool:
    """Return whether a pattern names an operator or cell; a part that is no regular expression names nothing."""
    parts, names = pattern.split(_SEPARATOR), path.split(".")
    try:
        return len(parts) == len(names) and all(map(re.fullmatch, parts, names))
    except re.error:
        return False


def counts_by_word(grids: Mapping[str, Grid], modules: Mapping[str, Module]) -> dict[str, Grid]:
    """In how many of every chunk's first layers each module runs again, of those that do anywhere.

    Parameters
    ----------
    grids : mapping of pattern to int [vpp, pp]
        In how many first layers each pattern holds.
    """
    found = {}
    for word, module in modules.items():
        of_paths = [[grid for pattern, grid in grids.items() if matches(pattern, path)] for path in module.paths]
        if all(of_paths):
            least = _entrywise(min, [_entrywise(max, of_path) for of_path in of_paths])
            if any(map(any, least)):
                found[word] = least
    return found


def _entrywise(of: Callable[..., int], grids: Sequence[Grid]) -> Grid:
    return as_grid([[of(values) for values in zip(*rows, strict=True)] for rows in zip(*grids, strict=True)])


def plan_by_module(
    plan: PipelinePlan,
    counts: Mapping[str, Grid],
    usual: tuple[str, ...] = (),
    moved: Mapping[tuple[int, int], Sequence[frozenset[str]]] | None = None,
) -> PipelinePlan | None:
    """A file's plan with every layer under the set of modules that run again in it, and what of it lies on the host.

    Parameters
    ----------
    counts : mapping of word to int [vpp, pp]
        In how many of every chunk's first layers each module runs again.
    usual : tuple of str
        The modules of selective recompute where a file names none.
    moved : mapping of (interleave, stage) to sequence of frozenset of str, optional
        Modules that each layer of a chunk moves to the host, unless it runs again.

    Returns
    -------
    PipelinePlan or None
        None where none or the usual ones run again and nothing is moved, or no order of the choices is that of every
        chunk. In a chunk of one kind the order of what is moved does not matter.
    """
    full = plan.recomputed(FULL)
    found: dict[_Choice, list[list[int]]] = {}
    places: list[list[_Choice]] = []
    for v in range(plan.interleaves):
        for s in range(plan.stages):
            of_chunk: Sequence[frozenset[str]] = () if moved is None else moved[v, s]
            last = max((len(of_chunk), *(grid[v][s] for grid in counts.values())))
            taken: list[_Choice] = []
            for layer in range(full[v][s], last):
                again = tuple(word for word, grid in counts.items() if grid[v][s] > layer)
                left = of_chunk[layer].difference(again) if layer < len(of_chunk) else ()
                taken.append((again, tuple(sorted(left))))
                rows = found.setdefault(taken[-1], [[0] * plan.stages for _ in range(plan.interleaves)])
                rows[v][s] += 1
            if sum(bool(grid[v][s]) for grid in plan.layers.values()) > 1:
                places.append(taken)
    found.pop(((), ()), None)
    if not found or list(found) == [(usual, ())] or not is_chain([again for again, _ in found]):
        return None
    if any(taken != sorted(taken, key=_place) for taken in places):
        return None
    in_order = sorted(found, key=_place)
    return PipelinePlan(plan.layers, {FULL: full, **{choice_name(*one): as_grid(found[one]) for one in in_order}})


_Choice = tuple[tuple[str, ...], tuple[str, ...]]
"""Modules that run again, and what lies on the host."""


def _place(one: _Choice) -> tuple[int, int, str]:
    """Position of a choice among those of a chunk."""
    return -len(one[0]), -len(one[1]), one[1][0] if one[1] else ""


def module_grids(plan: PipelinePlan, named: Sequence[str], sets: Mapping[str, Sequence[str]]) -> dict[str, Grid]:
    """In how many of every chunk's first layers each module has to run again for a plan; see `counts_by_word`.

    Raises
    ------
    ValueError
        When the choices that a chunk uses do not shrink from its first layer on.
    """
    full = plan.recomputed(FULL)
    words = list(dict.fromkeys(word for name in named for word in sets[name]))
    result = {word: [[0] * plan.stages for _ in range(plan.interleaves)] for word in words}
    for v in range(plan.interleaves):
        for s in range(plan.stages):
            until, before = full[v][s], set(words)
            for name in named:
                count = plan.recompute[name][v][s]
                if not count:
                    continue
                if not before >= set(sets[name]):
                    raise ValueError("the modules that run again do not shrink along a chunk")
                until, before = until + count, set(sets[name])
                for word in before:
                    result[word][v][s] = until
    return {word: as_grid(rows) for word, rows in result.items()}
