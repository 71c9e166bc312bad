"""Sound input of every kind, with the commands that read it: what the campaign damages, kills and runs again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability.campaign import ROOT
from benchmarks.reliability.sandbox import run_forked
from benchmarks.synthetic.profiles import SyntheticTimes, write_synthetic_profiles
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.read import read_config
from taylor.parsers.write_back import emit_variant
from taylor.workflows.statement.memory_source import memory_info_path

SHELL = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=4
TP=4
PP=4
CORES=$((GPUS_PER_NODE * NNODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # cards of a node
    --nnodes $NNODES
)
MODEL_ARGS="--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --padded-vocab-size 32000 --swiglu"
GPT_ARGS="
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size ${PP} \\
    --num-layers-per-virtual-pipeline-stage 4 \\
    --micro-batch-size 1 \\
    --global-batch-size 64 \\
    --sequence-parallel \\
    --use-distributed-optimizer \\
    --bf16
"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py $MODEL_ARGS $GPT_ARGS \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 \\
    | tee logs/train.log
"""

TOML = """\
# A small run
[model]
name = "llama3"
flavor = "8B"

[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 8192

[parallelism]
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = 1

[activation_checkpoint]
mode = "full"
"""

MEMORY = {
    "device_limit": 55296,
    "static": {"first": 3383, "middle": 2382, "last": 8675},
    "layer": {"dense": 866},
    "activation": {"dense": {"none": 479, "select": 400, "full": 30}},
}

DEVICE = """\
name: test-card
memory_mib: 65536
usable_memory_mib: 59392
peak_bf16_tflops: 376
memory_gb_s: 1600
intra_node_gb_s: 196
inter_node_gb_s: 25
devices_per_node: 8
link_latency_us: 20
source: invented
"""

WORKER_LINE = (
    "Profiler Info: Job ({job}), type = {kind}, micro_batch_id = {m}, job_start_time = {a}, job_end_time = {b}\n"
)
DRYRUN_LOG = """\
[WARNING] ME(13340,7f):2026-01-01-00:00:00.000.000 [mindspore/ccsrc] start
Device HBM memory size: 62420M
MindSpore Used memory size: 58000M
Used peak memory usage (without fragments): {peak}M
Actual peak memory usage (with fragments): {actual}M
"""

STAND_IN = """\
import os, sys
stage = int(os.environ.get("RANK_ID", "0"))
print("Used peak memory usage (without fragments): %dM" % (21000 + stage))
"""
"""A program in the place of run_mindformer.py that knows one figure."""


@dataclass(frozen=True)
class Command:
    """A command line that reads a specimen; `may_start` when it starts programs of its own accord."""

    tool: str
    words: tuple[str, ...]
    may_start: bool = False


@dataclass(frozen=True)
class Specimen:
    """A folder with sound input, the file in it that may be damaged, and a command that reads it.

    Parameters
    ----------
    form : str
        ``yaml``, ``sh``, ``toml``, ``csv``, ``json``, ``log``, ``trace`` or ``kept``.
    folder : path
        Holds everything that the command needs.
    target : str
        The file to damage, relative to the folder.
    """

    form: str
    name: str
    folder: Path
    target: str
    command: Command


def make_specimens(folder: Path) -> list[Specimen]:
    """Write a specimen of every kind below a folder; the commands run there."""
    made: list[Specimen] = []

    def add(form: str, name: str, target: str, tool: str, *words: str, may_start: bool = False) -> Path:
        place = folder / name
        place.mkdir(parents=True)
        made.append(Specimen(form, name, place, target, Command(tool, words, may_start)))
        return place

    solve = ("-dryrun", "n", "-check", "n", "-t", "2", "-workers", "1")
    few = ("--profile_num", "2")
    for form, key, suffix, text in (("sh", "shell", ".sh", SHELL), ("toml", "toml", ".toml", TOML)):
        target = f"train{suffix}"
        place = add(form, f"{key}-solved", target, "pipeline_parallel", f"-{key}", target, *solve)
        (place / target).write_text(text)
        place = add(form, f"{key}-evaluated", target, "pipeline_parallel", f"-{key}", target, "-evaluate", "y")
        (place / target).write_text(text)
        place = add(form, f"{key}-searched", target, "parallel_tool", f"--{key}_path", target, *few)
        (place / target).write_text(text)
    for model in ("pretrain_deepseek3_128p", "pretrain_qwen3_30b_a3b", "pretrain_llama2_7b"):
        words: tuple[str, ...] = ("-yaml", "train.yaml", *solve)
        place = add("yaml", f"{model}-solved", "train.yaml", "pipeline_parallel", *words)
        _copy(model, place / "train.yaml")
        words = ("--yaml_path", "train.yaml", *few)
        place = add("yaml", f"{model}-searched", "train.yaml", "parallel_tool", *words)
        _copy(model, place / "train.yaml")
    place = add("yaml", "evaluated", "train.yaml", "pipeline_parallel", "-yaml", "train.yaml", "-evaluate", "y")
    _copy("pretrain_deepseek3_128p", place / "train.yaml")
    rank = ("--yaml_path", "files", "--time_limit", "2", "--workers", "1", "--report", "off")
    place = add("yaml", "ranked", "files/odd.yaml", "pipeline_tool", *rank)
    for name in ("odd.yaml", "sound.yaml"):
        _copy("pretrain_llama2_7b", place / "files" / name)
    place = add("yaml", "device", "own/devices/test-card.yaml", "parallel_tool", "--yaml_path", "train.yaml",
                "--register_path", "own", "--device", "test-card", *few)  # fmt: skip
    _copy("pretrain_llama2_7b", place / "train.yaml")
    _write(place / "own/devices/test-card.yaml", DEVICE)
    place = add("yaml", "model", "own/models/own-model.yaml", "parallel_tool", "--yaml_path", "train.yaml",
                "--register_path", "own", *few)  # fmt: skip
    _copy("pretrain_llama2_7b", place / "train.yaml")
    _write(place / "own/models/own-model.yaml", (ROOT / "register/models/mixtral-8x7b.yaml").read_text())

    place = add("csv", "ratios", "ratios.csv", "pipeline_tool", *rank, "--parser_result", "ratios.csv")
    _copy("pretrain_llama2_7b", place / "files" / "sound.yaml")
    strategy = read_config(place / "files" / "sound.yaml").strategy
    degrees = f"{strategy.dp},{strategy.tp},{strategy.pp},{strategy.ep}"
    _write(place / "ratios.csv", "dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw\n"
           f"{degrees},1.0,1.839,1.0,1.5,21.4\n32,2,16,8,0.402,1.852,1.0,1.46,40.1\n")  # fmt: skip
    place = add("csv", "peaks", "nd.csv", "pipeline_tool", *rank, "--nd_path", "nd.csv")
    _copy("pretrain_llama2_7b", place / "files" / "sound.yaml")
    _write(place / "nd.csv", f"dp,tp,pp,ep,peakMem\n{degrees},52810\n32,2,16,8,54102\n")

    words = ("-yaml", "train.yaml", "-memory", "memory.json", *solve)
    place = add("json", "memory", "memory.json", "pipeline_parallel", *words)
    _copy("pretrain_llama2_7b", place / "train.yaml")
    _write(place / "memory.json", json.dumps(MEMORY, indent=1))
    place = add(
        "json", "flags", "flags.json", "parallel_tool", "--config", "flags.json", "--output_path", "out/nd"
    )  # a flag of the file may name any place; this one wins
    _copy("pretrain_llama2_7b", place / "train.yaml")
    _write(place / "flags.json", json.dumps({
        "yaml_path": "train.yaml", "gbs": 512, "search": ["dp", "tp", "pp"], "profile_num": 2, "recompute": "full",
        "max_expert_parallel": 8,
    }, indent=1))  # fmt: skip
    place = add("json", "environment", "env.json", "pipeline_parallel", "-yaml", "train.yaml", "-mindformers", ".",
                "--dryrun_backend", "mindspore", "--env_json", "env.json", "--dryrun_retries", "0",
                "--dryrun_timeout", "2", "-check", "n", "-t", "2", may_start=True)  # fmt: skip
    _copy("pretrain_llama2_7b", place / "train.yaml")
    _write(place / "run_mindformer.py", STAND_IN)
    shutil.copy(ROOT / "config/env_config.json", place / "env.json")
    result = json.dumps(RESULT, indent=1)
    words = ("-extract", "y", "-solution", "result.json")
    place = add("json", "result-printed", "result.json", "pipeline_parallel", *words)
    _write(place / "result.json", result)
    place = add("json", "result-drawn", "result.json", "timeline_tool", "--solution", "result.json", "--html", "t.html")
    _write(place / "result.json", result)

    log = "".join(
        WORKER_LINE.format(job=k, kind=kind, m=m, a=1000.0 + 20 * m + shift, b=1008.0 + 20 * m + shift)
        for m in range(6)
        for k, (kind, shift) in enumerate((("forward", 0.0), ("backward", 9.0)))
    )
    place = add("log", "worker", "log/workerlog.1", "timeline_tool", "--log_dir", "log")
    for device in (0, 1):
        _write(place / f"log/workerlog.{device}", log)
    place = add("log", "dryrun", "logs/DP2_TP2_PP2_EP1/rank_0.log", "parallel_tool", "--yaml_path", "train.yaml",
                "--dryrun_data_dir", "logs", *few)  # fmt: skip
    _copy("pretrain_llama2_7b", place / "train.yaml")
    for rank_number in (0, 4):
        _write(place / f"logs/DP2_TP2_PP2_EP1/rank_{rank_number}.log", DRYRUN_LOG.format(peak=40111, actual=41000))
    place = add("log", "solution", "train.sol", "pipeline_parallel", "-extract", "y", "-solution", "train.sol")
    _write(place / "train.sol", "# status optimal\n# objective 10.5\n# bound 10.5\n# solver branch-and-cut\n"
           "x_dense[0,0] 4\nx_dense[1,0] 5\nrecompute_dense[0,0] 2\nstep_time 10.5\n")  # fmt: skip

    for form, name in (("ascend", "trace_view.json"), ("ascend", "kernel_details.csv"), ("ascend", "profiler_info"),
                       ("ascend", "memory_record.csv"), ("kineto", "pt.trace.json")):  # fmt: skip
        for tool, own_words in (("timeline_tool", ("--profile_dir", "profiles/train")),
                            ("pipeline_tool", (*rank, "--profile_data_dir", "profiles"))):  # fmt: skip
            place = folder / f"{tool}-{name}"
            _copy("pretrain_llama2_7b", place / "files" / "train.yaml")
            target = _profiles(place, form, name)
            made.append(Specimen("trace", place.name, place, target, Command(tool, own_words)))
    return made + _kept(folder, rank, few, solve)


def _kept(folder: Path, rank: Sequence[str], few: Sequence[str], solve: Sequence[str]) -> list[Specimen]:
    """Files that the tools keep for their own later runs: a solved row, a measured profile, names of emitted files."""
    made = []
    for name, tool, words, pattern in (
        ("solved-row", "pipeline_tool", ("--yaml_path", "files", *rank[2:]), "pipeline_output/solved/*.json"),
        ("emitted", "parallel_tool", ("--yaml_path", "files/train.yaml", *few), "output/profile_yaml/emitted.json"),
        ("profile", "pipeline_parallel", ("-yaml", "files/train.yaml", *solve), "pipeline_output/memory_info/*.json"),
    ):
        place = folder / f"kept-{name}"
        _copy("pretrain_llama2_7b", place / "files" / "train.yaml")
        if name == "profile":
            kept = memory_info_path(read_config(place / "files" / "train.yaml"), place / "pipeline_output")
            _write(kept, json.dumps(MEMORY, indent=1))
        else:
            run_forked(tool, words, place, memory_mib=0)
        [target] = place.glob(pattern)
        made.append(Specimen("kept", place.name, place, str(target.relative_to(place)), Command(tool, words)))
    return made


def _profiles(place: Path, form: str, name: str) -> str:
    """Write small synthetic profiles of the candidate and tell the file of one rank to damage."""
    source = place / "files" / "train.yaml"
    own = read_config(source)
    emit_variant(own, own.strategy.replace(micro_batches=4), source, plan=None)
    config = read_config(source)
    assert config.plan is not None
    times = SyntheticTimes.from_ratios(TimeRatios(unit_ms=5.0), config.plan)
    write_synthetic_profiles(
        config, times, place / "profiles" / "train", form=form, steps=2, seed=0, trace_only=name == "trace_view.json",
        memory_mib={stage: (20_000.0, 40_000.0) for stage in range(config.strategy.pp)} if form == "ascend" else None,
    )  # fmt: skip
    found = sorted(path for path in (place / "profiles").rglob("*") if name in path.name)
    return str(found[-1].relative_to(place))


RESULT = {
    "status": "optimal", "objective": 33.0, "bound": 33.0, "gap": 0.0, "unit_ms": None, "schedule": "1f1b",
    "stages": 2, "interleaves": 1, "micro_batches": 4, "offset": [[0, 0]], "layers": {"body": [[2, 2]]},
    "recompute": {"full": [[1, 0]]}, "peak_memory": [36.0, 40.0], "memory_limit": [36.0, 100.0],
    "problem": {
        "stages": 2, "interleaves": 1, "micro_batches": 4,
        "kinds": [{"name": "body", "count": 4, "forward": 1.0, "layer_mib": 10.0,
                   "activation_mib": {"none": 4.0, "full": 1.0}, "pinned_last": False}],
        "static_mib": [5.0, 7.0], "limit_mib": [36.0, 100.0],
        "schedule": {"name": "1f1b", "low_memory": True, "seq_splits": 1}, "backward_ratio": 2.0,
        "recompute_ratio": {"full": 1.0}, "head_forward": 0.0, "embedding_forward": 0.0, "lag": 0.0, "tail": [],
        "weight_gradient_share": 0.5, "min_layers": 1, "unit_ms": None,
    },
}  # fmt: skip
"""A saved result of a problem worked by hand."""


def _copy(name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "config" / f"{name}.yaml", target)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def forms(specimens: Sequence[Specimen]) -> list[str]:
    """The forms among specimens, in order."""
    return list(dict.fromkeys(specimen.form for specimen in specimens))
