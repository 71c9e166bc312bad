"""The fields of a Megatron-LM or MindSpeed-LLM script, from the arguments that its training program is given.

Defaults are the programs' own: Megatron-LM core_v0.12.0, MindSpeed-LLM v2.3.0, by file and line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from benchmarks.differential_reading.positions import of_flags
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole
from benchmarks.differential_reading.sandbox import UNTOLD, launches

_SIZES = ("num-layers", "hidden-size", "num-attention-heads")
_NO_TRAINING = re.compile(
    r"convert|ckpt|preprocess|infer|eval|generat|server|predict|export|distill|prune", re.IGNORECASE
)
_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokenizers of one vocabulary: Radford et al. 2019 (GPT-2); arXiv:2307.09288 section 2.2 (LLaMA2)."""
_BLANK = re.compile(r"""(?<=[=\s"'])<[A-Za-z][\w ,./-]*\w>""")
"""Placeholders that a script's user fills in, as in ``DATA=<path to data>``."""


def read_script(text: str) -> list[Reading]:
    """The fields of every training that a script starts.

    Raises
    ------
    NothingToRead
        When it starts none, or its sizes come from outside the script.
    """
    text = _BLANK.sub("filled_in", text)
    trainings = _trainings(launches(text)) or _trainings(launches(text, files_exist=True))
    if not trainings:
        raise NothingToRead("starts no program with --num-layers and --hidden-size")
    trainings = [flags for flags in trainings if not _NO_TRAINING.search(flags["program"][0])]
    if not trainings:
        raise NothingToRead("starts a program that trains nothing")
    readings = [read_flags(flags) for flags in trainings]
    if not any("layers" in reading and "hidden" in reading for reading in readings):
        raise NothingToRead("the sizes come from outside the script")
    return readings


def _trainings(calls: Sequence[Sequence[str]]) -> list[dict[str, list[str]]]:
    started = [parse(call) for call in calls if call]
    return [flags for flags in started if sum(size in flags for size in _SIZES) >= 2]


def parse(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Arguments by flag, as argparse takes them: the last of a doubled flag, ``_`` and ``-`` alike.

    ``program`` is the Python file that is started.
    """
    flags: dict[str, list[str]] = {
        "program": [next((PurePath(word).name for word in arguments if word.endswith(".py")), arguments[0])]
    }
    name = ""
    for word in arguments:
        if re.match(r"--[A-Za-z]", word):
            name, sign, value = word[2:].partition("=")
            name = name.replace("_", "-")
            flags[name] = [value] if sign else []
            if sign:
                name = ""
        elif name:
            flags[name].append(word)
    return flags


def read_flags(flags: dict[str, list[str]]) -> Reading:
    """The fields that the flags settle."""

    def number(*names: str, default: int | None = None) -> int | None:
        for name in names:
            if name in flags:
                return whole(flags[name][0].strip()) if flags[name] else None
        return default

    def text(name: str) -> str:
        return flags[name][0] if flags.get(name) else ""

    hidden, heads = number("hidden-size"), number("num-attention-heads")
    tp, pp = number("tensor-model-parallel-size", default=1), number("pipeline-model-parallel-size", default=1)
    cp, ep = number("context-parallel-size", default=1), number("expert-model-parallel-size", default=1)
    layers = number("num-layers")
    # Megatron-LM main (d98e8a64) training/arguments.py:787-797: the pattern tells the layers, MTP behind its slash.
    pattern = text("hybrid-layer-pattern") or text("hybrid-override-pattern")
    if pattern:
        layers = sum(letter.isalpha() or letter in "*-" for letter in pattern.partition("/")[0])
    # Positions without a layer: MindSpeed-LLM docs, ``--noop-layers`` counts inside ``--num-layers``.
    empty = {whole(part) for part in text("noop-layers").split(",") if part}
    experts = number("num-experts", default=1)
    has_experts = experts is not None and experts > 1
    # training/arguments.py:673-677.
    ffn = number("ffn-hidden-size")
    if ffn is None and "ffn-hidden-size" not in flags and hidden is not None:
        ffn = int(4 * hidden * 2 / 3 / 64) * 64 if "swiglu" in flags else 4 * hidden
    # training/arguments.py:842 (the MLP's width where the experts' is not given); deprecated_args.py:24.
    width = number("moe-ffn-hidden-size", "moe-intermediate-size", default=ffn)
    extended = "moe-tp-extend-ep" in flags and tp is not None
    # MindSpeed core/tensor_parallel_y_union... : experts over TP·EP ranks where TP extends EP.
    spread = ep * tp if extended and ep is not None and tp is not None else ep
    ranks = _ranks(number("nproc-per-node", "local-worker-num"), number("nnodes", default=1), number("worker-num"))
    dp = ranks // (tp * pp * cp) if ranks and tp and pp and cp and ranks % (tp * pp * cp) == 0 else None
    mbs = number("micro-batch-size")
    batch = number("global-batch-size")
    if batch is None and "global-batch-size" not in flags and mbs is not None and dp is not None:
        batch = mbs * dp  # training/arguments.py:422.
    values: dict[str, Value | None] = {
        "layers": None if layers is None else layers - len(empty),
        "hidden": hidden,
        "heads": heads,
        # training/arguments.py:1245.
        "kv_heads": number("num-query-groups", default=1) if "group-query-attention" in flags else heads,
        "ffn": ffn,
        "vocab": _vocabulary(number("padded-vocab-size"), number("vocab-size"), text("tokenizer-type"), number, tp),
        "experts": experts,
        # training/arguments.py:2517.
        "top_k": number("moe-router-topk", default=2) if has_experts else 0,
        "expert_width": width if has_experts else 0,
        "sequence": number("seq-length", "encoder-seq-length"),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": spread,
        "vpp": _interleaves(flags, layers, pp, number),
        "dp": dp,
        "mbs": mbs,
        "batch": batch,
        "recompute": _recompute(flags),
        "sharded_optimizer": "use-distributed-optimizer" in flags,
    }
    reading = settled({name: value for name, value in values.items() if UNTOLD not in str(value)})
    return reading | of_flags(flags, reading)


def _ranks(per_node: int | None, nodes: int | None, workers: int | None) -> int | None:
    return workers or (per_node * nodes if per_node and nodes else None)


def _vocabulary(padded: int | None, stated: int | None, kind: str, number: object, tp: int | None) -> int | None:
    """training/tokenizer/tokenizer.py:103-128: padded to a multiple of ``--make-vocab-size-divisible-by`` times TP."""
    if padded is not None:
        return padded
    assert callable(number)
    each = number("make-vocab-size-divisible-by", default=128)
    stated = _TOKENIZERS.get(kind) if stated is None else stated
    if stated is None or each is None or tp is None:
        return None  # Counted in a tokenizer that the script only names.
    return -(-stated // (each * tp)) * each * tp


def _interleaves(flags: dict[str, list[str]], layers: int | None, pp: int | None, number: object) -> int | None:
    """training/arguments.py:429-470; MindSpeed-LLM's DualPipeV holds two chunks a stage."""
    assert callable(number)
    if "schedules-method" in flags:
        return 2
    if "pipeline-model-parallel-layout" in flags:
        layout = _expanded("".join(flags["pipeline-model-parallel-layout"]))
        return (layout.count("|") + 1) // pp if pp else None
    if "num-virtual-stages-per-pipeline-rank" in flags:
        stages: int | None = number("num-virtual-stages-per-pipeline-rank")
        return stages
    if "num-layers-per-virtual-pipeline-stage" in flags:
        each = number("num-layers-per-virtual-pipeline-stage")
        counted = None if layers is None else layers
        for name in ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"):
            counted = counted + 1 if counted is not None and name in flags else counted
        return counted // pp // each if counted and pp and each else None
    return 1


def _expanded(layout: str) -> str:
    """A layout with its repeats written out: core/transformer/pipeline_parallel_layer_layout.py."""
    layout = re.sub(r"[,\s]", "", layout)
    while True:
        found = re.search(r"\(([^()]*)\)\*(\d{1,3})|([A-Za-z|])\*(\d{1,3})", layout)
        if not found or len(layout) > 10_000:
            return layout
        piece = found[1] * int(found[2]) if found[2] else found[3] * int(found[4])
        layout = layout[: found.start()] + piece + layout[found.end() :]


def _recompute(flags: dict[str, list[str]]) -> str:
    """training/arguments.py:379-381; ``--checkpoint-activations`` and its like are those of releases before 3.0.

    Beside an overlap of the experts' exchange ``--moe-zero-memory`` runs parts of a layer again: MindSpeed 028de58c
    docs/zh/features/megatron_moe/megatron-moe-zero-memory.md.
    """
    overlaps = any(name in flags for name in ("moe-alltoall-overlap-comm", "moe-fb-overlap"))
    least = "selective" if overlaps and flags.get("moe-zero-memory", ["disable"]) != ["disable"] else "none"
    if flags.get("recompute-activations") is not None:
        return "selective"
    if flags.get("recompute-granularity"):
        mode = flags["recompute-granularity"][0]
        nothing = flags.get("recompute-method") == ["block"] and flags.get("recompute-num-layers") == ["0"]
        return least if nothing else mode
    if any(name in flags for name in ("checkpoint-activations", "activations-checkpoint-method")):
        return "full"
    return least
