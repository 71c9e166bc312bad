"""A parallel strategy and the rules of the framework that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.adapters import FROZEN, Adapters
from taylor.register.frameworks import DEFAULT_FRAMEWORK, LOSS_FILLED, LOSS_TRAFFIC, Framework
from taylor.register.layers import LayerSpec
from taylor.register.narrow_products import NarrowProducts

_HALF_BYTES = 2

GRAPHED_MIXER, GRAPHED_ROUTER, GRAPHED_EXPERTS = "mixer", "router", "experts"
"""Parts of a layer whose operations a CUDA graph can start; the shared experts go with the router."""

ENGINE_RING, GATHERED_RING, PASSED_RING = "transformer engine", "torch, gathered", "torch, passed on"
"""Rings of context ranks: transformer engine's; torch's, where every rank gathers the keys and values of all, and where
ranks pass them on (torch 2.13 torch/distributed/tensor/experimental/_context_parallel/_attention.py,
``_AllGatherRotater``, the default, and ``_AllToAllRotater``)."""

GEMM_AN_EXPERT, ONE_KERNEL, MODULE_AN_EXPERT = "GEMM an expert", "one kernel", "module an expert"
"""Ways in which a rank's routed experts run: one module starts a GEMM for each (transformer engine's
``GroupedLinear``); one kernel multiplies the rows of all (Ascend/MindSpeed 5d65370f mindspeed/ops/gmm.py,
``npu_gmm``); a module each, one after the other (Megatron-LM d98e8a64 megatron/core/transformer/moe/experts.py:1409,
``SequentialMLP``)."""


@dataclass(frozen=True, order=True)
class Strategy:
    """Degrees by which the work is split over the ranks.

    Parameters
    ----------
    dp, tp, pp : int
        Data, tensor and pipeline parallel degrees.
    ep, cp : int
        Expert and context parallel degrees. EP reuses ranks that DP, TP and CP count already, so it is no
        factor of the world size; CP is one.
    op : int
        Ways in which optimizer states (or, under FSDP, everything) are split among the replicas of
        a parameter: 1 = not split, `dp * cp` = fully.
    sp : bool
        Sequence parallel: the norms' activations are split over TP.
    vpp : int
        Virtual stages of a stage.
    mbs : int
        Samples a micro-batch.
    micro_batches : int
        Micro-batches a step and data-parallel rank; batch = dp · mbs · micro_batches.
    ulysses : int
        Context ranks among which attention heads are exchanged, where a search chooses them: 1 = none, a ring; `cp` =
        all; between = both ways at once. 0: as the job's rules have it (`TrainingRules.ulysses_degree`).
    """

    dp: int
    tp: int
    pp: int
    ep: int = 1
    cp: int = 1
    op: int = 1
    sp: bool = True
    vpp: int = 1
    mbs: int = 1
    micro_batches: int = 1
    ulysses: int = 0

    @property
    def world_size(self) -> int:
        """Ranks used."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> int:
        """Samples a step."""
        return self.dp * self.mbs * self.micro_batches

    @property
    def name(self) -> str:
        """Short name, as files carry it: ``DP16_TP4_PP16_EP8``."""
        return f"DP{self.dp}_TP{self.tp}_PP{self.pp}_EP{self.ep}"

    def degrees(self) -> dict[str, Any]:
        """Return every degree by its name; `ulysses` where it is stated."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "ulysses" or self.ulysses}

    def replace(self, **changes: Any) -> Strategy:
        """A copy with some degrees changed."""
        return replace(self, **changes)

    def __repr__(self) -> str:
        stated = ((one.name, getattr(self, one.name)) for one in fields(self) if getattr(self, one.name) != one.default)
        return f"Strategy({', '.join(f'{name}={value}' for name, value in stated)})"


@dataclass(frozen=True)
class TrainingRules:
    """Settings of framework and file outside the strategy that memory and time depend on.

    Parameters
    ----------
    framework : Framework
        The record of what the framework itself settles: memory, schedules, legality.
    seq_length : int
        Tokens a sample.
    parallel_optimizer : bool
        Optimizer states are divided over replicas (MindFormers' parallel optimizer, Megatron's
        distributed optimizer, ZeRO-1).
    gradient_shard : bool
        Accumulated gradients are split too (``gradient_accumulation_shard``; ZeRO-2).
    parameter_shard : bool
        Parameters are split too (FSDP, ZeRO-3).
    param_bytes, compute_bytes : int
        Bytes of a stored and of a computing parameter (fp32 = 4, bf16 = 2).
    flash_attention : bool
        Attention scores are never stored.
    capacity_factor : float or None
        Limit of an expert's MoE tokens over the even number; None = dropless.
    imbalance : float
        Tokens of the busiest expert-parallel rank over the even number (dropless).
    expert_spread : float
        Standard deviation of the experts' tokens over their mean, where a learnt router spreads them: it lengthens a
        layer by the busiest rank's (`cost_model.time.uneven_routing`). 0: every expert gets as many.
    vocab_parallel : bool
        Embedding and head are split over TP (MindFormers: ``vocab_emb_dp: False`` splits the embedding).
    dropout : bool
        Dropout after attention scores, attention and MLP: its masks stay alive (GPT-2 and GPT-3 style).
    loss_chunks : int
        Pieces in which logits and loss are computed; only one piece's logits exist at a time.
    interleaved_parts : int
        Parts of a micro-batch whose work and communication a rank overlaps (``micro_batch_interleave_num``); `mbs`
        counts the samples of all. Each part's loss runs separately.
    loss_kernel : str or None
        Fused kernel of the cross entropy (`register.frameworks`: `COMPILED_LOSS`, `ENGINE_LOSS`, `FLASH_LOSS`); None:
        the framework's own steps (`StaticRules.cross_entropy`).
    compiled_loss : bool
        The framework's own loss is compiled (`StaticRules.compiled_logits_bytes`); the time that it saves is not
        counted.
    expert_tensor_parallel : bool or None
        TP splits every expert too, and EP comes from DP·CP. Off (``--expert-tensor-parallel-size 1``,
        ``--moe-tp-extend-ep``, MindFormers' ``use_gmm``), experts are whole and EP comes from DP·CP·TP. None:
        as the framework usually does it (`StateRules.usually_whole_experts`).
    expert_ways : int or None
        Ranks that split an expert where the file names another number than 1 or TP.
    overhead_mib : float or None
        Memory of runtime and communication buffers on a device, MiB; None = the framework's usual one.
    core_models : bool
        Models are built by the framework's core library, as all of Megatron's are and those of MindFormers'
        new generation (``mindformers/parallel_core``). Off: MindFormers' own classes of the old one.
    ep_includes_cp : bool
        EP takes all ranks of CP, and of TP where experts are whole (torchtitan before December 2025).
    overlap_p2p : bool
        Transfers of an interleaved pipeline run beside the computation (off: ``--no-overlap-p2p-communication``).
    ulysses_degree : int or None
        Context ranks among which attention heads are exchanged (Ulysses): 1 = none, keys and values go
        around a ring; None = all of them; between = both ways at once.
    ring : str
        Kernels of the ring: `ENGINE_RING`, `GATHERED_RING` or `PASSED_RING`.
    context_window : int
        Neighbouring ranks of a ring that form an inner one; keys and values of other windows go round an outer ring
        meanwhile (MindSpeed's ``--cp-window-size``, double ring attention). 1: one ring.
    context_levels : int or None
        The only CP with which the job starts: the product of the sizes of its nested context groups
        (``--hierarchical-context-parallel-sizes``); None where it has none.
    repeats_kv_heads : bool
        Key/value heads are repeated before Ulysses exchanges them where they are too few.
    selective : tuple of str or None
        Parts of a layer that selective recompute runs again (`register.frameworks`: `ATTENTION_CORE`, …); None:
        those that the framework takes by itself.
    saves_exchanges : bool
        Recompute by operator saves the results of the experts' exchanges (`saved_operators`). Off: they run again.
    fused_norms : bool
        A norm and the GEMM behind it are one kernel (transformer engine's ``LayerNormLinear``), except before
        latent attention and before experts: `NORMS` leaves it alone, and a block that is recomputed starts with it.
    fused_accumulation : bool or None
        GEMMs add a weight's gradient to the accumulated one; None: as the framework
        does (`StateRules.fused_accumulation`).
    inputs_on_host : bool
        The input of a layer that runs again whole waits in the host's memory; two are on the device at once
        (`HOST_BUFFERS`).
    whole_ends : bool
        Of fully sharded parameters: embedding and head stay gathered once they were.
    stay_gathered : bool
        Of fully sharded parameters: all stay gathered from their forward to the end of their backward, without a
        pipeline too (`StateRules.whole_in_pipeline`).
    accumulates_whole : bool
        Of fully sharded parameters: gradients are added up whole until a step's last micro-batch, without a pipeline
        too (accelerate's ``no_sync``).
    separate_pools : bool
        Of fully sharded parameters: what their collectives allocate lies in pools of their own streams, from which
        torch's allocator serves nothing else, and the job's memory is what it reserves (`cost_model.memory.reserved`).
        Off: it is what is allocated.
    expandable_segments : bool or None
        Where torch's allocator has one pool for all tensors of the job: the pool's one segment grows
        (``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``, `cost_model.memory.fragmentation`). None: another
        allocator, or pools of several streams.
    autocast : bool
        fp32 weights are cast where a GEMM takes them, and so are its inputs, one copy a GEMM; what runs again does not
        keep them (torch's autocast, `activations.cast_bytes`). Off: a copy of the weights in the compute type stays.
    wide_residual : bool or None
        The stream between layers, and so a recomputed layer's kept input, is fp32. False: the compute type. None: as
        the framework's record has it (`ActivationRules.fp32_residual`).
    optimizer : OptimizerStates
        States of the job's optimizer where they differ from the framework's usual ones.
    narrow : NarrowProducts or None
        The recipe by which the GEMMs of layers run in fewer than 16 bits; embedding, head, routers and norms stay.
    narrow_experts : bool
        Under `narrow`: the GEMMs of routed experts too. Off: they stay in the compute type.
    narrow_gather : bool
        Under `narrow`, of fully sharded parameters: dense weights are gathered in a byte an element, quantized already.
    narrow_weights : bool
        Under `narrow`: only its copies of the weights are stored. Off: they lie beside those in 16 bits.
    dispatch_by_node : bool
        A token goes to another node once, however many of its experts are there, and is passed on inside (DeepEP,
        HybridEP; Megatron-LM d98e8a64 megatron/core/transformer/moe/README.md:310), and to a rank once (DeepEP
        csrc/deep_ep.cpp, ``is_token_in_rank``). Off: a copy for each expert.
    gathers_tokens : bool
        Every rank of an expert group gets the tokens of all of them, and keeps those of its experts
        (``--moe-token-dispatcher-type allgather``). Off: only these are sent to it.
    overlap_experts : bool
        The experts' exchanges of one micro-batch run beside the computation of another's
        (``--overlap-moe-expert-parallel-comm``).
    overlap_inside : bool
        Under `overlap_experts`: in passes that run alone half of them run beside the same layer's shared experts and
        weight gradients (MindSpeed's ``--moe-fb-overlap``).
    overlap_tensor : bool
        Tensor-parallel transfers run beside the GEMMs that need them (``--tp-comm-overlap``). Off: a usual fraction of
        them is exposed.
    overlap_reduction : bool
        Gradients are reduced and weights gathered beside computation, in a framework that can. So are those of files
        that do not say so: nothing in Megatron runs beside them without ``--overlap-grad-reduce`` and
        ``--overlap-param-gather``, but published runs use both, and files restated from their tables omit them.
    overlap_shared : bool
        Shared experts run beside the exchanges (``--moe-shared-expert-overlap``).
    static_experts : bool
        Every expert computes as many rows as its capacity, for any number of tokens
        (``--moe-pad-expert-input-to-capacity``).
    sliced_experts : bool
        Experts take slices of their rows in sequence, and write theirs into one (Megatron before core_v0.9.0
        without ``--moe-grouped-gemm``). Off: one GEMM for all, or parts that autograd splits and joins at once.
    expert_gemms : str
        `GEMM_AN_EXPERT`, `ONE_KERNEL` or `MODULE_AN_EXPERT`; the host starts more or fewer operations by it.
    aligned_rows : bool
        The router gives every expert a number of rows that narrow GEMMs can take.
    engine_layers : bool
        Layers are transformer engine's: their GEMMs have a workspace beside torch's, and attention without a flash
        kernel makes its own mask.
    deterministic : bool
        Every operation repeats exactly (``--deterministic-mode``).
    rotated_apart : float
        Fraction of queries and keys that single operations rotate (``--no-rope-fusion``); 0: one kernel rotates them.
    packed_samples : float
        Samples of a pack whose queries and keys Megatron-LM rotates one sample after the other, on average; 0: all
        tokens at once. Megatron-LM 61f31145 megatron/core/models/common/embeddings/rope_utils.py:189-268, without a
        kernel for the rotation; from e4ba3a30 on (:208-313) single operations rotate a whole pack. Of published runs
        alone: no file states the samples of a pack.
    capped_logits : bool
        The logits pass through a tanh (``--output-logit-softcapping``), whose result its backward takes.
    window_masks : bool
        Every second layer makes a separate mask for its window, out of the whole one
        (``--interleave-sliding-window``).
    loads_masks : bool
        A dense mask of attention, a byte a pair of positions, comes with each micro-batch to the stages that hold the
        embedding and the head (`statics.mask_bytes`).
    logged_bytes : int
        Traffic of the step's log, bytes a parameter that a rank updates (``--log-params-norm``,
        ``--log-num-zeros-in-grad``).
    compiled : bool
        Element-wise operations are fused by a compiler (``compile.enable``) where the framework runs them one by one.
    graphed : tuple of str
        Parts of a layer whose operations a CUDA graph starts: `GRAPHED_MIXER`, `GRAPHED_ROUTER`, `GRAPHED_EXPERTS`.
    recompute_group : int
        Layers that full recompute takes together: it keeps the input of the first alone, and runs all of them again at
        once (Megatron's ``--recompute-method uniform --recompute-num-layers``).
    tensor_grid : (int, int) or None
        TP's ranks form a grid: ranks that split tokens and outputs, by ranks that split the hidden size
        (``--tp-2d --tp-x --tp-y``, `cost_model.time.tensor_grid`); what a layer keeps is split as under sequence
        parallel, which the strategy of such a job states. None: they form one group.
    pairs : bool
        A sample is a pair of answers, which train together, beside a frozen reference model that runs forward alone:
        DPO (MindSpeed-LLM c77308a1 mindspeed_llm/tasks/posttrain/dpo/dpo_model.py:55-110; dpo_trainer.py:363-370,
        ``wrap_with_ddp=False``: no gradients and no optimizer states).
    torch_scan : int or None
        Mamba-2's scan runs as single operations of torch, by chunks of this number of tokens (MindSpeed-LLM c77308a1
        mindspeed_llm/core/ssm/mamba_mixer.py:38 in place of Megatron's forward; ``--mamba-chunk-size``). None: the
        fused kernel of mamba_ssm.
    torch_indexer : (int, int) or None
        Heads of latent attention's indexer and their size, where single operations of torch score every pair of tokens
        (`cost_model.job.torch_indexer`; MindSpeed-LLM's ``--enable-dsa-indexer``). None: no indexer, or a fused kernel.
    trains_indexer : bool
        A loss of the indexer's own trains it (Megatron's ``--dsa-indexer-loss-coeff``); without one it only chooses.
    keys_by_head : bool
        Sparse latent attention makes keys and values for each head though the framework's usually works in the space
        of its latents (`ActivationRules.absorbs_latents`).
    adapters : Adapters or None
        Low-rank adapters train, and everything else is frozen (`cost_model.job.adapters`). None: all parameters train
        that `frozen` and the layers' own (`LayerSpec.frozen`) leave.
    frozen : tuple of str
        Parts whose weights are frozen though others train whole: ``EMBEDDING``, ``HEAD``, ``BESIDE`` and ``ROUTERS`` of
        `register.adapters`.
    mlp_tiles : int
        Parts of the sequence over which a dense MLP runs one after the other, keeping its input alone, and again in its
        backward (DeepSpeed's ``TiledMLP``, Arctic long sequence training, arXiv:2506.13996 §3.3); 0: it runs whole.
    """

    framework: Framework = DEFAULT_FRAMEWORK
    seq_length: int = 4096
    parallel_optimizer: bool = True
    gradient_shard: bool = False
    parameter_shard: bool = False
    param_bytes: int = 4
    compute_bytes: int = 2
    flash_attention: bool = True
    capacity_factor: float | None = None
    imbalance: float = 1.0
    expert_spread: float = 0.0
    vocab_parallel: bool = True
    dropout: bool = False
    loss_chunks: int = 1
    interleaved_parts: int = 1
    loss_kernel: str | None = None
    compiled_loss: bool = False
    expert_tensor_parallel: bool | None = None
    expert_ways: int | None = None
    overhead_mib: float | None = None
    core_models: bool = True
    ep_includes_cp: bool = False
    overlap_p2p: bool = True
    ulysses_degree: int | None = 1
    ring: str = ENGINE_RING
    context_window: int = 1
    context_levels: int | None = None
    repeats_kv_heads: bool = False
    selective: tuple[str, ...] | None = None
    saves_exchanges: bool = True
    fused_norms: bool = False
    fused_accumulation: bool | None = None
    inputs_on_host: bool = False
    whole_ends: bool = False
    stay_gathered: bool = False
    accumulates_whole: bool = False
    separate_pools: bool = False
    expandable_segments: bool | None = None
    autocast: bool = False
    wide_residual: bool | None = None
    optimizer: OptimizerStates = OptimizerStates()
    narrow: NarrowProducts | None = None
    narrow_weights: bool = False
    narrow_experts: bool = True
    narrow_gather: bool = False
    dispatch_by_node: bool = False
    gathers_tokens: bool = False
    overlap_experts: bool = False
    overlap_inside: bool = False
    overlap_shared: bool = False
    overlap_tensor: bool = False
    overlap_reduction: bool = True
    static_experts: bool = False
    sliced_experts: bool = False
    expert_gemms: str = GEMM_AN_EXPERT
    aligned_rows: bool = False
    engine_layers: bool = False
    deterministic: bool = False
    rotated_apart: float = 0.0
    packed_samples: float = 0.0
    capped_logits: bool = False
    window_masks: bool = False
    loads_masks: bool = False
    logged_bytes: int = 0
    compiled: bool = False
    graphed: tuple[str, ...] = ()
    recompute_group: int = 1
    tensor_grid: tuple[int, int] | None = None
    pairs: bool = False
    torch_scan: int | None = None
    torch_indexer: tuple[int, int] | None = None
    trains_indexer: bool = False
    keys_by_head: bool = False
    adapters: Adapters | None = None
    frozen: tuple[str, ...] = ()
    mlp_tiles: int = 0

    @property
    def sequences(self) -> int:
        """Sequences of a sample that train together."""
        return 2 if self.pairs else 1

    @property
    def forward_models(self) -> int:
        """Models that run forward: the trained one, and a reference model of the same sizes under `pairs`."""
        return 2 if self.pairs else 1

    @property
    def adds_in_products(self) -> bool:
        """Return whether no weight's gradient is made beside the accumulated one; never so for sharded parameters."""
        states = self.framework.states
        fused = states.fused_accumulation if self.fused_accumulation is None else self.fused_accumulation
        return fused and not self.parameter_shard

    @property
    def unfused_elements(self) -> bool:
        """Return whether norms, rotary embedding and activation functions run as single operations."""
        return self.framework.single_operations and not self.compiled

    @property
    def pads_expert_rows(self) -> bool:
        """Return whether an expert's rows are copied to a number that narrow GEMMs can take, and their results back.

        Megatron-LM d98e8a64 megatron/core/transformer/moe/experts.py:899, 1043. No copy where the router chooses such
        numbers (``--moe-router-padding-for-quantization``) or the capacity does.
        """
        return self.of_experts.narrow is not None and not (self.static_experts or self.aligned_rows)

    @property
    def of_experts(self) -> TrainingRules:
        """The rules by which routed experts compute."""
        return self if self.narrow is None or self.narrow_experts else self.replace(narrow=None)

    @property
    def saved_narrow(self) -> NarrowProducts | None:
        """`narrow`, where inputs are saved in its type; frozen matrices save none, and adapters compute in 16 bits."""
        narrow = self.narrow
        return None if narrow is None or narrow.saves_wide or self.adapters is not None else narrow

    @property
    def saved_input_bytes(self) -> float:
        """Bytes an element of an input that a GEMM alone saves."""
        return self.compute_bytes if self.saved_narrow is None else self.saved_narrow.input_bytes

    def input_bytes_of(self, *targets: str) -> float:
        """Bytes an element of an input that the GEMMs of some matrices alone save, for gradients of weights.

        Parameters
        ----------
        targets : str
            The matrices: names of `register.adapters.TARGETS`. Frozen ones save none without an adapter; under dropout
            an adapter keeps a copy of its own (`cost_model.job.adapters`).
        """
        if self.adapters is None:
            return self.saved_input_bytes
        return self.compute_bytes if self.adapters.reaches(*targets) and not self.adapters.dropout else 0.0

    @property
    def trained(self) -> TrainingRules:
        """The rules by which adapters are stored and updated: in 16 bits, beside nothing frozen."""
        return self.replace(adapters=None, narrow=None, narrow_weights=False)

    def saves(self, end: str) -> bool:
        """Return whether a copy of embedding or head trains beside adapters (`Adapters.saved`)."""
        return self.adapters is not None and end in self.adapters.saved

    def at(self, end: str) -> TrainingRules:
        """The rules of the weights that compute at an end of the model: a copy that trains, where there is one."""
        return self.trained if self.saves(end) else self.of_part(end)

    def trains(self, end: str) -> bool:
        """Return whether the weights that compute at an end of the model have gradients and optimizer states."""
        return self.at(end).adapters is None

    def of_part(self, part: str) -> TrainingRules:
        """The rules of a part of the model, which may be `frozen`."""
        return self._frozen if part in self.frozen else self

    def within(self, layers: Sequence[LayerSpec]) -> TrainingRules:
        """The rules of a layer, or of an MTP module's: those of frozen matrices without adapters where it is frozen."""
        return self._frozen if layers[0].frozen else self

    @property
    def _frozen(self) -> TrainingRules:
        """The rules by which weights are stored and computed that do not train: in the compute type."""
        if self.adapters is not None:
            return self
        return self.replace(adapters=FROZEN, autocast=False)

    @property
    def operand_bytes(self) -> float:
        """Bytes an element of a GEMM's operands."""
        return self.compute_bytes if self.narrow is None else self.narrow.input_bytes

    @property
    def loss_traffic(self) -> int:
        """Bytes a logit that the loss moves, forward and backward, with the filling before writes."""
        kernel = self.loss_kernel or self.framework.statics.cross_entropy
        return LOSS_TRAFFIC[kernel] + (LOSS_FILLED.get(kernel, 0) if self.deterministic else 0)

    @property
    def precision(self) -> str:
        """Number format of GEMMs, except those that are `narrow`: a name of `register.device.PRECISIONS`.

        All of 16 bits count as bf16; torch multiplies fp32 as fp32 unless a setting selects TF32.
        """
        return "bf16" if self.compute_bytes == _HALF_BYTES else "fp32"

    @property
    def gemm_precision(self) -> str:
        """Number format of the layers' GEMMs: `narrow`'s where the job has one."""
        return self.precision if self.narrow is None else self.narrow.precision

    @property
    def whole_experts(self) -> bool:
        """Return whether TP keeps routed experts whole and its ranks count for EP."""
        if self.expert_tensor_parallel is None:
            return self.framework.states.usually_whole_experts
        return not self.expert_tensor_parallel

    def experts_over(self, tp: Any) -> Any:
        """Ranks that every routed expert is divided over under a tensor parallel degree, a scalar or an array [n]."""
        if self.whole_experts:
            return np.ones_like(tp)
        return tp if self.expert_ways is None else np.full_like(tp, self.expert_ways)

    @property
    def recomputed_parts(self) -> tuple[str, ...]:
        """Parts of a layer that selective recompute runs again."""
        return self.framework.activations.selective if self.selective is None else self.selective

    @property
    def keeps_master(self) -> bool:
        """Return whether the optimizer holds an fp32 weight: its own copy, or the stored weight itself."""
        states = self.framework.states
        return self.param_bytes >= states.master_bytes or not states.follows_weight_type

    @property
    def gradient_bytes(self) -> int:
        """Bytes a parameter of an accumulated gradient."""
        if self.optimizer.gradient_bytes is not None:
            return self.optimizer.gradient_bytes
        return self.framework.states.gradient_bytes if self.keeps_master else self.param_bytes

    @property
    def master_bytes(self) -> int:
        """Bytes a parameter of the weight that the optimizer updates."""
        if self.optimizer.master_bytes is not None:
            return self.optimizer.master_bytes
        return self.framework.states.master_bytes if self.keeps_master else self.param_bytes

    @property
    def moments_bytes(self) -> int:
        """Bytes a parameter of the moments of a layer's matrices."""
        given = self.optimizer.moments_bytes
        return self.framework.states.moments_bytes if given is None else given

    @property
    def other_moments_bytes(self) -> int:
        """Bytes a parameter of all other moments."""
        given = self.optimizer.other_moments_bytes
        return self.moments_bytes if given is None else given

    @property
    def optimizer_bytes(self) -> int:
        """Bytes a parameter that the optimizer reads and writes for a matrix: moments and its weight."""
        return self.moments_bytes + self.master_bytes

    def gathered(self) -> TrainingRules:
        """Rules of fully sharded parameters while they are whole: weights as GEMMs take them, gradients as reduced.

        Copies in a narrow type that lie beside 16-bit weights are never sharded, and so no part of what is gathered.
        """
        reduced = self.optimizer.reduced_bytes
        optimizer = self.optimizer if reduced is None else replace(self.optimizer, gradient_bytes=reduced)
        narrow = self.narrow if self.narrow_weights else None
        if self.narrow is not None and self.narrow_gather:
            narrow = replace(self.narrow, weight_bytes=self.narrow.input_bytes)
        return self.replace(
            parameter_shard=False,
            gradient_shard=False,
            param_bytes=self.compute_bytes,
            narrow=narrow,
            narrow_weights=narrow is not None,
            optimizer=optimizer,
        )

    def least_micro_batches(self, schedule: ScheduleSpec, stages: Any) -> Any:
        """The fewest micro-batches with which the framework starts a schedule; int or int array [n] as the stages are.

        A V-shaped one may need one more than its order (`Framework.filled_schedules`).
        """
        filled = self.core_models and schedule.name in self.framework.filled_schedules
        return schedule.traits.least_micro_batches(stages) + filled

    def replace(self, **changes: Any) -> TrainingRules:
        """A copy with some rules changed."""
        return replace(self, **changes)
