"""Small runs of torchtitan's TOML: each entry is one of torchtitan's, its module cuts flavours, its log is read."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taylor.blackbox.small_runs import plan_small_runs
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.nested_keys import leaves
from taylor.parsers.small_run import Machines, ProfiledRun, ProfiledSteps, ShardedWeights
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.torchtitan.small_run import command, job_sizes, run_log, small_run
from taylor.workflows.tuning.trace_memory import cut_networks, whole_elements

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DENSE = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
global_batch_size = 256
seq_len = 8192
mixed_precision_reduce = "bfloat16"
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 16
tensor_parallel_degree = 2
fsdp_reshard_after_forward = "always"
[activation_checkpoint]
mode = "selective"
"""
EXPERTS = """\
[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
pipeline_parallel_schedule = "Interleaved1F1B"
expert_parallel_degree = 8
[checkpoint]
enable = true
"""
CARDS = Machines(2, 8)


def source(text: str) -> TomlSource:
    return TomlSource(text, Path("job.toml"))


def test_sizes_are_those_of_the_flavour_and_the_file():
    dense, experts = job_sizes(source(DENSE)), job_sizes(source(EXPERTS))
    own = dense.own
    assert (own.layers, own.tp, own.dp, own.replicas, own.shards, own.mbs) == (32, 2, 32, 2, 16, 2)
    assert dense.batch == 256 and dense.tp_ways == 8 and dense.weights == ShardedWeights(2, 2, 4)
    assert (experts.own.layers, experts.own.experts, experts.own.dense, experts.top_k) == (27, 64, 1, 6)
    assert experts.batch is None  # It follows the ranks.


@pytest.mark.parametrize("text", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_small_run_has_the_degrees_that_were_asked_for_in_entries_that_torchtitan_has(text):
    file, table = source(text), load_flag_table("taylor.parsers.torchtitan", "keys.yaml")
    runs = plan_small_runs(job_sizes(file), CARDS).runs
    assert len(runs) >= 10 and {run.setting.pp for run in runs} == {1, 2}
    for run in runs:
        setting = run.setting
        data = tomllib.loads(
            small_run(file, ProfiledRun(setting, CARDS, ProfiledSteps(Path("/runs/one"), run.steps))).text
        )
        for key, _ in leaves(data):
            row = table.find(key)
            assert row is not None and ("v0.2.2" in row.versions or ".." not in row.versions), key
        degrees, training = data["parallelism"], data["training"]
        names = ("tensor", "context", "pipeline", "expert")
        found = tuple(degrees.get(f"{name}_parallel_degree", 1) for name in names)
        assert found == (setting.tp, setting.cp, setting.pp, setting.ep)
        assert degrees["data_parallel_shard_degree"] == setting.dp and "fsdp_reshard_after_forward" not in degrees
        assert degrees.get("data_parallel_replicate_degree", 1) == 1
        assert degrees.get("expert_tensor_parallel_degree", 1) == (setting.tp if setting.ep > 1 else 1)
        assert training["local_batch_size"] == setting.mbs * setting.pp and "global_batch_size" not in training
        assert training["seq_len"] == setting.seq and training["steps"] == data["profiling"]["profile_freq"] == 10
        assert data["activation_checkpoint"]["mode"] == "full" and not data["checkpoint"]["enable"]
        name, *changes = data["model"]["flavor"].split("@")
        cut = {word: int(number) for word, _, number in (change.partition("=") for change in changes)}
        wanted = {"layers": setting.layers}
        if setting.experts > 1:
            wanted |= {"experts": setting.experts, "dense": setting.dense}
        assert name in ("8B", "16B") and cut == wanted


def test_torchrun_starts_a_part_of_each_run_on_every_node():
    words = command(Path("job.toml"), Machines(2, 8, "first", 29500, 1))
    shown = " ".join(words)
    assert "torchrun --nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr first --master-port 29500" in shown
    assert shown.endswith("-m torchtitan.train --job.config_file job.toml")
    assert "--rdzv-endpoint localhost:0" in " ".join(command(Path("job.toml"), Machines(1, 8)))


@dataclass
class Args:
    n_layers: int = 27
    n_dense_layers: int = 1
    moe_args: Any = field(default_factory=lambda: SimpleNamespace(num_experts=64))


@dataclass
class Spec:
    model_args: dict[str, Args]
    build_optimizers_fn: Any


class Placement:
    def __init__(self, shard: bool) -> None:
        self.shard = shard

    def is_shard(self) -> bool:
        return self.shard


def weight(elements: int, **dims: tuple[int, bool]) -> Any:
    """A weight on a mesh of dimensions with their size, and whether it is split over them."""
    sizes = [size for size, _ in dims.values()]
    mesh = SimpleNamespace(mesh_dim_names=tuple(dims), size=lambda at: sizes[at])
    return SimpleNamespace(numel=lambda: elements, device_mesh=mesh,
                           placements=[Placement(shard) for _, shard in dims.values()])  # fmt: skip


def test_the_module_beside_a_run_cuts_a_flavour_and_prints_what_a_rank_gathers(capsys):
    seen = list[Any]()
    spec = Spec({"16B": Args()}, lambda parts, *more: seen.append((parts, more)))
    registry = SimpleNamespace(get_train_spec=lambda name: spec if name == "deepseek_v3" else None)
    cut_networks(registry)
    found = registry.get_train_spec("deepseek_v3")
    small = found.model_args["16B@layers=2@experts=8@dense=1"]
    assert (small.n_layers, small.n_dense_layers, small.moe_args.num_experts) == (2, 1, 8)
    assert found.model_args["16B"] == Args() and spec.model_args["16B"].n_layers == 27
    with pytest.raises(KeyError):
        found.model_args["17B"]
    named = [("layers.0.attention.wq.weight", weight(4096, dp_replicate=(2, False), fsdp=(8, True), tp=(4, True))),
             ("layers.1.moe.experts.w1", weight(8192, efsdp=(2, True), ep=(8, True))),
             ("norm.weight", SimpleNamespace(numel=lambda: 64))]  # fmt: skip
    part = SimpleNamespace(named_parameters=lambda: named)
    found.build_optimizers_fn([part], "config")
    assert seen == [([part], ("config",))]
    log = run_log(capsys.readouterr().out, 1)
    assert log.parameters == {"dense": {"layers.0.attention.wq.weight": 1024},
                              "layer": {"layers.1.moe.experts.w1": 1024}, "head": {"norm.weight": 64}}  # fmt: skip
    assert whole_elements(weight(10, tp=(4, True))) == 3


def test_a_logs_tokens_a_second_are_a_steps_time():
    lines = ["INFO - Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=2, cp=1, tp=4, ep=1, etp=1",
             "INFO - Trainer is initialized with local batch size 8, global batch size 32, gradient accumulation steps "
             "2, sequence length 4096, total steps 4 (warmup 1)"]  # fmt: skip
    for step, rate in ((1, 100), (2, 8100), (3, 8192), (4, 8192)):
        line = f"\x1b[31mstep: {step:2}  \x1b[32mloss: {8.1:8.5f}  \x1b[38;2;180;60;0mgrad_norm: {1.2:7.4f}  "
        line += f"\x1b[36mmemory: {41.5:5.2f}GiB({52.1:.2f}%)  \x1b[34mtps: {rate:,}  \x1b[36mtflops: {99.1:,.2f}  "
        lines.append(f"[rank0]:{line}\x1b[35mmfu: {10.02:.2f}%\x1b[39m")
    log = run_log("\n".join(lines))
    # A rank's 2 x 8 x 4,096 tokens over 8 ranks of its replica.
    assert log.step_ms == pytest.approx(1000 * 2 * 8 * 4096 / (8192 * 8))
    of_v020 = "INFO - Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 2, 4]"
    lines.append("INFO - \x1b[33mvalidate step:  4  loss:  8.1  memory: 41.50GiB(52.10%)  tps: 99,999\x1b[39m")
    assert run_log("\n".join([of_v020, *lines[1:]])).step_ms == log.step_ms
    assert run_log("\n".join(["INFO - Building device mesh: pp=0, cp=0, tp=0, ep=1", *lines[1:]])).step_ms is None
    assert log.reserved == round(41.5 * 2**30) and log.peak is None
