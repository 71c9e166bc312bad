"""Variables of MLPerf's language-model benchmarks as Megatron's flags.

Two harnesses share the files' form. NVIDIA's trains with NeMo, and its ``conf/custom.yaml`` has the default of each
variable as ``${oc.env:NAME,DEFAULT}`` (mlcommons/training_results_v5.1 441d65f4 NVIDIA/benchmarks/llama31_405b/
implementations/hsg_ngpu2560_ngc25.09_nemo/conf/custom.yaml and pretrain.py:186-400). AMD's passes its own to
``train.py`` (AMD/benchmarks/llama31_8b/implementations/MI355X_EPYC_9575F_pytorch_llama3_8b/run_and_time.sh,
src/train.py:105-193).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError

Stated = tuple[str, str, tuple[str, ...]]
"""A flag, the variable that it is from, and the flag's words."""
SEQUENCE = 8192
"""Tokens of a sample in both harnesses (custom.yaml, ``encoder_seq_length``; train.py, SEQ_LENGTH)."""
DEFAULTS = {
    "DGXNGPU": "8", "DGXNNODES": "1", "INTERLEAVED_PIPELINE": "12", "CONTEXT_PARALLEL": "4", "EXPERT_PARALLEL": "1",
    "MODEL_SIZE": "405b", "SEQ_PARALLEL": "True", "FP8": "False", "FP8_HYBRID": "False", "FP8_RECIPE": "tensorwise",
    "FP4": "False", "FP4_RECIPE": "nvfp4", "USE_DIST_OPTIMIZER": "True", "OVERLAP_GRAD_REDUCE": "True",
    "OVERLAP_PARAM_GATHER": "True", "CROSS_ENTROPY_LOSS_FUSION": "True", "GRAD_ACCUM_FUSION": "True",
}  # fmt: skip
"""Defaults of custom.yaml where no such file lies beside the script."""
_SWITCHES = {
    "ASYM_PP_EMBED": "account-for-embedding-in-pipeline-split",
    "ASYM_PP_LOSS": "account-for-loss-in-pipeline-split",
    "TP_COMM_OVERLAP": "tp-comm-overlap",
    "USE_DIST_OPTIMIZER": "use-distributed-optimizer",
    "OVERLAP_GRAD_REDUCE": "overlap-grad-reduce",
    "OVERLAP_PARAM_GATHER": "overlap-param-gather",
    "OVERLAP_PARAM_GATHER_WITH_OPTIM_STEP": "overlap-param-gather-with-optimizer-step",
    "CROSS_ENTROPY_LOSS_FUSION": "cross-entropy-loss-fusion",
    "DEFER_EMBEDDING_WGRAD_COMPUTE": "defer-embedding-wgrad-compute",
    "TP_PP_DP_MAPPING": "use-tp-pp-dp-mapping",
    "FIRST_LAST_LAYERS_BF16": "first-last-layers-bf16",
    "FP8_PARAM_GATHER": "fp8-param-gather",
    "ENABLE_MEMORY_PROFILER": "record-memory-history",
}
_VALUES = {
    "ACT_CKPT_GRANULARITY": "recompute-granularity",
    "ACT_CKPT_METHOD": "recompute-method",
    "ACT_CKPT_NUM_LAYERS": "recompute-num-layers",
    "NUM_LAYERS_AT_START_IN_BF16": "num-layers-at-start-in-bf16",
    "NUM_LAYERS_AT_END_IN_BF16": "num-layers-at-end-in-bf16",
    "WGRAD_DEFERRAL_LIMIT": "wgrad-deferral-limit",
}
NOTHING = ("", "null", "none", "0", "false")
"""Values of a variable that requests nothing."""


@dataclass(frozen=True)
class Variables:
    """The variables of a configuration, those that it leaves out by their defaults.

    Parameters
    ----------
    file : Path
        Named in errors.
    stated : mapping of str to str
        Variables that the script exports.
    defaults : mapping of str to str
        Defaults of the harness.
    """

    file: Path
    stated: Mapping[str, str]
    defaults: Mapping[str, str]

    def text(self, name: str, usual: str = "") -> str:
        """The value of a variable."""
        return self.stated.get(name, self.defaults.get(name, usual)).strip("\"' ")

    def on(self, name: str) -> bool:
        """Return whether a switch is on: ``True`` or ``1``."""
        return self.text(name).lower() in ("true", "1")

    def number(self, name: str, usual: int | None = None) -> int:
        """A whole number of 1 or more.

        Raises
        ------
        InputError
            When it is missing, or none.
        """
        text = self.text(name, "" if usual is None else str(usual))
        if not text.isdigit() or not 1 <= int(text) <= 10**6:
            cure = f"export it as a number, or give --env {name}=VALUE"
            if not text:
                raise InputError("is missing", file=self.file, field=name, cure=cure)
            raise InputError("must be a whole number from 1", file=self.file, field=name, value=text, cure=cure)
        return int(text)


def nemo_flags(values: Variables) -> Iterator[Stated]:
    """Flags of NVIDIA's harness.

    The global batch is MINIBS times the replicas (custom.yaml, ``global_batch_size``); gradients are reduced in bf16
    (pretrain.py:266, 288, 390).
    """
    tp, pp = values.number("TENSOR_MODEL_PARALLEL"), values.number("PIPELINE_MODEL_PARALLEL")
    cp = values.number("CONTEXT_PARALLEL")
    each, nodes = values.number("DGXNGPU"), values.number("DGXNNODES")
    yield "nproc-per-node", "DGXNGPU", (str(each),)
    yield "nnodes", "DGXNNODES", (str(nodes),)
    yield "tensor-model-parallel-size", "TENSOR_MODEL_PARALLEL", (str(tp),)
    yield "pipeline-model-parallel-size", "PIPELINE_MODEL_PARALLEL", (str(pp),)
    yield "context-parallel-size", "CONTEXT_PARALLEL", (str(cp),)
    interleaves = values.text("INTERLEAVED_PIPELINE").lower()
    if interleaves not in (*NOTHING, "1"):
        yield "num-virtual-stages-per-pipeline-rank", "INTERLEAVED_PIPELINE", (interleaves,)
    yield "micro-batch-size", "MICRO_BATCH_SIZE", (str(values.number("MICRO_BATCH_SIZE")),)
    batch = values.number("MINIBS") * (each * nodes // (tp * pp * cp))
    yield "global-batch-size", "MINIBS", (str(batch),)
    if values.on("SEQ_PARALLEL") and tp > 1:
        yield "sequence-parallel", "SEQ_PARALLEL", ()
    switches = {name: flag for name, flag in _SWITCHES.items() if name != "FP8_PARAM_GATHER" or values.on("FP8")}
    yield from stated_flags(values, switches, _VALUES)
    if not values.on("GRAD_ACCUM_FUSION"):
        yield "no-gradient-accumulation-fusion", "GRAD_ACCUM_FUSION", ()
    usual = "full_iteration" if values.on("FULL_CUDA_GRAPH") else "full"
    yield from graph_flags(values, values.stated.get("CUDA_GRAPH_SCOPE", usual))
    yield from narrow_flags(values)


def stated_flags(values: Variables, switches: Mapping[str, str], texts: Mapping[str, str]) -> Iterator[Stated]:
    """The switches that are on, and the values that request something."""
    for name, flag in switches.items():
        if values.on(name):
            yield flag, name, ()
    for name, flag in texts.items():
        if (text := values.text(name)).lower() not in NOTHING:
            yield flag, name, (text,)


def graph_flags(values: Variables, scope: str) -> Iterator[Stated]:
    """CUDA graphs (the YAML's ``enable_cuda_graph``, ``cuda_graph_scope``, ``external_cuda_graph``)."""
    if values.on("LAYER_CUDA_GRAPH"):
        yield "cuda-graph-impl", "LAYER_CUDA_GRAPH", ("transformer_engine",)
    elif values.on("MCORE_CUDA_GRAPH"):
        yield "cuda-graph-impl", "MCORE_CUDA_GRAPH", ("local",)
        yield "cuda-graph-scope", "CUDA_GRAPH_SCOPE", (scope,)


def narrow_flags(values: Variables) -> Iterator[Stated]:
    """GEMMs in 8 or 4 bits (pretrain.py:194-280)."""
    if values.on("FP4"):
        yield "fp4-format", "FP4", ("e2m1",)
        yield "fp4-recipe", "FP4_RECIPE", (values.text("FP4_RECIPE"),)
    elif values.on("FP8"):
        yield "fp8-format", "FP8", ("hybrid" if values.on("FP8_HYBRID") else "e4m3",)
        yield "fp8-recipe", "FP8_RECIPE", (values.text("FP8_RECIPE"),)


def amd_flags(values: Variables) -> Iterator[Stated]:
    """Flags of AMD's harness: GEMMs in FP8 of delayed scaling, weights in FP8 (train.py:118-165)."""
    tp, pp, cp = values.number("TP", 1), values.number("PP", 1), values.number("CP", 1)
    yield "nproc-per-node", "GPUS_PER_NODE", (str(values.number("GPUS_PER_NODE", 8)),)
    yield "nnodes", "NNODES", (str(values.number("NNODES", 1)),)
    yield "tensor-model-parallel-size", "TP", (str(tp),)
    yield "pipeline-model-parallel-size", "PP", (str(pp),)
    yield "context-parallel-size", "CP", (str(cp),)
    yield "micro-batch-size", "MBS", (str(values.number("MBS")),)
    yield "global-batch-size", "GBS", (str(values.number("GBS")),)
    yield "use-distributed-optimizer", "FP8_PARAMS", ()
    yield "fp8-format", "FP8_PARAMS", ("hybrid",)
    yield "fp8-recipe", "FP8_PARAMS", ("delayed",)
    if values.on("FP8_PARAMS"):
        yield "fp8-param-gather", "FP8_PARAMS", ()
    if values.on("TP_COMM_OVERLAP") and tp > 1:
        yield "tp-comm-overlap", "TP_COMM_OVERLAP", ()
