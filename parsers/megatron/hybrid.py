"""Hybrid models as Megatron states them: one letter a layer, ``M-M-|M-M*-/MM`` (``--hybrid-layer-pattern``).

Letters, borders of pipeline chunks (``|``) and MTP modules (``/``): Megatron-LM main
megatron/core/models/hybrid/hybrid_layer_allocation.py:14-26, 176-258, 331-486. The pattern says how many layers
there are, whatever ``--num-layers`` says, and with ``|`` where they lie (main megatron/training/arguments.py:743-925;
``|`` and ``/`` since core 0.17). Up to core 0.16 ``--hybrid-override-pattern`` holds the letters, or ratios deal them
(core_v0.16.0 megatron/core/ssm/mamba_hybrid_layer_allocation.py:42-126), and stages are even
(megatron/core/ssm/mamba_block.py, ``_select_layers_for_pipeline_parallel``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.flags import Flags

MAMBA, GATED_DELTA_NET, ATTENTION, SPARSE, LATENT, MLP, EXPERTS = "M", "G", "*", "D", "+", "-", "E"
LETTERS = MAMBA + GATED_DELTA_NET + ATTENTION + SPARSE + LATENT + MLP + EXPERTS
HYBRID, HYBRID_BEFORE, MTP_BEFORE = "hybrid-layer-pattern", "hybrid-override-pattern", "mtp-hybrid-override-pattern"
ATTENTION_SHARE, MLP_SHARE = "hybrid-attention-ratio", "hybrid-mlp-ratio"
MAX_MTP = 64
"""MTP modules that are read at most."""
OTHER_PLACING = (
    "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank",
    "pipeline-model-parallel-layout",
    "account-for-embedding-in-pipeline-split",
    "account-for-loss-in-pipeline-split",
)
"""Flags that Megatron refuses beside a pattern (main megatron/training/arguments.py:814-838)."""
OTHER_ENDS = ("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers")
"""Flags that it refuses beside a pattern with borders (ibid. :802-813)."""

ELSEWHERE = ("noop-layers", "num-layer-list")
"""Flags of MindSpeed-LLM for other models: it patches no stack of Mamba layers for them (MindSpeed-LLM master
mindspeed_llm/features_manager/models/mamba.py)."""


@dataclass(frozen=True)
class HybridLayers:
    """Layers of a hybrid model.

    Parameters
    ----------
    chunks : tuple of str
        The letters of every chunk in model order; one where no border is given.
    mtp : str
        The letters of one MTP module; empty where there is none.
    mtp_depth : int
        MTP modules.
    flag : str or None
        The flag that holds the pattern; None where fractions of layers state it.
    """

    chunks: tuple[str, ...]
    mtp: str = ""
    mtp_depth: int = 0
    flag: str | None = None

    @property
    def letters(self) -> str:
        """One letter a layer, in model order."""
        return "".join(self.chunks)

    @property
    def bordered(self) -> bool:
        """Return whether the pattern says where chunks end."""
        return len(self.chunks) > 1


def is_hybrid(flags: Flags) -> bool:
    """Return whether a launch builds its model layer by layer from such letters.

    The stack is named by ``--spec`` (``mamba_stack_spec``, from core 0.17 on ``hybrid_stack_spec``; MindSpeed-LLM
    2.1.0 to master mindspeed_llm/tasks/models/spec/mamba_spec.py) or, after training, by ``--export-model-type``.
    """
    if flags.has(HYBRID, HYBRID_BEFORE, "is-hybrid-model"):
        return True
    if any(flags.number(name, default=0.0) for name in (ATTENTION_SHARE, MLP_SHARE)):
        return True
    named, exported = " ".join(flags.words("spec")), flags.text("export-model-type", default="")
    return "mamba" in named or "hybrid" in named or exported in ("HybridModel", "MambaModel")


def read_hybrid(flags: Flags) -> HybridLayers | None:
    """The layers of a hybrid model; None where the model is none.

    Raises
    ------
    InputError
        When the pattern is none, or flags stand beside it that Megatron refuses.
    """
    if not is_hybrid(flags):
        return None
    for other in ELSEWHERE:
        if flags.has(other):
            raise flags.error(other, "places no layers of a hybrid model", cure="leave it out")
    if flags.has(HYBRID) and flags.has(HYBRID_BEFORE):
        raise flags.error(HYBRID_BEFORE, f"cannot stand beside --{HYBRID}", cure="leave one of them")
    name = next((each for each in (HYBRID, HYBRID_BEFORE) if flags.has(each)), None)
    if name is None:
        return HybridLayers((_by_shares(flags),))
    text = flags.text(name)
    main, *modules = text.split("/")
    _letters(flags, name, main.replace("|", ""))
    modules = [] if not any(modules) else modules
    for module in modules:
        _letters(flags, name, module)
    if len(modules) > MAX_MTP:
        raise flags.error(name, f"names {len(modules)} MTP modules; {MAX_MTP} at most can be")
    if len(set(modules)) > 1:
        raise flags.error(name, "names MTP modules that differ", text, "give every module the same layers")
    depth: int = flags.integer("mtp-num-layers", default=0, low=0, high=MAX_MTP)
    if not modules and depth and flags.has(MTP_BEFORE):
        modules = [flags.text(MTP_BEFORE)] * depth
        _letters(flags, MTP_BEFORE, modules[0])
    chunks = tuple(main.split("|"))
    for other in (*OTHER_PLACING, *(OTHER_ENDS if len(chunks) > 1 else ())):
        if flags.has(other):
            raise flags.error(other, f"cannot stand beside --{name}", cure="say where stages end by | in the pattern")
    return HybridLayers(chunks, modules[0] if modules else "", len(modules), name)


def hybrid_notes(flags: Flags, layers: HybridLayers) -> list[str]:
    """Flags that Megatron ignores beside a pattern, one sentence each."""
    notes = []
    count = flags.integer("num-layers", default=None, high=MAX_LAYERS)
    if layers.flag is not None and count not in (None, len(layers.letters)):
        notes.append(
            f"--num-layers {count} is ignored: --{layers.flag} has {len(layers.letters)} layers (core 0.17 and "
            "later; before, it does not start)"
        )
    experts = flags.integer("num-experts", default=0, low=0)
    if experts and EXPERTS not in layers.letters + layers.mtp:
        # main (d98e8a64) megatron/core/models/hybrid/hybrid_block.py builds a layer by its letter; megatron/training/
        # arguments.py:1656 and training.py:3454 take the number for the degree of EP and the log alone.
        notes.append(f"--num-experts {experts} builds no experts: no layer of the pattern is {EXPERTS}")
    depth = flags.integer("mtp-num-layers", default=None, low=0, high=MAX_MTP)
    if depth not in (None, layers.mtp_depth):
        notes.append(
            f"--mtp-num-layers {depth} is ignored: the pattern has {layers.mtp_depth} MTP modules, each behind a /"
        )
    return notes


def pattern_text(chunks: Sequence[str], mtp: str, depth: int) -> str:
    """A pattern with the borders of its chunks, none where there is one chunk."""
    return "/".join(["|".join(chunks), *[mtp] * depth])


def _letters(flags: Flags, name: str, letters: str) -> None:
    problem = None
    if not letters or len(letters) > MAX_LAYERS:
        problem = f"names {len(letters)} layers; there must be 1 to {MAX_LAYERS}"
    elif odd := re.sub(f"[{re.escape(LETTERS)}]", "", letters):
        problem = f"has {odd[:20]!r} in it; its letters are {' '.join(LETTERS)}, with | and /"
    elif ATTENTION in letters and {SPARSE, LATENT} & set(letters):
        problem = f"mixes {ATTENTION} with {SPARSE} or {LATENT}, which Megatron refuses"
    if problem is not None:
        raise flags.error(name, problem, flags.text(name))


def _by_shares(flags: Flags) -> str:
    """Letters dealt by the fractions of attention and MLP layers; Mamba without any.

    Attention layers lie evenly between runs of Mamba layers; MLP layers then take Mamba layers' places, evenly.
    """
    layers: int = flags.integer("num-layers", high=MAX_LAYERS)
    attention, mlp = (flags.number(name, default=0.0) for name in (ATTENTION_SHARE, MLP_SHARE))
    if attention + mlp > 1:
        raise _too_much(flags, attention + mlp)
    of_attention, of_mlp = round(layers * attention), round(layers * mlp)
    dealt = _spread([MAMBA] * layers, ATTENTION, (layers - of_attention) / (of_attention + 1))
    if of_mlp:
        dealt = _spread(dealt, MLP, (layers - of_attention - of_mlp) / of_mlp)
    return "".join(dealt)


def _spread(letters: list[str], letter: str, gap: float) -> list[str]:
    """Put a letter in place of a Mamba layer whenever about `gap` Mamba layers went before."""
    left, result = gap, []
    for each in letters:
        if each != MAMBA:
            result.append(each)
        elif left < 0.5:
            result.append(letter)
            left += gap
        else:
            result.append(each)
            left -= 1
    return result


def _too_much(flags: Flags, total: float) -> InputError:
    name = MLP_SHARE if flags.has(MLP_SHARE) else ATTENTION_SHARE
    return flags.error(name, "makes more layers attention and MLP than there are", total, "shares add up to 1 at most")
