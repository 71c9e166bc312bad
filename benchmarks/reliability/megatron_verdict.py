"""Check whether Megatron-LM itself starts a strategy: its parser, its checks, its groups, its layers, on no device.

Run are, of megatron-core 0.16.1 and of the launcher of the same release, the argument parser, ``validate_args``, the
configuration's own checks, ``initialize_model_parallel``, the calculator of micro-batches, the model of the first and
last stage at the sizes of the job, the cut of the sequence, and the loop over micro-batches with steps that do nothing.
Stand-ins: process groups (they have a size and a rank), transformer engine's attention, which is not installed,
and a GPU.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import types
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from benchmarks.reliability.outside import folder_of, package
from benchmarks.reliability.published_orders import megatron_core_order

RELEASE = "core_v0.16.1"
STAND_IN_FLAGS = (
    "--transformer-impl", "local", "--no-rope-fusion", "--no-gradient-accumulation-fusion", "--no-persist-layer-norm",
    "--no-masked-softmax-fusion", "--tokenizer-type", "NullTokenizer", "--train-iters", "10", "--lr", "1e-4",
    "--min-lr", "1e-5",
)  # fmt: skip
"""Settings that affect no strategy: no transformer engine, a tokenizer without a file, any schedule of rates."""
REFUSALS = (AssertionError, ValueError, RuntimeError, ZeroDivisionError)
"""Exceptions of their checks; anything else is a fault of the stand-ins."""


class _Group:
    """A process group that has a size and a rank and sends nothing."""

    def __init__(self, size: int, rank: int = 0):
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


@cache
def _arguments() -> Any:
    """Their megatron/training/arguments.py."""
    package("megatron.core.transformer")
    training, utils = types.ModuleType("megatron.training"), types.ModuleType("megatron.training.utils")
    training.__path__ = [str(folder_of("Megatron-LM", RELEASE, "megatron/training"))]
    utils.__dict__.update(
        get_device_arch_version=lambda: 9, print_rank_0=lambda *words: None, warn_rank_0=lambda *words: None,
        update_use_dist_ckpt=lambda args: setattr(args, "use_dist_ckpt", True), is_rank0=lambda: False,
    )  # fmt: skip
    sys.modules.update({"megatron.training": training, "megatron.training.utils": utils})
    return package("megatron.training.arguments")


_REPLACED = ("is_initialized", "get_world_size", "get_rank", "get_process_group_ranks")


@contextlib.contextmanager
def _world(size: int) -> Iterator[None]:
    """torch.distributed that says it is initialized with `world` ranks; groups are made of nothing."""
    torch = package("torch")
    state = package("megatron.core.parallel_state")
    saved = {name: getattr(torch.distributed, name) for name in _REPLACED}
    create, stream, current = state.create_group, torch.cuda.Stream, torch.cuda.current_device
    torch.cuda.Stream, torch.cuda.current_device = (lambda *words, **rest: None), (lambda: torch.device("cpu"))
    torch.distributed.is_initialized = lambda: True
    torch.distributed.get_world_size = lambda group=None: size if group is None else group.size()
    torch.distributed.get_rank = lambda group=None: 0 if group is None else group.rank()
    torch.distributed.get_process_group_ranks = lambda group: list(range(group.size()))
    state.create_group = lambda ranks=None, *words, **rest: _Group(len(ranks or range(size)))
    environment = dict(os.environ)
    os.environ.update(WORLD_SIZE=str(size), RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
    try:
        yield
    finally:
        state.destroy_model_parallel()
        state.create_group, torch.cuda.Stream, torch.cuda.current_device = create, stream, current
        for name, function in saved.items():
            setattr(torch.distributed, name, function)
        os.environ.clear()
        os.environ.update(environment)


def groups_refusal(world: int, tp: int, pp: int, cp: int, ep: int, expert_tp: int | None = None) -> str | None:
    """Reason why Megatron-LM makes no process groups of these degrees on `world` ranks; None where it does."""
    state = package("megatron.core.parallel_state")
    with _world(world):
        try:
            state.initialize_model_parallel(
                tp, pp, context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=expert_tp,
                create_gloo_process_groups=False,
            )  # fmt: skip
        except REFUSALS as error:
            return f"{type(error).__name__}, {_line_of(error)}: {' '.join(str(error).split())[:120]}"
    return None


def refusal(flags: Sequence[str], world: int) -> str | None:
    """Reason why Megatron-LM does not start under these flags on `world` ranks; None where it does."""
    with _world(world), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        logging.disable(logging.CRITICAL)
        try:
            _start(flags, world)
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except REFUSALS as error:
            return f"{type(error).__name__}, {_line_of(error)}: {' '.join(str(error).split())[:120]}"
        finally:
            logging.disable(logging.NOTSET)
    return None


def _line_of(error: BaseException) -> str:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return "" if place is None else f"{place.tb_frame.f_code.co_filename.split('/')[-1]}:{place.tb_lineno}"


def _start(flags: Sequence[str], world: int) -> None:
    arguments = _arguments()
    before, sys.argv = sys.argv, ["pretrain_gpt.py", *flags, *STAND_IN_FLAGS]
    try:
        args = arguments.parse_args()
    finally:
        sys.argv = before
    arguments.validate_args(args)
    config = arguments.core_transformer_config_from_args(args)
    state = package("megatron.core.parallel_state")
    state.initialize_model_parallel(
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        hierarchical_context_parallel_sizes=args.hierarchical_context_parallel_sizes,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size, create_gloo_process_groups=False,
    )  # fmt: skip
    calculator = package("megatron.core.num_microbatches_calculator")
    made = calculator.ConstantNumMicroBatchesCalculator(
        args.global_batch_size, args.micro_batch_size, args.data_parallel_size, False, 1
    )
    _cut_sequence(args)
    for stage in {0, args.pipeline_model_parallel_size - 1}:
        _build(args, config, stage)
    _run_pipeline(args, made.get())


def _cut_sequence(args: Any) -> None:
    """The cut over TP of what a context rank holds, as sequence parallelism makes it."""
    torch, mappings = package("torch"), package("megatron.core.tensor_parallel.mappings")
    if args.sequence_parallel:
        tensor = torch.empty(args.seq_length // args.context_parallel_size, 1)
        mappings._split_along_first_dim(tensor, _Group(args.tensor_model_parallel_size))


def _build(args: Any, config: Any, stage: int) -> None:
    """The layers of a pipeline stage, on torch's device for shapes alone."""
    torch = package("torch")
    specs = package("megatron.core.models.gpt.gpt_layer_specs")
    state = package("megatron.core.parallel_state")
    model = package("megatron.core.models.gpt.gpt_model")
    stages, interleaves = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
    group = state._PIPELINE_MODEL_PARALLEL_GROUP
    group._rank, state._MPU_PIPELINE_MODEL_PARALLEL_RANK = stage, stage
    # torch's own norm knows no sequence parallelism; apex and transformer engine, which do, are not installed.
    norm = package("megatron.core.transformer.torch_norm").WrappedTorchNorm
    norm.__new__ = lambda cls, config, hidden_size, eps=1e-5: torch.nn.LayerNorm(hidden_size)
    rows = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    padded = -(-args.vocab_size // rows) * rows  # As the tokenizer, which is not loaded, would have it.
    config.use_cpu_initialization, config.perform_initialization = True, False
    for vp_stage in range(interleaves or 1):
        spec = specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization="LayerNorm", vp_stage=vp_stage if interleaves else None,
            pp_rank=stage,
        )  # fmt: skip
        for layer in spec.layer_specs:
            layer.submodules.self_attention.submodules.core_attention = _attention(torch)
        with torch.device("meta"):
            built = model.GPTModel(
                config, spec, padded, args.max_position_embeddings,
                pre_process=stage == 0 and not vp_stage,
                post_process=stage == stages - 1 and vp_stage == (interleaves or 1) - 1,
                position_embedding_type="none", vp_stage=vp_stage if interleaves else None,
            )  # fmt: skip
        for layer in built.decoder.layers:
            if type(layer.mlp).__name__ == "MoELayer":
                _ask_experts(layer.mlp)


def _ask_experts(layer: Any) -> None:
    """Refusal of the layer when tokens come; without tokens it gets no further."""
    try:
        layer.forward(None)
    except ValueError:
        raise
    except Exception:
        return


@cache
def _attention(torch: Any) -> type:
    class Attention(torch.nn.Module):  # type: ignore[misc]
        """In place of transformer engine's, whose own rule for heads exchanged over context ranks it keeps.

        transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py, ``AttnFuncWithCPAndQKVOA2A``:
        heads and key/value heads of a TP rank are dealt out to the context ranks.
        """

        def __init__(self, config: Any, *words: Any, cp_comm_type: str | None = None, **rest: Any):
            super().__init__()
            if config.context_parallel_size > 1 and cp_comm_type == "a2a":
                for heads in (config.num_attention_heads, config.num_query_groups):
                    assert heads // config.tensor_model_parallel_size % config.context_parallel_size == 0, "a2a heads"

    return Attention


def _run_pipeline(args: Any, micro_batches: int) -> None:
    """The loop over micro-batches of the first stage."""
    stages, interleaves = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size or 1
    if stages > 1:
        group = args.microbatch_group_size_per_vp_stage or stages
        megatron_core_order(stages, interleaves, micro_batches, group, 0)
