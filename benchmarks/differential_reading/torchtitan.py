"""The fields of a torchtitan file, from `tomllib` and torchtitan's own flavours.

Source: torchtitan v0.2.2 unless another revision is named, by file and line.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.differential_reading.positions import of_toml
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

_NAMES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "top_k", "expert_width")
_FLAVOURS: dict[tuple[str, str], tuple[int, ...]] = {
    # c22d1a8d1 torchtitan/models/llama/__init__.py; the width by model.py:279-283, the vocabulary of the tokenizer.
    ("llama2", "7b"): (32, 4096, 32, 32, 11008, 32000, 1, 0, 0),
    ("llama2", "13b"): (40, 5120, 40, 40, 13824, 32000, 1, 0, 0),
    ("llama2", "70b"): (80, 8192, 64, 8, 28672, 32000, 1, 0, 0),
    # torchtitan/models/llama3/__init__.py:51-99, model/args.py (multiple_of, ffn_dim_multiplier), tokenizer.
    ("llama3", "8b"): (32, 4096, 32, 8, 14336, 128256, 1, 0, 0),
    ("llama3", "70b"): (80, 8192, 64, 8, 28672, 128256, 1, 0, 0),
    ("llama3", "405b"): (126, 16384, 128, 8, 53248, 128256, 1, 0, 0),
    # torchtitan/models/deepseek_v3/__init__.py:78-156.
    ("deepseek_v3", "16b"): (27, 2048, 16, 16, 10944, 102400, 64, 6, 1408),
    ("deepseek_v3", "236b"): (60, 5120, 128, 128, 12288, 102400, 160, 6, 1536),
    ("deepseek_v3", "671b"): (61, 7168, 128, 128, 18432, 129280, 256, 8, 2048),
    # torchtitan/models/qwen3/__init__.py:46-187.
    ("qwen3", "0.6b"): (28, 1024, 16, 8, 3072, 151936, 1, 0, 0),
    ("qwen3", "1.7b"): (28, 2048, 16, 8, 6144, 151936, 1, 0, 0),
    ("qwen3", "4b"): (36, 2560, 32, 8, 9728, 151936, 1, 0, 0),
    ("qwen3", "8b"): (36, 4096, 32, 8, 12288, 151936, 1, 0, 0),
    ("qwen3", "14b"): (40, 5120, 40, 8, 17408, 151936, 1, 0, 0),
    ("qwen3", "32b"): (64, 5120, 64, 8, 25600, 151936, 1, 0, 0),
    ("qwen3", "30b-a3b"): (48, 2048, 32, 4, 6144, 151936, 128, 8, 768),
    ("qwen3", "235b-a22b"): (94, 4096, 64, 4, 12288, 151936, 128, 8, 1536),
    # torchtitan/models/llama4/__init__.py:38-50, model/model.py (multiple_of, auto_scale_hidden_dim).
    ("llama4", "17bx16e"): (48, 5120, 40, 8, 16384, 202048, 16, 1, 8192),
}
_DENSE = {("deepseek_v3", "16b"): 1, ("deepseek_v3", "236b"): 1, ("deepseek_v3", "671b"): 3}
"""Layers before those with experts: torchtitan/models/deepseek_v3/__init__.py:84, 109, 136."""
_PARTS = "module_fqns_per_model_part"
_SEVERAL = ("interleaved1f1b", "interleavedzerobubble", "zbvzerobubble", "dualpipev", "loopedbfs")
"""torch 2.13 torch/distributed/pipelining/schedules.py: the schedules that derive from ``PipelineScheduleMulti``."""
_PLACES = ("parallelism", "training", "experimental")


def read_toml(text: str) -> list[Reading]:
    """The fields of the training that a file describes.

    Raises
    ------
    NothingToRead
        When it describes none.
    """
    try:
        top = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise NothingToRead("is no TOML") from None
    model, training = top.get("model"), top.get("training")
    if not isinstance(model, dict) or not isinstance(training, dict):
        raise NothingToRead("is no training file")
    name, flavour = str(model.get("name", "")).lower(), str(model.get("flavor", "")).lower()
    sizes = _FLAVOURS.get(("llama2" if name == "llama" else name, flavour))
    if sizes is None:
        raise NothingToRead("a flavour of tests and experiments, not stated here")
    reading = {**dict(zip(_NAMES, sizes, strict=True)), **_run(top, training, sizes[0])}
    return [reading | of_toml(top, reading, _DENSE.get((name, flavour), 0))]


def _run(top: dict[str, Any], training: dict[str, Any], layers: int) -> Reading:
    def degree(*names: str, default: int | None = 1) -> int | None:
        for place in _PLACES:
            section = top.get(place)
            for name in names:
                if isinstance(section, dict) and name in section:
                    return whole(section[name])
        return default

    tp = degree("tensor_parallel_degree", "sequence_parallel_degree")
    pp, cp = degree("pipeline_parallel_degree"), degree("context_parallel_degree")
    shard = degree("data_parallel_shard_degree", "data_parallel_degree", default=-1)
    replicas = degree("data_parallel_replicate_degree")
    dp = shard * replicas if shard is not None and shard > 0 and replicas is not None else None
    # config/job_config.py: local_batch_size (batch_size before July 2025) 8, global_batch_size -1.
    local = whole(training.get("local_batch_size", training.get("batch_size", 8)))
    total = whole(training.get("global_batch_size", -1))
    batch = total if total is not None and total > 0 else local * dp if local is not None and dp is not None else None
    sharded = None if shard is None or cp is None else shard == -1 or shard * cp > 1
    if training.get("data_parallel_type", "fsdp") == "ddp":
        sharded = False
    values: dict[str, Value | None] = {
        "sequence": whole(training.get("seq_len", 2048)),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": degree("expert_parallel_degree"),
        "vpp": 1 if pp == 1 else _interleaves(top, degree, pp, layers),
        "dp": dp,
        "mbs": local if pp == 1 else degree("pipeline_parallel_microbatch_size", default=None),
        "batch": batch,
        "recompute": _recompute(top),
        "sharded_optimizer": sharded,
    }
    return settled(values)


def _interleaves(top: dict[str, Any], degree: Any, pp: int | None, layers: int) -> int | None:
    """distributed/pipeline_parallel.py:68-149: the parts that are named, else two a rank of a schedule of several."""
    named = next((top[place][_PARTS] for place in _PLACES if _PARTS in top.get(place, {})), None)
    if named and pp:
        return len(named) // pp if len(named) % pp == 0 else None
    schedule = next(
        (
            top[place]["pipeline_parallel_schedule"]
            for place in _PLACES
            if "pipeline_parallel_schedule" in top.get(place, {})
        ),
        "1F1B",
    )
    each = degree("pipeline_parallel_layers_per_stage", default=None)
    if each is not None and pp:
        ends = degree("pipeline_parallel_first_stage_less_layers") + degree("pipeline_parallel_last_stage_less_layers")
        return int(-(-(layers + ends) // each) // pp)
    return 2 if str(schedule).lower() in _SEVERAL else 1


def _recompute(top: dict[str, Any]) -> str:
    """config/job_config.py:645-655; ``selective`` recomputes every n-th layer wholly, or (``op``) a part of each."""
    section = top.get("activation_checkpoint", {})
    mode = str(section.get("mode", "selective"))
    if mode == "selective":
        return "selective" if str(section.get("selective_ac_option", "2")) == "op" else "full"
    return mode
