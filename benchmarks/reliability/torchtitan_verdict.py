"""Check whether torchtitan itself starts a strategy: its mesh, its parallel model and its pipeline, on no device.

Run are, of torchtitan v0.2.2, ``ParallelDims`` with its device mesh over torch's fake process group,
``parallelize_llama`` on its LLaMA model at the sizes of the job, one forward pass of that, the functions that deal
layers to stages, and the constructors of torch's schedules. A model with experts is asked for its mesh alone.
"""

from __future__ import annotations

import logging
import os
import sys
import types
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from benchmarks.reliability.outside import folder_of, package
from taylor.cost_model.job.strategy import Strategy

RELEASE = "v0.2.2"
NOT_INSTALLED = (
    "torchtitan.models.moe.kernels", "torchtitan.config.manager", "torchtitan.components.metrics",
    "torchtitan.components.tokenizer", "tyro", "torchao", "datasets", "torchdata",
)  # fmt: skip
"""Modules of kernels, command line, logging and data, which need packages of their own."""


@cache
def _torchtitan() -> None:
    place = folder_of("torchtitan", RELEASE, "torchtitan")
    for name in ("torchtitan", "torchtitan.models", "torchtitan.models.llama3", "torchtitan.protocols"):
        module = types.ModuleType(name)
        module.__path__ = [str(place.parent.joinpath(*name.split(".")))]
        sys.modules[name] = module
    sys.modules.update({name: MagicMock() for name in NOT_INSTALLED if name not in sys.modules})
    # The trainer's parts that a model comes with are not built; of them its base class is needed.
    model = package("torchtitan.protocols.model")
    sys.modules["torchtitan.protocols.train_spec"] = MagicMock(ModelProtocol=model.ModelProtocol)


def _make_world(size: int) -> None:
    """torch's fake process group of `world` ranks: one a process, as DTensor remembers groups by their meshes."""
    torch = package("torch")
    if torch.distributed.is_initialized():
        assert torch.distributed.get_world_size() == size
        return
    store = package("torch.testing._internal.distributed.fake_pg").FakeStore()
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", str(size)
    torch.distributed.init_process_group("fake", store=store, rank=0, world_size=size)


def refusal(job: dict[str, Any], world: int, strategy: Strategy) -> str | None:
    """Reason why torchtitan does not start a strategy; None where it does.

    Parameters
    ----------
    job : dict
        ``dim``, ``n_layers``, ``n_heads``, ``n_kv_heads``, ``vocab_size``, ``seq_len``, ``gbs``, ``experts`` (or None),
        ``etp`` (1, or 0 for as TP).
    """
    _torchtitan()
    _make_world(world)
    logging.disable(logging.CRITICAL)
    try:
        _start(job, world, strategy)
    except (AssertionError, ValueError, RuntimeError, ZeroDivisionError, NotImplementedError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def _start(job: dict[str, Any], world: int, strategy: Strategy) -> None:
    dims_of = package("torchtitan.distributed.parallel_dims")
    dims_of.device_type = "cpu"
    shard = strategy.op // strategy.cp
    if strategy.op % strategy.cp or strategy.dp % max(1, shard) or not shard:
        raise ValueError("the file cannot say this split of the optimizer")
    dims = dims_of.ParallelDims(
        dp_replicate=strategy.dp // shard, dp_shard=shard, cp=strategy.cp, tp=strategy.tp, pp=strategy.pp,
        ep=strategy.ep, etp=job["etp"] or strategy.tp, world_size=world,
    )  # fmt: skip
    dims.build_mesh()
    # torchtitan/train.py:203 and :217, in the constructor of the trainer.
    assert job["gbs"] % (strategy.mbs * strategy.dp) == 0, "global batch size"
    assert job["experts"] is not None or strategy.ep == 1, "no experts"
    if job["experts"] is not None:
        # torch's Shard(0) of the experts, torchtitan/distributed/expert_parallel.py: all-to-all of equal parts.
        assert job["experts"] % strategy.ep == 0, "experts"
    _run_layer(job, dims)
    if strategy.pp > 1:
        _pipeline(job, strategy)
    else:
        assert strategy.vpp == 1, "no pipeline"


def _run_layer(job: dict[str, Any], dims: Any) -> None:
    """The model of one layer in parallel, forward."""
    torch = package("torch")
    model_of = package("torchtitan.models.llama3.model.model")
    arguments = package("torchtitan.models.llama3.model.args")
    parallelize = package("torchtitan.models.llama3.infra.parallelize")
    config = SimpleNamespace(
        training=SimpleNamespace(
            seq_len=job["seq_len"], mixed_precision_param="float32", mixed_precision_reduce="float32",
            enable_cpu_offload=False,
        ),
        model=SimpleNamespace(converters=[]),
        quantize=SimpleNamespace(linear=SimpleNamespace(float8=SimpleNamespace(recipe_name=None))),
        parallelism=SimpleNamespace(
            disable_loss_parallel=False, enable_async_tensor_parallel=False, fsdp_reshard_after_forward="default"
        ),
        compile=SimpleNamespace(enable=False, components=[]), activation_checkpoint=SimpleNamespace(mode="none"),
    )  # fmt: skip
    sizes = arguments.TransformerModelArgs(
        dim=job["dim"], n_layers=1, n_heads=job["n_heads"], n_kv_heads=job["n_kv_heads"], vocab_size=job["vocab_size"],
        multiple_of=1, max_seq_len=job["seq_len"],
    )  # fmt: skip
    parallelize.apply_fsdp = lambda *words, **rest: None  # Its buffers would be on a GPU; the mesh it takes is checked.
    parallelize.apply_cp_to_attention_module = lambda *words, **rest: None
    model = parallelize.parallelize_llama(model_of.Transformer(sizes), dims, config)
    model(torch.zeros(1, job["seq_len"] // dims.cp, dtype=torch.long))


def _pipeline(job: dict[str, Any], strategy: Strategy) -> None:
    schedules = package("torch.distributed.pipelining.schedules")
    several = strategy.vpp > 1
    name = "ScheduleInterleaved1F1B" if several else "Schedule1F1B"
    stage = MagicMock()
    stage.group_size, stage.group_rank, stage.num_stages = strategy.pp, 0, strategy.pp * strategy.vpp
    stage.stage_index, stage.is_first, stage.is_last, stage.has_backward = 0, True, False, True
    made = getattr(schedules, name)([stage] * strategy.vpp if several else stage, strategy.micro_batches)
    if not several and made._n_microbatches < made._num_stages:  # torch asks when the step begins.
        raise ValueError("fewer micro-batches than stages")
