"""Launches by Megatron-LM's and MindSpeed-LLM's flags, read to a `TrainingConfig`."""

from __future__ import annotations

import math
import re

from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.job.strategy import (
    GEMM_AN_EXPERT,
    GRAPHED_EXPERTS,
    GRAPHED_MIXER,
    GRAPHED_ROUTER,
    MODULE_AN_EXPERT,
    ONE_KERNEL,
    Strategy,
    TrainingRules,
)
from taylor.cost_model.time.uneven_routing import USUAL_SPREAD
from taylor.parsers.megatron.adapters import read_adapters
from taylor.parsers.megatron.context import HYBRID, ULYSSES, algorithm_of
from taylor.parsers.megatron.expert_overlap import EXPERT_OVERLAP, FB_OVERLAP, misfit_expert_overlap
from taylor.parsers.megatron.hybrid import read_hybrid
from taylor.parsers.megatron.kinds import (
    DENSE_FIRST,
    dense_first,
    layer_positions,
    starts_with,
)
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.layout import LayoutProblem
from taylor.parsers.megatron.mindspeed import is_mindspeed
from taylor.parsers.megatron.misfits import misfit_mtp_recompute, misfit_positions, misfit_reused_choices
from taylor.parsers.megatron.model import read_model
from taylor.parsers.megatron.model_file import MODEL_FILE
from taylor.parsers.megatron.offload import read_moved
from taylor.parsers.megatron.optimizer import (
    CPU_OFFLOAD,
    MEGATRON_FSDP,
    SWAPPED,
    misfit_host_optimizer,
    optimizer_degree,
    read_optimizer,
    read_sharding,
    usual_recipe,
)
from taylor.parsers.megatron.own_plan import (
    LAYOUT,
    PENDING,
    ZERO_BUBBLE,
    counted_layers,
    misfit_layout,
    read_plan,
    read_schedule,
    swapped,
)
from taylor.parsers.megatron.precision import read_narrow
from taylor.parsers.megatron.ranks import EXTEND, Ranks, read_ranks, read_tensor_grid
from taylor.parsers.megatron.recompute import (
    activation_notes,
    kept_modules,
    read_group,
    read_modules,
    recomputes_in_bubble,
    recomputes_mtp,
)
from taylor.parsers.megatron.start_flags import earlier_branch, read_stated_flags
from taylor.parsers.megatron.swap import moves_attention
from taylor.parsers.megatron.unmodelled import EXPERTS, MINDSPEED, PLAIN_NORMS, ROUTER_CASTS, SCORES, read_unmodelled
from taylor.parsers.text.allocator import expandable_segments
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import Misfit, TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register import frameworks

DOCUMENT_MASKS = "dataloader-inter-document-masking"
"""A flag whose mask the memory knows, and whose other cost no figure has."""
_LOGGED_BYTES = {"log-params-norm": 4, "log-num-zeros-in-grad": 6}
"""Bytes a parameter of a rank's shard that the log of a step moves.

Megatron-LM d98e8a64 megatron/training/utils/common_utils.py:80 (`calc_params_l2_norm` reads the fp32 weights);
megatron/core/optimizer/clip_grads.py (`count_zeros_fp32`: torch compares the fp32 gradients with zero, and sums the
results, PyTorch aten/src/ATen/native/TensorAdvancedIndexing.cpp, `count_nonzero_cuda`).
"""


def config_from_launch(launch: Launch) -> TrainingConfig:
    """Read a launch by its flags.

    Raises
    ------
    InputError
        When a flag that matters is missing or wrong.
    """
    flags = launch.flags
    notes = list(launch.notes)
    model = launch.model or read_model(flags, notes)
    schedule, interleaves = read_schedule(flags)
    strategy, ranks = _read_strategy(flags, interleaves, notes)
    hybrid = read_hybrid(flags)
    laid_out = flags.has(LAYOUT) or (hybrid is not None and hybrid.bordered)
    if counted_layers(flags) < strategy.pp * interleaves and not laid_out:
        raise flags.error(
            "pipeline-model-parallel-size",
            f"asks for {strategy.pp * interleaves} chunks and there are {layer_positions(flags)} layers",
            strategy.pp,
        )
    first = dense_first(flags)
    if model.moe is not None and not starts_with(first, layer_positions(flags), strategy.pp):
        notes.append(f"--{DENSE_FIRST} {first} fills the first stage: MindSpeed-LLM 2.1.0 and later do not start so")
    plan: PipelinePlan | None = None
    try:
        plan = read_plan(flags, model, strategy, schedule)
    except LayoutProblem as problem:
        notes.append(f"the file settles no plan: {problem}")
    branch = earlier_branch(launch.text) if is_mindspeed(flags) else None
    if branch is not None:
        notes.append(f"its comments name MindSpeed {branch}: start-up checks of later releases are not applied")
    by_module, moved = None, None if is_mindspeed(flags) else read_moved(flags)
    if plan is not None and moves_attention(flags):
        plan, by_module, moved = swapped(flags, model, strategy, schedule, plan)
    if not schedule.fits_rounds(strategy.pp, strategy.micro_batches):
        notes.append(f"its pipeline {schedule.rounds_wanted(strategy.pp)}, found {strategy.micro_batches}")
    if flags.has(ZERO_BUBBLE) and flags.text(PENDING, default="auto") == "auto":
        notes.append(f"--{PENDING} auto uses all free memory: planned as ZB-H1 (-schedule zb-h2 plans the other)")
    if schedule.ahead:
        notes.append(
            f"--{EXPERT_OVERLAP}: a merged forward and backward are predicted one after the other. Their waits for "
            "each other are not counted (1 to 4 % of a step in trials)"
        )
    rules = _read_rules(flags, notes, usual_recipe(launch.text), one_copy=launch.one_copy).replace(frozen=launch.frozen)
    if not rules.parameter_shard:
        rules = rules.replace(expandable_segments=expandable_segments(launch.environment))
    if (kept := kept_modules(flags)) and any(kind.linear is not None for kind in model.kinds):
        notes.append(f"--recompute-modules {' '.join(kept)}: counted as kept")
    notes += activation_notes(flags, plan)
    # In Megatron-LM's own order: its arguments, the groups of ranks, the configuration of its layers, the first step.
    misfit = misfit_positions(flags) or misfit_host_optimizer(flags) or ranks.misfit
    misfit = misfit or _misfit_offloading(flags, strategy)
    misfit = misfit or misfit_layout(flags, model) or misfit_expert_overlap(flags, strategy)
    if plan is not None and rules.framework.keeps_choices_in_chunk:
        misfit = misfit or misfit_reused_choices(plan, model, v_shape=schedule.v_shape)
    misfit = misfit or misfit_mtp_recompute(flags, model, mindspeed=is_mindspeed(flags))
    facts = {
        EXPERTS: model.moe is not None,
        SCORES: not rules.flash_attention,
        PLAIN_NORMS: _plain_norms(flags),
        ROUTER_CASTS: model.moe is not None and is_mindspeed(flags),
        MINDSPEED: is_mindspeed(flags),
    }
    unmodelled = read_unmodelled(flags, [fact for fact, present in facts.items() if present], launch.table())
    return TrainingConfig(
        path=launch.file,
        launcher=launch.launcher,
        model=model,
        strategy=strategy,
        rules=rules,
        schedule=schedule,
        plan=plan,
        recompute_group=read_group(flags),
        recomputes_in_bubble=recomputes_in_bubble(flags, strategy),
        recomputes_mtp=bool(model.mtp_layers) and recomputes_mtp(flags),
        mtp_counted=False,
        names_chunks=flags.has(LAYOUT),
        by_module=by_module,
        moved=moved,
        linked=tuple(f"--{name}" for name in (CPU_OFFLOAD, SWAPPED) if flags.has(name)),
        misfits=() if misfit is None else (misfit,),
        open_ranks=ranks.left_open,
        batch_follows_ranks=not flags.has("global-batch-size"),
        length=TrainingLength(steps=flags.known_count("train-iters"), samples=flags.known_count("train-samples")),
        notes=tuple(notes),
        flags=read_stated_flags(flags, mindspeed=is_mindspeed(flags), earlier=branch is not None),
        unmodelled=tuple(flag for flag in unmodelled if launch.tower is None or flag.name != f"--{MODEL_FILE}"),
        tower=launch.tower,
    )


def _misfit_offloading(flags: Flags, strategy: Strategy) -> Misfit | None:
    """Jobs that offload layers' activations to the host and do not start.

    Source: Megatron-LM core_v0.16.0 megatron/core/transformer/transformer_config.py:1137-1152 (to main, d98e8a64
    :1884-1899): fewer layers than the model's, one stage, no granularity of recompute.
    """
    name = "cpu-offloading-num-layers"
    count = flags.integer(name, default=0, low=0, high=MAX_SIZE)
    if count == 0:
        return None
    if count >= layer_positions(flags):
        problem, cure = (
            f"moves all of the {layer_positions(flags)} layers' activations",
            "leave one layer's on the device",
        )
    elif strategy.pp > 1:
        problem, cure = f"does not go with {strategy.pp} pipeline stages", "ask for one stage, or take the flag out"
    elif flags.has("recompute-granularity", "recompute-activations"):
        problem, cure = "does not go with recompute", "take one of both out"
    else:
        return None
    return Misfit(f"--{name}", count, problem, cure)


def _read_strategy(flags: Flags, interleaves: int, notes: list[str]) -> tuple[Strategy, Ranks]:
    tp = flags.integer("tensor-model-parallel-size", default=1)
    pp = flags.integer("pipeline-model-parallel-size", default=1, high=4096)
    cp = flags.integer("context-parallel-size", default=1)
    experts = flags.integer("num-experts", default=1, high=MAX_SIZE)
    ep = flags.integer("expert-model-parallel-size", default=1)
    if flags.has(EXTEND) and tp > 1:
        ep *= tp
        notes.append(f"--{EXTEND} spreads the experts over TP's ranks too: expert parallel counts as {ep}")
    if experts % ep:
        notes.append(f"expert parallel {ep} does not divide the {experts} experts")
    ranks = read_ranks(flags, tp, pp, cp, ep)
    if ranks.left_open is not None:
        notes.append(ranks.left_open.note)
    dp = ranks.dp
    mbs = flags.integer("micro-batch-size", default=1)
    batch = flags.integer("global-batch-size", default=mbs * dp, high=2**31)
    if batch % (mbs * dp):
        raise flags.error(
            "global-batch-size", f"must be a multiple of micro-batch-size · data parallel = {mbs} · {dp}", batch
        )
    if flags.has("rampup-batch-size"):
        notes.append("--rampup-batch-size: the final global batch size is taken")
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        ep=ep,
        cp=cp,
        op=optimizer_degree(flags, dp * cp),
        sp=flags.has("sequence-parallel") or (read_tensor_grid(flags) is not None and tp > 1),
        vpp=interleaves,
        mbs=mbs,
        micro_batches=batch // (mbs * dp),
    )
    return strategy, ranks


def _read_rules(flags: Flags, notes: list[str], recipe: str, *, one_copy: bool) -> TrainingRules:
    half = flags.has("bf16", "fp16")
    modules = read_modules(flags)
    sharding, narrow = read_sharding(flags), read_narrow(flags, notes, mindspeed=is_mindspeed(flags), one_copy=one_copy)
    return TrainingRules(
        framework=frameworks.MEGATRON,
        seq_length=flags.integer("seq-length", high=MAX_SIZE),
        **sharding._asdict(),
        whole_ends=sharding.parameter_shard and flags.has(*MEGATRON_FSDP),
        stay_gathered=flags.has("torch-fsdp2-no-reshard-after-forward"),
        param_bytes=2 if half else 4,
        compute_bytes=2 if half else 4,
        flash_attention=_keeps_no_scores(flags),
        loss_kernel=_loss_kernel(flags),
        capacity_factor=flags.number("moe-expert-capacity-factor", default=None) or None,
        expert_spread=_expert_spread(flags, notes),
        expert_tensor_parallel=not flags.has(EXTEND)
        and flags.integer("expert-tensor-parallel-size", default=0, low=0) != 1,
        expert_ways=_expert_ways(flags),
        overlap_p2p=not flags.has("no-overlap-p2p-communication"),
        ulysses_degree=_ulysses_degree(flags),
        context_window=flags.integer("cp-window-size", default=1, high=MAX_SIZE),
        context_levels=_context_levels(flags),
        # MindSpeed-LLM 1.0.0 mindspeed_llm/training/arguments.py:155 (``store_true`` with default True, to master
        # c77308a1 features_manager/context_parallel/ulysses_context_parallel.py:16): it repeats them without the flag.
        repeats_kv_heads=is_mindspeed(flags),
        selective=modules,
        fused_norms=_implementation(flags) == "transformer_engine",
        fused_accumulation=False if flags.has("no-gradient-accumulation-fusion") else None,
        optimizer=read_optimizer(flags, notes, recipe),
        narrow=narrow.recipe,
        narrow_weights=narrow.weights,
        dispatch_by_node=_dispatches_by_node(flags),
        gathers_tokens=_gathers_tokens(flags),
        overlap_experts=flags.has(EXPERT_OVERLAP, FB_OVERLAP),
        overlap_inside=flags.has(FB_OVERLAP),
        overlap_tensor=flags.has("tp-comm-overlap"),
        overlap_shared=flags.has("moe-shared-expert-overlap"),
        static_experts=_is_static(flags),
        sliced_experts=_slices_experts(flags),
        expert_gemms=_expert_gemms(flags),
        aligned_rows=flags.has("moe-router-padding-for-quantization", "moe-router-padding-for-fp8"),
        engine_layers=_implementation(flags) == "transformer_engine",
        deterministic=flags.has("deterministic-mode"),
        rotated_apart=flags.number("rotary-percent", default=1.0) if _rotates_apart(flags) else 0.0,
        capped_logits=flags.has("output-logit-softcapping"),
        window_masks=_makes_window_masks(flags),
        loads_masks=_loads_masks(flags),
        logged_bytes=sum(moved for flag, moved in _LOGGED_BYTES.items() if flags.has(flag)),
        graphed=_graphed(flags),
        tensor_grid=read_tensor_grid(flags),
        pairs=flags.text("stage", default="sft") == "dpo",
        torch_scan=flags.integer("mamba-chunk-size", default=256, high=MAX_SIZE) if is_mindspeed(flags) else None,
        torch_indexer=_torch_indexer(flags),
        trains_indexer=flags.number("dsa-indexer-loss-coeff", default=0.0) > 0,
        keys_by_head=_makes_keys_by_head(flags),
        adapters=read_adapters(flags),
        dropout=max(flags.number("hidden-dropout", default=0.1), flags.number("attention-dropout", default=0.1)) > 0,
    )


def _expert_spread(flags: Flags, notes: list[str]) -> float:
    """`TrainingRules.expert_spread`: the usual one where a learnt router spreads tokens and none are dropped.

    Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:833 routes at random with
    ``--moe-router-force-load-balancing``. Under MindSpeed, whose routers balance devices too, even routing is kept:
    no published measurement says more.
    """
    even = flags.has("moe-router-force-load-balancing") or is_mindspeed(flags)
    drops = flags.number("moe-expert-capacity-factor", default=None)
    split = flags.integer("expert-model-parallel-size", default=1) > 1
    if even or drops or not split or not flags.has("num-experts"):
        return 0.0
    notes.append(
        f"experts' tokens differ by {USUAL_SPREAD:.0%} (assumed: a learnt router on real text); "
        "--moe-router-force-load-balancing: by nothing"
    )
    return USUAL_SPREAD


def _makes_keys_by_head(flags: Flags) -> bool:
    """`TrainingRules.keys_by_head`: MindSpeed's sparse attention without ``--use-dsa-absorb``.

    Source: MindSpeed master mindspeed/features_manager/transformer/experimental_attention_variant/dsa.py:17.
    """
    sparse = flags.text("experimental-attention-variant", default=None) == "dsa"
    return sparse and is_mindspeed(flags) and not flags.has("use-dsa-absorb")


def _torch_indexer(flags: Flags) -> tuple[int, int] | None:
    """`TrainingRules.torch_indexer`.

    Source: MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/transformer/multi_latent_attention/
    dsa_indexer_feature.py:12-36, 101-105: either flag of a fused kernel turns both on. DeepSeek-V4 (``--kv-compress``)
    scores compressed keys, which is not counted.
    """
    fused = flags.has("use-fused-lightning-indexer", "use-fused-lightning-indexer-loss", "kv-compress")
    if not flags.has("enable-dsa-indexer") or fused:
        return None
    heads: int = flags.integer("index-n-heads", default=64, high=MAX_SIZE)
    width: int = flags.integer("index-head-dim", default=128, high=MAX_SIZE)
    return heads, width


def _rotates_apart(flags: Flags) -> bool:
    """Return whether rotary embedding runs operation by operation.

    Megatron-LM has one kernel unless a flag forbids it; MindSpeed replaces the function, and calls its kernel where a
    flag says so (MindSpeed be07955f mindspeed/core/models/common/embeddings/rotary_pos_embedding.py:55-74, 1.0.RC3).
    """
    if flags.text("position-embedding-type", default="rope") in ("alibi", "none"):
        return False
    return not flags.has("use-fused-rotary-pos-emb") if is_mindspeed(flags) else flags.has("no-rope-fusion")


def _makes_window_masks(flags: Flags) -> bool:
    """Return whether every second layer makes a mask of its own.

    MindSpeed-LLM 1.0.RC3 modellink/core/transformer/transformer_layer.py:95-103 (and v2.1.0, master
    mindspeed_llm/tasks/models/transformer/transformer_layer.py:77-85): out of the data's own, which they bring where
    they are padded on the left (modellink/arguments.py:554-559). Attention reads the mask and skips nothing for it.
    """
    padded_left = flags.text("tokenizer-padding-side", default="right") == "left"
    return padded_left and flags.has("interleave-sliding-window")


def _loads_masks(flags: Flags) -> bool:
    """`TrainingRules.loads_masks`.

    Megatron-LM core_v0.16.0 megatron/training/arguments.py:2505 (0.9 to main; main's inter-document masking turns it
    off: d98e8a64 megatron/training/arguments.py:1340). MindSpeed turns it off for causal masks and keeps one of its own
    for the whole job, of 2048 x 2048 under flash attention (MindSpeed 028de58c
    mindspeed/features_manager/transformer/flash_attention/generate_mask_feature.py:31, generate_mask.py:59;
    MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/megatron_basic/training_basic.py:23-33).
    """
    return not is_mindspeed(flags) and not flags.has("no-create-attention-mask-in-dataloader", DOCUMENT_MASKS)


def _loss_kernel(flags: Flags) -> str | None:
    if not flags.has("cross-entropy-loss-fusion"):
        return None
    return (
        frameworks.ENGINE_LOSS
        if flags.text("cross-entropy-fusion-impl", default="native") == "te"
        else frameworks.COMPILED_LOSS
    )


def _dispatches_by_node(flags: Flags) -> bool:
    """Return whether the experts' tokens go to another node once.

    Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:891-904, 1743-1756: the flex dispatcher with
    DeepEP, its usual backend, or HybridEP.
    """
    deepep = flags.has("moe-enable-deepep")
    backend = flags.text("moe-flex-dispatcher-backend", default="deepep")
    flex = flags.text("moe-token-dispatcher-type", default="allgather") == "flex"
    return flex and (deepep or backend in ("deepep", "hybridep"))


def _gathers_tokens(flags: Flags) -> bool:
    """Return whether every rank of the experts gets all tokens: Megatron's default, which no capacity went with.

    Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py (``moe_token_dispatcher_type``); core_v0.7.0
    megatron/core/transformer/transformer_config.py:331.
    """
    usual = "alltoall" if flags.number("moe-expert-capacity-factor", default=0) else "allgather"
    return bool(flags.text("moe-token-dispatcher-type", default=usual) == "allgather")


def _slices_experts(flags: Flags) -> bool:
    """Return whether experts run one after the other as Megatron did before core_v0.9.0.

    The sign is ``--use-mc2``, MindSpeed-LLM's name until August 2025 (05a33677), when its Megatron was core_r0.8.0 or
    older; MindSpeed replaces the loop and slices as that did (v2.0.0_core_r0.8.0
    mindspeed/core/transformer/moe/experts.py `sequential_mlp_forward`).
    """
    return flags.has("use-mc2") and not flags.has("moe-grouped-gemm")


def _expert_gemms(flags: Flags) -> str:
    """`TrainingRules.expert_gemms`."""
    if not flags.has("moe-grouped-gemm"):
        return MODULE_AN_EXPERT
    return ONE_KERNEL if is_mindspeed(flags) else GEMM_AN_EXPERT


def _is_static(flags: Flags) -> bool:
    """Return whether every expert computes its capacity's rows (Megatron-LM d98e8a64 transformer_config.py:1862)."""
    return flags.has("moe-pad-expert-input-to-capacity") and bool(flags.number("moe-expert-capacity-factor", default=0))


def _graphed(flags: Flags) -> tuple[str, ...]:
    """Parts of a layer that CUDA graphs hold.

    Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:1075-1105, moe/README.md:514 and
    megatron/training/arguments.py:614-638: experts are in one where their rows are known beforehand, or where one graph
    holds the whole step.
    """
    old = {"enable-cuda-graph": "local", "external-cuda-graph": "transformer_engine"}
    switched = next((kind for name, kind in old.items() if flags.has(name)), "none")
    kind = flags.text("cuda-graph-impl", default=switched)
    words = [*flags.words("cuda-graph-modules"), *flags.words("cuda-graph-scope")]
    modules = {part for word in words for part in word.split(",")}
    if kind == "full_iteration" or (kind == "local" and "full_iteration" in modules):
        return GRAPHED_MIXER, GRAPHED_ROUTER, GRAPHED_EXPERTS
    if kind not in ("local", "transformer_engine"):
        return ()
    whole = not modules or "full" in modules
    graphed_parts = (
        (GRAPHED_MIXER, whole or bool(modules & {"attn", "mamba"})),
        (GRAPHED_ROUTER, whole or "moe_router" in modules),
    )
    experts = (GRAPHED_EXPERTS, _is_static(flags) and (whole or "moe" in modules))
    return tuple(part for part, graphed in (*graphed_parts, experts) if graphed)


def _expert_ways(flags: Flags) -> int | None:
    """``--expert-tensor-parallel-size`` where it is neither 1 nor TP; None else."""
    ways: int = flags.integer("expert-tensor-parallel-size", default=0, low=0)
    return ways if ways > 1 and ways != flags.integer("tensor-model-parallel-size", default=1) else None


def _keeps_no_scores(flags: Flags) -> bool:
    """Return whether attention runs in a kernel that keeps no scores.

    Megatron-LM's layers are transformer engine's unless the script asks for others (the default of
    ``--transformer-impl`` since core 0.6, megatron/training/arguments.py; ``--attention-backend auto`` since
    core 0.11, megatron/core/transformer/transformer_config.py), which takes flash or fused attention wherever
    it can. MindSpeed-LLM's are the local ones (1.0.RC1 to 2.3, mindspeed_llm/training/arguments.py:
    ``default='local'``), where ``--use-flash-attn`` alone chooses the kernel.
    """
    usual = "local" if is_mindspeed(flags) or _implementation(flags) == "local" else "auto"
    backend = flags.text("attention-backend", default=usual)
    return flags.has("use-flash-attn") or backend in ("auto", "flash", "fused")


def _implementation(flags: Flags) -> str:
    return str(flags.text("transformer-impl", default="local" if is_mindspeed(flags) else "transformer_engine"))


def _plain_norms(flags: Flags) -> bool:
    """Return whether the norms are RMSNorms without a kernel of their own.

    LayerNorm has one everywhere, RMSNorm in transformer engine and with MindSpeed's flag (MindSpeed 2.3.0_core_r0.12.1
    mindspeed/core/fusions/rms_norm.py:30).
    """
    plain = _implementation(flags) == "local" and not flags.has("use-fused-rmsnorm")
    return plain and flags.text("normalization", default="LayerNorm") == "RMSNorm"


def _ulysses_degree(flags: Flags) -> int | None:
    """`TrainingRules.ulysses_degree`.

    Sources: MindSpeed-LLM 2.3.0 mindspeed_llm/training/arguments.py:208-210, 279-306; Megatron-LM core_v0.16.0
    megatron/core/extensions/transformer_engine.py:1240-1252: ``a2a`` exchanges heads among all ranks of the context
    group, ``a2a+p2p`` among those of the first of its nested groups. Both are chosen layer by layer; one layer that
    cannot split its heads keeps the job from starting.
    """
    algorithm = algorithm_of(flags)
    if algorithm == ULYSSES:
        return None
    if algorithm == HYBRID:
        return flags.integer("ulysses-degree-in-cp", default=1)
    kinds = flags.words("cp-comm-type")
    if "a2a" in kinds:
        return None
    sizes = _context_sizes(flags)
    if "a2a+p2p" not in kinds or not sizes:
        return 1
    return sizes[0] if math.prod(sizes[1:]) > 1 else None


def _context_sizes(flags: Flags) -> list[int]:
    """``--hierarchical-context-parallel-sizes``, the innermost group first; nothing where it is not given."""
    name = "hierarchical-context-parallel-sizes"
    found = flags.words(name)
    if not all(re.fullmatch(r"[1-9]\d{0,6}", word) for word in found):
        raise flags.error(name, "must be whole numbers", " ".join(found), "write the sizes with blanks between them")
    return [int(word) for word in found]


def _context_levels(flags: Flags) -> int | None:
    """`TrainingRules.context_levels` (Megatron-LM core_v0.16.0 megatron/training/arguments.py:405)."""
    sizes = _context_sizes(flags)
    return math.prod(sizes) if sizes else None
