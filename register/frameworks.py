"""Training frameworks: what each one does with memory, schedules and ranks, stated once.

No other module knows a framework by name: a formula, a rule or a dry-run asks the record of the
job's framework for the fact that it needs. Records are plain data, so that they travel to other processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ATTENTION_CORE, NORMS, LATENT_UP = "attention's core", "norms", "latent attention's up-projections"
DENSE_MLP, DENSE_ACTIVATION = "dense MLP", "dense MLP's activation function"
EXPERT_BLOCK, EXPERT_ACTIVATION, SHARED_EXPERTS = "experts", "experts' activation function", "shared experts"
SHARED_ACTIVATION = "shared experts' activation function"
EXPERT_ROWS = "rows that experts are sent"
UNSAVED_OPERATORS = "all but the attention kernel and every second product"
"""Parts of a layer that selective recompute runs again, see `ActivationRules.selective`.

`ATTENTION_CORE` is scores, softmax and context, or the fused kernel in their place; `LATENT_UP` ends with the
rotated queries, keys and values; `EXPERT_BLOCK` is router, routed and shared experts; `EXPERT_ACTIVATION` is of the
routed ones alone; `EXPERT_ROWS` are permuted and sent a second time.
"""


@dataclass(frozen=True)
class StateRules:
    """Weights, gradients and optimizer states: their bytes, and over which ranks they are split.

    Which of them are split among data-parallel replicas is the job's choice (`TrainingRules`); these are the
    framework's rules. The bytes are mixed precision with Adam, 16 to 18 a parameter with the weight itself: Rajbhandari
    et al. 2020 (ZeRO, arXiv:1910.02054 §3.1), Megatron-LM's ``docs/distrib_optimizer`` (6 + 12/d with bf16 parameters
    and fp32 gradients), and for MindFormers a published dry-run fit of DeepSeek-V3 (6 + 12/DP for what TP splits).

    Parameters
    ----------
    tp_ranks_are_replicas : bool
        TP ranks count as replicas of a parameter that TP does not split, so that optimizer states of norms
        and routers are split over DP·CP·TP. Off: over DP·CP alone.
    splits_latent_projections : bool
        The down projections of latent attention are split over TP. Off: every TP rank holds and multiplies
        them whole.
    splits_embedding_in_pipeline : bool
        With several stages the token embedding is always split over TP: MindFormers sets
        ``vocab_emb_dp`` to False there (r1.5.0 mindformers/core/parallel_config.py:65). The published fit of
        its DeepSeek-V3 agrees: the first stage holds a quarter of the table at TP 4.
    whole_uneven_vocabulary : bool
        A vocabulary that TP does not divide is not split: embedding, head and logits are whole on every rank
        (MindFormers' old classes: r1.5.0 mindformers/models/llama/llama_layer.py:153 and llama.py:556, 1.3 to
        master). Off: it is padded, or split unevenly.
    casts_embedding_rows : bool
        The embedding reads its rows from the fp32 table and casts the result, so it needs no copy of the
        table in the compute type.
    usually_whole_experts : bool
        Where the job does not say (`TrainingRules.expert_tensor_parallel`): TP never splits a routed expert, and
        its ranks count for EP.
    whole_in_pipeline : bool
        Of fully sharded parameters (FSDP): in a pipeline they stay gathered from their first forward to the
        end of the step, and gradients are added up unsharded until the last micro-batch. torchtitan's
        default ``fsdp_reshard_after_forward`` keeps them gathered; torch's pipeline stages turn resharding and
        reduction off for all but the last backward.
    copies_transfers : bool
        Of fully sharded parameters: what was gathered is copied out of one buffer, and gradients are copied into one,
        beside nothing else (torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:489, 603).
    fused_accumulation : bool
        GEMMs add a weight's gradient to the accumulated one as they run (Megatron's
        ``gradient_accumulation_fusion``). Off: they make a gradient in the compute type first.
    follows_weight_type : bool
        Parameters stored in 16 bits have no fp32 copy in the optimizer, and their gradients are accumulated in 16
        bits. MindFormers: its optimizers clone the two moments alone, in fp32 (mindformers/core/optim/optim.py and
        adamw.py of 1.3, 1.5 and master), its wrapper clones the accumulated gradients from the weights
        (mindformers/wrapper/wrapper.py: ``weights.clone(prefix="accu_grads")``). Where the optimizer is split the
        weight is stored split too and gathered for the step.
    keeps_weights_whole : bool
        Stored fp32 weights stay whole where the optimizer is split: it updates its part of them in place (Megatron-LM,
        ``docs/user-guide/features/dist_optimizer.md``: 8 + 8/d bytes for fp32 parameters). Off: they are the master
        weights, split with the rest of the optimizer.
    groups_replicas : bool
        A partial degree makes equal groups of replicas, of routed experts too: instances of Megatron's distributed
        optimizer (``--num-distributed-optimizer-instances``; main, megatron/core/parallel_state.py:1448), and
        the replicated dimension of torchtitan's HSDP (v0.2.2 torchtitan/distributed/parallel_dims.py). Off: every
        parameter is split this number of ways, as far as it has replicas (MindFormers'
        ``optimizer_weight_shard_size``).
    one_pass_gradients_split : bool
        With one stage and one micro-batch nothing accumulates gradients: they are split like the optimizer as they
        are made. Off: a buffer for all of them exists in any case.
    gathers_blocks : bool
        Of fully sharded parameters: a block drops its weights behind its forward, and gathers them, with those of
        the block before it, when the gradient of its output is there (torch 2.11
        torch/distributed/fsdp/_fully_shard/_fsdp_state.py, ``_pre_backward``). Off: it is not known, and two layers'
        are counted at the loss too.
    fresh_gradients : bool
        A step begins without gradients: its ``zero_grad`` drops them (torchtitan v0.2.2 torchtitan/train.py:550,
        torch's ``set_to_none``), and each comes with its own backward. So none is there at the loss of the first
        micro-batch; and where a pipeline adds them up whole, their shards come with the reduction at its end. Off: they
        have a buffer from the start.
    gathers_embedding_gradient : bool
        Of an embedding whose rows TP splits, every rank makes a gradient with all rows (v0.2.2
        torchtitan/models/llama3/infra/parallelize.py, ``RowwiseParallel``: DTensor splits it no sooner than FSDP
        reduces it, torch 2.11 torch/distributed/fsdp/_fully_shard/_fsdp_param.py:681 and ``_get_grad_inner_tensor``).
        In a pipeline they are added up so.
    gradient_bytes : int
        Bytes a parameter of an accumulated gradient (fp32), but see `follows_weight_type`.
    master_bytes : int
        Bytes a parameter of the optimizer's copy of a weight (fp32), but see `follows_weight_type`.
    moments_bytes : int
        Bytes a parameter of Adam's two moments together (fp32).
    takes_narrow_states : bool
        A split optimizer takes moments and accumulated gradients in 16 bits where the job asks for it (Megatron-LM
        d98e8a64 megatron/training/arguments.py:3053, 3675).
    """

    tp_ranks_are_replicas: bool = False
    splits_latent_projections: bool = False
    splits_embedding_in_pipeline: bool = False
    whole_uneven_vocabulary: bool = False
    casts_embedding_rows: bool = False
    usually_whole_experts: bool = False
    whole_in_pipeline: bool = False
    copies_transfers: bool = False
    fused_accumulation: bool = False
    follows_weight_type: bool = False
    keeps_weights_whole: bool = False
    groups_replicas: bool = False
    one_pass_gradients_split: bool = False
    gathers_blocks: bool = False
    fresh_gradients: bool = False
    gathers_embedding_gradient: bool = False
    gradient_bytes: int = 4
    master_bytes: int = 4
    moments_bytes: int = 8
    takes_narrow_states: bool = False


@dataclass(frozen=True)
class ActivationRules:
    """Tensors of a layer that its operators keep for the backward pass.

    MindFormers' are read off a published fit of DeepSeek-V3 at TP4 + SP, s = 4096 (MiB a layer and
    micro-batch: dense 479, selective 400; MoE 765 either way; 30 recomputed). Megatron's follow Korthikanti
    et al. 2022 (arXiv:2205.05198 §4), torchtitan's the modules that it runs.

    Parameters
    ----------
    fp32_residual : bool
        The stream between the layers, and so a recomputed layer's kept input, is fp32, where the job does not say
        (`TrainingRules.wide_residual`). Off: the compute type.
    fp32_norm_input : bool
        A norm casts its input to fp32 and keeps the cast. Off: it keeps the input in the type that it has.
    plain_modules : bool
        Norms and experts are single operations. Norms, those of queries and keys too, keep the fp32 cast of their input
        and, where their weight trains, the normalized values beside their result; experts keep the gate's SiLU, and
        their result before it is weighted (huggingface/transformers v5.24.0
        src/transformers/models/qwen3/modeling_qwen3.py, ``Qwen3RMSNorm.forward``; src/transformers/integrations/moe.py,
        ``grouped_mm_experts_forward``). Off: one kernel keeps its input.
    joined_qkv : bool
        One GEMM gives Q, K and V: V is a view of it, so that all of it stays beside the rotated Q and K.
        Off: three GEMMs; only V of their results outlives the rotation.
    keeps_unrotated_queries : bool
        Of latent attention: the queries stay as they were before their rotation too.
    attention_statistics : int
        fp32 values that the fused attention kernel keeps for a token and query head: two statistics of eight
        in Ascend's FlashAttentionScore ([b, a, s, 8] each), else one log-sum-exp.
    saves_gathered_inputs : bool
        Under sequence parallelism a block gathers its input over TP once and its GEMMs save it whole;
        router and shared experts work on all of it too. Off: GEMMs save their shard and gather again.
    fused_swiglu : bool
        A gated MLP is one joined GEMM and one kernel that keeps the GEMM's result alone. Off: gate and up are separate
        GEMMs, and the gate's SiLU stays beside gate, up and their product.
    unfused_experts : bool
        Routed experts keep gate and up both joined and split, and their result before it is weighted.
    absorbs_latents : bool
        Latent attention whose keys an indexer chooses works in the space of its latents
        (`cost_model.job.sparse_latent`). Off: it makes keys and values for each head, and the choice is a mask
        (transformers 5.23.0 models/glm_moe_dsa/modeling_glm_moe_dsa.py:357-366, and deepseek_v32:390-399).
    selective : tuple of str
        Parts that selective recompute runs again where the job names nothing else (`TrainingRules.recomputed_parts`).
        Megatron: ``core_attn`` (core 0.12 and later, megatron/core/transformer/transformer_config.py,
        ``__post_init__``; before, all that there was). MindFormers: the GEMM of a dense MLP and its SiLU
        (master mindformers/models/utils.py:173). torchtitan: with ``selective_ac_option = "op"`` all but the results
        of its saved operators (v0.2.2 torchtitan/distributed/activation_checkpoint.py:104-124).
    """

    fp32_residual: bool = False
    fp32_norm_input: bool = False
    plain_modules: bool = False
    joined_qkv: bool = False
    keeps_unrotated_queries: bool = False
    attention_statistics: int = 1
    saves_gathered_inputs: bool = False
    fused_swiglu: bool = False
    unfused_experts: bool = False
    absorbs_latents: bool = False
    selective: tuple[str, ...] = (ATTENTION_CORE,)


IN_PLACE, STEP_BY_STEP, OF_TORCH = "in place", "step by step", "of torch"
"""Ways to compute the cross entropy over logits [n, v], see `StaticRules.cross_entropy`."""
COMPILED_LOSS, ENGINE_LOSS, FLASH_LOSS = "compiled", "transformer engine", "flash attention"
"""Fused kernels of it. Megatron-LM d98e8a64 megatron/core/fusions/fused_cross_entropy.py:13-88: the in-place steps
under torch.compile, which turns writes into an argument into a new tensor, so one more in fp32 is alive (its
functional test of the flag: one on H100 and GB200, two under the torch of its LTS container). TransformerEngine
02965d2e transformer_engine/pytorch/triton/cross_entropy.py:188-239, 331-372: the gradient is written over the
logits. Flash attention's, of logits over a temperature, in place too (verl-project/verl 1dda039b
verl/workers/engine/fsdp/transformer_impl.py:1353-1400, verl/utils/torch_functional.py:99-140): the quotient is a second
tensor, and its gradient one beside it."""

LOSS_TRAFFIC = {IN_PLACE: 52, STEP_BY_STEP: 42, OF_TORCH: 42, COMPILED_LOSS: 28, ENGINE_LOSS: 10, FLASH_LOSS: 18}
"""Bytes a logit that the loss moves, forward and backward, by way or kernel.

Megatron-LM d98e8a64 megatron/core/tensor_parallel/cross_entropy.py:20-117, operation by operation: cast to fp32 (6),
maximum (4), subtraction (8), exponential (8), sum (4), division (8); back, times the loss's gradient (8), cast (6). The
compiled one is a kernel each for cast with maximum (6), subtraction to sum (8), division (8), the gradient (6).
Transformer engine's reads the logits for maximum and sum, and again to write the gradient over them, which is scaled in
backward (TransformerEngine 02965d2e transformer_engine/pytorch/triton/cross_entropy.py:188-239, 331-372). Flash
attention's does so between a division and its backward (8 more). The others are not counted: logits read, an fp32 copy
written and read twice, and twice that in backward.
"""
LOSS_FILLED = {IN_PLACE: 6}
"""The part of these that a deterministic job writes once more (`cost_model.time.determinism`): both casts' results."""


@dataclass(frozen=True)
class StaticRules:
    """Memory of a stage apart from its layers' states and activations.

    Parameters
    ----------
    cross_entropy : str
        `IN_PLACE`: one fp32 copy of the logits becomes softmax and then gradient (Megatron's
        vocabulary-parallel cross entropy). `STEP_BY_STEP`: every step makes a new tensor.
        `OF_TORCH`: ``torch.nn.functional.cross_entropy`` of the logits in fp32.
    logits_bytes : int
        Bytes a logit at the loss's worst moment, by that way: bf16 logits 2, fp32 cast 4, softmax 4,
        gradient 4; `IN_PLACE` bf16 logits or their gradient 2, the fp32 copy 4.
    drops_logits : bool
        Without a pipeline the logits in the compute type are dropped before the loss's backward, its worst moment
        (torchtitan v0.2.2 torchtitan/train.py:541, ``del pred``). Off: they stay.
    compiled_logits_bytes : int or None
        As `logits_bytes`, where the loss is compiled and the framework's own is `OF_TORCH`: the logits and their
        gradient, and between them one kernel that makes neither cast nor softmax. Measured on an H200
        (docs/torch_dryrun.md).
    kept_logits_bytes : int
        Memory that the loss keeps for its backward, bytes a logit, where several parts of a micro-batch may be at it
        (`TrainingRules.interleaved_parts`): one runs, the others wait with that. MindFormers': logarithms of the
        softmax and one-hot labels, in fp32 (r1.5.0 mindformers/core/loss/loss.py:285-291, `_NLLLoss.bprop`; master
        mindformers/parallel_core/training_graph/loss_func.py:133). mindspore.nn.MicroBatchInterleaved adds up the
        parts' losses before any backward.
    split_logits_bytes : int or None
        The same where TP splits the vocabulary, if the loss is then computed otherwise. torch's ``loss_parallel``
        (PyTorch torch/distributed/tensor/parallel/loss.py, ``_nll_loss_and_log_softmax_backward``) has in backward,
        each in fp32, the logarithms of the softmax, the targets' gradient, an exponential and their sum beside the
        logits.
    counted_as_fitted : bool
        Static memory is split up as a published fit of MindFormers' DeepSeek-V3 has it: a set of logits
        for the head and one for every MTP module at once, with the memory to rebuild one layer beside them,
        and the gradients of that layer's backward within `overhead_mib`. Off: as the dry-run on fake
        tensors finds it, where loss and backward follow each other.
    transfer_buffers : int
        Tensors of a stage boundary that the pipeline's transfers hold: an activation and a gradient,
        double-buffered (4), or the gradients received and sent last (2; a received activation is its
        layer's input); see `buffers_every_micro_batch`.
    buffers_every_micro_batch : bool
        The transfers own an input and a gradient for every micro-batch from the start of the step, and keep
        what they sent until its backward (`torch.distributed.pipelining`). Less the inputs that are in use,
        with the outputs kept, `transfer_buffers` then counts for every micro-batch and interleave.
    overhead_mib : float
        Runtime and communication buffers where neither file nor device gives a figure, MiB. MindFormers: the rest of a
        published fit's 2382 MiB middle stage after buffers and workspace. The other two: CUDA context and NCCL channels
        as commonly seen, about 1-1.5 GiB.
    """

    cross_entropy: str
    logits_bytes: int
    counted_as_fitted: bool
    transfer_buffers: int
    buffers_every_micro_batch: bool
    overhead_mib: float
    split_logits_bytes: int | None = None
    kept_logits_bytes: int = 0
    drops_logits: bool = False
    compiled_logits_bytes: int | None = None


_BETWEEN_CHECKS = re.compile(r"; (?![^(]*\))")
"""A semicolon outside brackets, between the checks that a rule's source names."""


@dataclass(frozen=True)
class Framework:
    """One training framework.

    Parameters
    ----------
    name : str
        As tables, messages and users' own rules write it.
    schedules : tuple of str
        Schedules (`pipeline.schedule.SCHEDULES`) that may be chosen for a job of this framework, in the
        order in which they are tried. A job whose file asks for another one still runs it: seqpipe needs a number of
        sequence splits that only the file states, and MindSpeed's ``dualpipev`` a separate flag.
    interleaved_schedule : str
        The one of `schedules` that it runs with several virtual stages where a file asks for no other.
    legality : tuple of str
        Rules (`nd_search.legality.LEGALITY_RULES`) that it asks of a strategy in addition to those of all frameworks.
    states : StateRules
    activations : ActivationRules
    statics : StaticRules
    starts_experts_singly : bool
        Python starts every operation as the step runs, a GEMM an expert (transformer engine's ``GroupedLinear``).
        Off: the step is compiled, or it is not known how many operations there are.
    single_operations : bool
        Norms, rotary embedding and activation functions run one operation after the other unless they are compiled,
        norms and rotary embedding in fp32 (torchtitan v0.2.2 torchtitan/models/llama3/model/model.py
        ``apply_rotary_emb``, ``FeedForward``, and torch's ``nn.RMSNorm``). Off: in one kernel each.
    dispatches_shards : bool
        Each rank of TP sends the tokens of its own part of the sequence to the experts, which gather them where TP
        splits these; only shared experts need all tokens on every rank (Megatron-LM d98e8a64
        megatron/core/transformer/moe/token_dispatcher.py, moe/shared_experts.py).
    overlaps_reduction : bool
        Gradients are reduced bucket by bucket beside the backward that makes the others, and weights gathered beside
        the forward. Off: it is not known.
    step_ms : float
        Time of every step outside its operations in layers, ms: data, optimizer's and log's calls, reading results.
        Megatron's is fitted to 16 steps of its small tests that the host bounds (``python -m benchmarks.short_steps``).
    torch_allocator : bool
        Tensors come from torch's caching allocator, whose counters and the card's own differ
        (`cost_model.memory.reserved`).
    repositories : tuple of str
        Beginning of the sources of its rules.
    searched : tuple of str or None
        Degrees and sizes that its files can state, by `Strategy`'s names: a search keeps the others. None: all.
    estimated_as : str
        Framework whose formulas it takes, so that its figures have the errors recorded for that one; empty: its own.
    keeps_choices_in_chunk : bool
        Layers that reuse an earlier layer's choice of tokens (sparse attention) lie on the chunk of that layer. Off: it
        is not known.
    filled_schedules : tuple of str
        V-shaped schedules that it starts with 2 * pp micro-batches or more, one more than their order needs
        (rule ``micro-batches-fill-zero-bubble``); of MindFormers its core models alone.
    """

    name: str
    schedules: tuple[str, ...]
    interleaved_schedule: str
    legality: tuple[str, ...]
    states: StateRules
    activations: ActivationRules
    statics: StaticRules
    starts_experts_singly: bool = False
    single_operations: bool = False
    dispatches_shards: bool = False
    overlaps_reduction: bool = False
    step_ms: float = 0.0
    torch_allocator: bool = True
    repositories: tuple[str, ...] = ()
    keeps_choices_in_chunk: bool = False
    filled_schedules: tuple[str, ...] = ()
    searched: tuple[str, ...] | None = None
    estimated_as: str = ""

    @property
    def error_class(self) -> str:
        """Name of the software whose recorded errors its figures have."""
        return self.estimated_as or self.name

    def own_checks(self, source: str) -> str:
        """Return the checks of this framework's repositories among those that a rule stands for."""
        checks = _BETWEEN_CHECKS.split(source)
        own = [check for check in checks if check.startswith(self.repositories)]
        return "; ".join(own or checks)


MINDFORMERS = Framework(
    name="mindformers",
    torch_allocator=False,
    repositories=("MindFormers", "MindSpore"),
    filled_schedules=("zero_bubble_v",),
    schedules=("1f1b", "gpipe", "interleaved", "zero_bubble_v"),
    interleaved_schedule="interleaved",
    legality=(
        "kv-groups-by-tp",
        "hidden-by-tp",
        "ffn-by-tp",
        "vocab-by-tp",
        "ep-in-dp-tp",
        "ep-in-dp-tp-cp",
        "ep-in-dp-cp",
        "moe-sp-with-tp",
        "sequence-by-cp-tp",
        "context-needs-flash",
        "heads-by-ulysses",
        "kv-groups-by-ulysses",
        "ulysses-in-context",
        "micro-batches-fill-zero-bubble",
        "micro-batches-fill-interleaving",
    ),
    states=StateRules(
        tp_ranks_are_replicas=True,
        splits_latent_projections=True,
        splits_embedding_in_pipeline=True,
        whole_uneven_vocabulary=True,
        casts_embedding_rows=True,
        usually_whole_experts=True,
        follows_weight_type=True,
        one_pass_gradients_split=True,
    ),
    activations=ActivationRules(
        fp32_residual=True,
        fp32_norm_input=True,
        joined_qkv=True,
        keeps_unrotated_queries=True,
        attention_statistics=16,
        unfused_experts=True,
        selective=(DENSE_ACTIVATION,),
    ),
    statics=StaticRules(
        cross_entropy=STEP_BY_STEP,
        logits_bytes=14,
        kept_logits_bytes=8,
        counted_as_fitted=True,
        transfer_buffers=4,
        buffers_every_micro_batch=False,
        overhead_mib=1536.0,
    ),
)

MEGATRON = Framework(
    name="megatron",
    repositories=("Megatron-LM", "MindSpeed"),
    dispatches_shards=True,
    overlaps_reduction=True,
    # Megatron-LM d98e8a64 megatron/core/models/gpt/experimental_attention_variant_module_specs.py:395-431 (core 0.19 to
    # main, `_validate_dsa_index_share_pipeline_split`).
    keeps_choices_in_chunk=True,
    schedules=("1f1b", "gpipe", "megatron-interleaved"),
    interleaved_schedule="megatron-interleaved",
    legality=(
        "kv-groups-or-copies",
        "mamba-by-tp-cp",
        "linear-heads-by-tp-cp",
        "mtp-projection-by-tp",
        "ffn-by-tp",
        "expert-ffn-by-tp",
        "ep-in-dp-cp",
        "ep-in-dp-tp-cp",
        "moe-sp-with-tp",
        "sequence-by-2cp-tp",
        "heads-by-ulysses",
        "kv-groups-by-ulysses",
        "ulysses-in-context",
        "ring-of-two",
        "context-levels",
        "interleaving-without-overlap",
        "micro-batches-in-rounds",
        "micro-batches-fill-zero-bubble",
    ),
    states=StateRules(
        fused_accumulation=True,
        keeps_weights_whole=True,
        groups_replicas=True,
        takes_narrow_states=True,
    ),
    activations=ActivationRules(
        joined_qkv=True,
        fused_swiglu=True,
        absorbs_latents=True,
    ),
    statics=StaticRules(
        cross_entropy=IN_PLACE,
        logits_bytes=6,
        counted_as_fitted=False,
        transfer_buffers=2,
        buffers_every_micro_batch=False,
        overhead_mib=1536.0,
    ),
    starts_experts_singly=True,
    step_ms=40.0,
)
"""Megatron-LM and MindSpeed."""

TORCHTITAN = Framework(
    name="torchtitan",
    repositories=("torchtitan", "torch "),
    filled_schedules=("dualpipev",),
    schedules=("1f1b", "gpipe", "torch-interleaved", "zbv", "interleaved-zb", "dualpipev"),
    interleaved_schedule="torch-interleaved",
    legality=(
        "kv-groups-by-tp",
        "ffn-by-tp",
        "ep-in-shards",
        "ep-holds-cp",
        "op-holds-cp",
        "plain-replicas-alone",
        "sequence-by-2cp-tp-always",
        "micro-batches-fill-zero-bubble",
        "micro-batches-fill-1f1b",
        "micro-batches-in-even-rounds",
    ),
    states=StateRules(
        whole_in_pipeline=True,
        copies_transfers=True,
        groups_replicas=True,
        gathers_blocks=True,
        fresh_gradients=True,
        gathers_embedding_gradient=True,
    ),
    activations=ActivationRules(
        saves_gathered_inputs=True,
        selective=(UNSAVED_OPERATORS,),
    ),
    statics=StaticRules(
        cross_entropy=OF_TORCH,
        logits_bytes=14,
        counted_as_fitted=False,
        transfer_buffers=2,
        buffers_every_micro_batch=True,
        overhead_mib=1024.0,
        split_logits_bytes=18,
        drops_logits=True,
        compiled_logits_bytes=4,
    ),
    single_operations=True,
)

PADDLENLP = Framework(
    name="paddlenlp",
    torch_allocator=False,
    repositories=("Paddle", "PaddleNLP"),
    schedules=("1f1b", "gpipe", "megatron-interleaved"),
    interleaved_schedule="megatron-interleaved",
    legality=(
        "heads-by-ulysses",
        "kv-groups-by-ulysses",
        "ulysses-in-context",
        "micro-batches-in-rounds",
    ),
    states=StateRules(),
    activations=ActivationRules(
        joined_qkv=True,
    ),
    statics=StaticRules(
        cross_entropy=STEP_BY_STEP,
        logits_bytes=14,
        counted_as_fitted=False,
        transfer_buffers=2,
        buffers_every_micro_batch=False,
        overhead_mib=1024.0,
    ),
)
"""PaddleNLP's trainer with bf16 weights and fp32 gradients (``amp_master_grad``): 18 bytes a parameter, as
paddle-galvatron b0bdd07 paddlenlp/experimental/galvatron/cost_model/memory_cost_model.py counts them."""

FRAMEWORKS = {each.name: each for each in (MINDFORMERS, MEGATRON, TORCHTITAN, PADDLENLP)}
"""Every known framework by its name."""

DEFAULT_FRAMEWORK = MINDFORMERS
"""Assumed where rules are made without a file that names its framework."""

UNDER_GALVATRON = MEGATRON
"""Framework whose rules the analytical model takes for Galvatron: its runtime uses Megatron's parallel layers."""

WRITTEN_FROM_MODELS = ("megatron", "mindspeed", "mindformers", "torchtitan")
"""Names for ``--framework`` of those whose files are made from a model alone (`parsers.new_files.NEW_FILES`)."""
