"""Plans of a MindFormers YAML from small runs of a hidden cluster, whose parameters its file alone states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_cluster import Cluster
from benchmarks.standin_files import write_run
from benchmarks.standin_network import HiddenSize
from taylor.base.errors import InputError
from taylor.blackbox.small_runs import plan_small_runs
from taylor.blackbox.stage_problem import stage_blocks
from taylor.command_lines import tune as command
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.mindformers.parameters import rank_parameters
from taylor.parsers.registry import launchers_for
from taylor.parsers.small_run import Machines, RunSetting
from taylor.parsers.text.yaml_source import YamlSource
from taylor.pipeline.plan import FULL, PipelinePlan
from tests.conftest import SHARED

FILES = SHARED / "data" / "mindformers_yaml"
CARDS = Machines(2, 8)
YAML = """\
use_legacy: False
runner_config: {{epochs: 1, batch_size: 1, sink_size: 1}}
train_dataset:
  data_loader:
    type: BlendedMegatronDatasetDataLoader
    sizes: [8000, 0, 0]
    config: {{seq_length: {seq}}}
parallel_config:
  data_parallel: {dp}
  model_parallel: {tp}
  pipeline_stage: {pp}
  expert_parallel: {ep}
  micro_batch_num: {micro}
  use_seq_parallel: True
parallel:
  enable_parallel_optimizer: True
recompute_config: {{recompute: True}}
model:
  model_config:
    model_type: qwen2
    architectures: Qwen2ForCausalLM
    offset: 0
    seq_length: {seq}
    vocab_size: {vocabulary}
    hidden_size: {width}
    num_hidden_layers: {layers}
    num_attention_heads: {heads}
    num_key_value_heads: {groups}
    head_dim: 128
    intermediate_size: {inner}
    add_bias_linear: False
    add_qkv_bias: False
    tie_word_embeddings: False
{experts}"""
EXPERTS = """\
    num_experts: {experts}
    num_experts_per_tok: {top_k}
    moe_intermediate_size: {inner}
    first_k_dense_replace: {dense}
    moe_grouped_gemm: True
    shared_expert_num: 1
    use_shared_expert_gating: False
    moe_shared_expert_intermediate_size: {shared}
"""


def text_of(cluster: Cluster) -> str:
    """The user's YAML of a cluster's network, at the degrees of its job."""
    job, facts = cluster.job, cluster.facts
    experts = ""
    if job.experts > 1:
        experts = EXPERTS.format(experts=job.experts, dense=job.dense, **facts)
    inner = facts["inner"] * (4 if job.experts > 1 else 1)
    return YAML.format(
        seq=job.seq, dp=job.dp, tp=job.tp, pp=job.pp, ep=job.ep, micro=cluster.batch // job.dp, layers=job.layers,
        experts=experts, **{**facts, "inner": inner},
    )  # fmt: skip


def split(number: int) -> HiddenSize:
    return HiddenSize(number, (), ("tp",))


def as_core_models(cluster: Cluster) -> Cluster:
    """The same cluster with the parameters of MindFormers' core models, and none of its own modules'."""
    facts, experts = cluster.facts, cluster.job.experts
    width, inner = facts["width"], facts["inner"]
    kv = 128 * facts["groups"]
    attention = {
        "input_layernorm": HiddenSize(width),
        "linear_qkv": split(width * (width + 2 * kv)),
        "linear_proj": split(width * width),
        "pre_mlp_layernorm": HiddenSize(width),
    }

    def mlp(name: str, outer: int) -> dict[str, HiddenSize]:
        return {f"{name}.linear_fc1": split(2 * outer * width), f"{name}.linear_fc2": split(outer * width)}

    routed = {
        "router.weight": HiddenSize(width, ("experts",)),
        "experts.w1": HiddenSize(2 * inner * width, ("experts",), ("ep",)),
        "experts.w2": HiddenSize(inner * width, ("experts",), ("ep",)),
        **mlp("shared_experts", facts["shared"]),
    }
    each = {"layer": {**attention, **(routed if experts > 1 else mlp("mlp", inner))}}
    each["dense"] = {**attention, **mlp("mlp", 4 * inner)}
    blocks = {
        name: replace(block, parameters=tuple(each[name].items())) if name in each else block
        for name, block in cluster.blocks.items()
    }
    # Their gradients are reduced after the backward pass.
    return replace(cluster, blocks=blocks, hidden_reduction=False)


def written(cluster: Cluster, folder: Path, searched: set[str]) -> list[str]:
    """Words of a command on a YAML whose runs a scheduler has started."""
    file = folder / "train.yaml"
    file.write_text(text_of(cluster))
    for run in plan_small_runs(launchers_for(file)[0].job_sizes(file), CARDS, searched).runs:
        # Where MindFormers' ranks write: mindformers/core/callback/callback.py:1717-1721.
        place = folder / "tune" / run.name / "profile" / "profile" / "rank_0"
        write_run(cluster, run.setting, place, (9, 10))
    limit = cluster.machine.limit / 2**30
    return [
        *("--yaml_path", file.name, "--nnodes", "2", "--nproc-per-node", "8", "--dry"),
        *("--search", ",".join(sorted(searched)), "--memory_gib", str(limit)),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "variant", "searched"), [(3, "", {"tp", "pp"}), (4, "dense", {"tp", "ep", "pp", "vpp"})]
)
def test_plans_of_a_yaml_are_those_of_the_cluster_that_ran_it(tmp_path, monkeypatch, capsys, seed, variant, searched):
    cluster = as_core_models(hidden_cluster(seed, variant))
    words = written(cluster, tmp_path, searched)
    monkeypatch.chdir(tmp_path)
    command.run(words)  # Writes the files of the runs, and finds their profiles.
    printed = capsys.readouterr().out
    assert "no plan searched" not in printed and "one chunk a stage" in printed
    best = json.loads(Path("tune/best.json").read_text())["best"]
    assert len(best) >= 2
    for place, one in enumerate(best, 1):
        file = tmp_path / "tune" / "best" / f"train_{place}.yaml"
        read = launchers_for(file)[0].read(file)
        degrees = read.strategy
        assert {name: getattr(degrees, name) for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "mbs")} == one[
            "strategy"
        ]
        assert degrees.op == degrees.dp * degrees.cp and degrees.global_batch == cluster.batch and not read.misfits
        plan = read.plan
        assert plan is not None and [list(row) for row in plan.total_layers()] == one["layers"]
        assert [list(row) for row in plan.recomputed(FULL)] == one["recompute"].get(FULL, [[0] * degrees.pp])
        assert_true(cluster, cluster.job.replace(**one["strategy"]), plan, one)


def assert_true(cluster: Cluster, run: RunSetting, plan: PipelinePlan, one: dict[str, Any]) -> None:
    """Check a plan's step and peaks by the cluster's own laws."""
    layers = dict(zip(("dense", "layer") if run.dense else ("layer",), plan.layers.values(), strict=True))
    stages = [[tuple(chunk) for chunk in chunks] for chunks in stage_blocks(replace(plan, layers=layers))]
    assert one["step_ms"] == pytest.approx(cluster.step_ns(run, stages) / 1e6, rel=0.03)
    micro = cluster.batch // (run.dp * run.mbs)
    peaks = [cluster.peak_of_chunks(run, chunks, at, micro) for at, chunks in enumerate(stages)]
    assert max(peaks) <= cluster.machine.limit
    assert one["peak_memory"] == pytest.approx(peaks, rel=0.03)


@pytest.mark.skipif(not FILES.is_dir(), reason="real files are not here")
def test_parameters_of_real_files_add_up_to_their_models():
    counted = 0
    for file in sorted(FILES.glob("*.yaml")):
        source = YamlSource.read(file)
        try:
            config = launchers_for(file)[0].read(file)
            strategy = config.strategy.__class__(1, 1, 1)
            alone = launchers_for(file)[0].with_strategy(config, strategy, None, {})
            found = rank_parameters(YamlSource(alone, file))
        except InputError:
            continue
        model = config.model
        kinds = dict(
            zip(("dense", "layer") if "dense" in found else ("layer",), model.body_counts.values(), strict=True)
        )
        total = sum(sum(block.values()) * kinds.get(name, 1) for name, block in found.items())
        assert total == total_parameters(model), file.name
        assert source.text == file.read_text(encoding="utf-8")
        counted += 1
    assert counted >= 6


def test_parameters_are_split_as_the_classes_split_them(tmp_path):
    cluster = as_core_models(hidden_cluster(4, "dense"))
    job = cluster.job
    file = tmp_path / "train.yaml"
    file.write_text(text_of(cluster))
    found = rank_parameters(YamlSource.read(file))
    assert set(found) == {"embedding", "dense", "layer", "head"}
    for name in ("dense", "layer"):
        wanted = sorted(size.of(job) for _, size in cluster.blocks[name].parameters)
        assert sorted(found[name].values()) == wanted
    (table,) = found["embedding"].values()
    assert table == cluster.facts["vocabulary"] * cluster.facts["width"] // job.tp


def test_a_network_whose_parameters_are_not_known_one_by_one_has_no_plan(tmp_path):
    file = tmp_path / "train.yaml"
    text = text_of(hidden_cluster(3))
    file.write_text(text + "    mtp_num_layers: 1\n")
    with pytest.raises(InputError, match=r"MTP layers.*taylor search"):
        rank_parameters(YamlSource.read(file))
