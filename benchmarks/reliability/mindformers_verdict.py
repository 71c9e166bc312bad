"""Check whether MindFormers starts a strategy: its check of rules, run; refusals of MindSpore's compiler, restated.

Run is ``_check_parallel`` of MindFormers r1.5.0 (mindformers/tools/check_rules.py). Restated are the checks of
MindFormers' layers and MindSpore's compiler, each with its place: a tensor that a strategy cuts unevenly is refused.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from benchmarks.reliability.outside import loaded, source, without_imports
from taylor.cost_model.job.strategy import Strategy

RELEASE = "r1.5.0"


@cache
def _check_rules() -> Any:
    text = source("mindformers", f"refs/heads/{RELEASE}", "mindformers/tools/check_rules.py")
    mindspore = SimpleNamespace(get_auto_parallel_context=lambda name: "semi_auto_parallel")
    text = without_imports(text, "mindspore", ".utils", ".logger")
    return loaded("check_rules", text, ms=mindspore, logger=MagicMock(), get_real_group_size=None)


def refusal(job: dict[str, Any], world: int, strategy: Strategy) -> str | None:
    """Reason why MindFormers does not start a strategy; None where it does.

    Parameters
    ----------
    job : dict
        ``n_heads``, ``n_kv_heads``, ``hidden``, ``ffn``, ``seq_length``, ``flash`` (bool), ``ulysses`` (bool).
    """
    rules = _check_rules()
    rules.get_real_group_size = lambda: world
    sizes = SimpleNamespace(
        n_kv_heads=job["n_kv_heads"], num_heads=job["n_heads"], use_flash_attention=job["flash"], vocab_size=0,
        hidden_size=0,
    )  # fmt: skip
    degrees = SimpleNamespace(
        data_parallel=strategy.dp, model_parallel=strategy.tp, context_parallel=strategy.cp, pipeline_stage=strategy.pp,
        use_seq_parallel=strategy.sp, seq_split_num=1,
        context_parallel_algo=SimpleNamespace(value="ulysses_cp" if job["ulysses"] else "colossalai_cp"),
    )  # fmt: skip
    config = SimpleNamespace(
        parallel_config=degrees, moe_config=None, model=SimpleNamespace(model_config=sizes),
        parallel=SimpleNamespace(enable_parallel_optimizer=True, pipeline_config=None),
    )  # fmt: skip
    try:
        rules._check_parallel(config)
    except ValueError as error:
        return str(error)
    return _of_compiler(job, strategy)


def _of_compiler(job: dict[str, Any], strategy: Strategy) -> str | None:
    tp, cp = strategy.tp, strategy.cp
    exchanged = cp if job["ulysses"] else 1
    conditions = {
        # mindformers/models/llama/llama_transformer.py:183, :190: (n_heads) % (mp * cp_ds), (n_kv_heads) likewise.
        "heads": job["n_heads"] % (tp * exchanged) == 0,
        "key/value heads": job["n_kv_heads"] % (tp * exchanged) == 0,
        # mindformers/models/llama/llama_layer.py:449, :453.
        "MLP": job["ffn"] % tp == 0,
        "hidden size": job["hidden"] % tp == 0,
        # mindspore, TensorMap of an input: a dimension is cut into equal slices (llama_transformer.py:406).
        "sequence": job["seq_length"] % (cp * (tp if strategy.sp else 1)) == 0,
        # mindformers/trainer/utils.py: the batch follows from micro_batch_num, micro-batch and data parallel together.
        "batch": job["gbs"] % (strategy.dp * strategy.mbs) == 0,
        # mindspore, pipeline_scheduler.cc, InterleavedScheduler::Reorder.
        "micro-batches": strategy.vpp == 1 or strategy.micro_batches >= strategy.pp,
        "interleaves": strategy.vpp == 1 or strategy.pp > 1,
        # mindformers r1.7.0 parallel_core/transformer_config.py:495; of older ones a model without experts has no EP.
        "experts": strategy.ep == 1,
    }
    return next((name for name, holds in conditions.items() if not holds), None)
