"""Small random jobs of each framework, as its training file and as its own code is asked about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from benchmarks.reliability.legality import Job
from benchmarks.reliability.megatron_verdict import refusal
from benchmarks.reliability.mindformers_verdict import refusal as mindformers_refusal
from benchmarks.reliability.torchtitan_verdict import refusal as torchtitan_refusal
from taylor.cost_model.job.strategy import Strategy

WORLDS = (8, 12, 16, 16, 24, 32)


def megatron_job(draw: random.Random, seed: int) -> Job:
    """A launch script of Megatron-LM; odd sizes among usual ones."""
    heads = draw.choice([4, 8, 8, 12, 16])
    groups = draw.choice([heads, *[g for g in (1, 2, 4, 8) if heads % g == 0]])
    layers, hidden = draw.choice([3, 4, 6, 8, 8, 12]), draw.choice([48, 64, 96]) * heads // 4
    flags = {
        "num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads,
        "ffn-hidden-size": draw.choice([90, 96, 96, 192]), "seq-length": draw.choice([24, 32, 64, 64]),
        "vocab-size": draw.choice([100, 128]), "max-position-embeddings": 64, "position-embedding-type": "rope",
        "bf16": "", "untie-embeddings-and-output-weights": "", "swiglu": "", "disable-bias-linear": "",
    }  # fmt: skip
    if groups != heads:
        flags |= {"group-query-attention": "", "num-query-groups": groups}
    experts = draw.choice([None, None, 4, 8, 12])
    if experts is not None:
        flags |= {"num-experts": experts, "moe-router-topk": 2, "moe-ffn-hidden-size": draw.choice([24, 32, 36])}
        flags |= {"moe-token-dispatcher-type": "alltoall"}
        if draw.random() < 0.4:
            flags["expert-tensor-parallel-size"] = draw.choice([1, 1, 2])
    if draw.random() < 0.7:
        flags["use-distributed-optimizer"] = ""
    if draw.random() < 0.25:
        flags["cp-comm-type"] = "a2a"
    if draw.random() < 0.25:
        flags["no-overlap-p2p-communication"] = ""
    group = draw.choice([None, None, None, 2, 3, 4, 6])
    if group is not None:
        flags["microbatch-group-size-per-virtual-pipeline-stage"] = group
    world, gbs = draw.choice(WORLDS), draw.choice([8, 16, 24, 32, 48])
    words = " ".join(f"--{name} {value}".strip() for name, value in flags.items())
    sizes = "--micro-batch-size 1 --global-batch-size"
    text = f"torchrun --nproc_per_node {world} pretrain_gpt.py {words} {sizes} {world}\n"

    def verdict(strategy: Strategy) -> str | None:
        degrees = {
            "tensor-model-parallel-size": strategy.tp, "pipeline-model-parallel-size": strategy.pp,
            "context-parallel-size": strategy.cp, "expert-model-parallel-size": strategy.ep,
            "micro-batch-size": strategy.mbs, "global-batch-size": gbs,
        }  # fmt: skip
        asked = [word for name, value in {**flags, **degrees}.items() for word in (f"--{name}", str(value)) if word]
        asked += ["--sequence-parallel"] * strategy.sp + _layers(layers, strategy)
        return refusal(asked, world)

    return Job("job.sh", text, world, gbs, experts, verdict)


def _layers(layers: int, strategy: Strategy) -> list[str]:
    """Layer placement in a script: by numbers where they are even, else as a layout."""
    chunks = strategy.pp * strategy.vpp
    if layers % chunks == 0 or chunks > layers or strategy.pp == 1:
        return ["--num-virtual-stages-per-pipeline-rank", str(strategy.vpp)] if strategy.vpp > 1 else []
    counts = [layers // chunks + (place < layers % chunks) for place in range(chunks)]
    parts = ["t" * count for count in counts]
    layout = "|".join(["E" + parts[0], *parts[1:-1], parts[-1] + "L"])
    return ["--pipeline-model-parallel-layout", layout]


def torchtitan_job(draw: random.Random, seed: int) -> Job:
    """A TOML file of torchtitan with a model of its own sizes; the number of ranks is that of the seed."""
    heads = draw.choice([4, 8, 8, 12])
    sizes = {
        "dim": heads * 16, "n_layers": draw.choice([4, 6, 8, 8, 12]), "n_heads": heads,
        "n_kv_heads": draw.choice([heads, *[kv for kv in (1, 2, 4, 8) if heads % kv == 0]]),
        "vocab_size": draw.choice([100, 128]), "seq_len": draw.choice([24, 32, 64, 64, 96]),
    }  # fmt: skip
    worlds = sorted(set(WORLDS))
    world, gbs, sharded = worlds[seed % len(worlds)], draw.choice([8, 16, 24, 32, 48]), draw.random() < 0.75
    text = (
        f'[model]\nname = "llama3"\nflavor = "tiny"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = {world}\n'
        f"seq_len = {sizes['seq_len']}\n[parallelism]\ndata_parallel_replicate_degree = {1 if sharded else world}\n"
        f"data_parallel_shard_degree = {world if sharded else 1}\n"
    )
    model = (
        f"n_layers: {sizes['n_layers']}\nhidden: {sizes['dim']}\nn_heads: {heads}\nn_kv_heads: {sizes['n_kv_heads']}\n"
        f"head_dim: 16\nffn_hidden: {8 * sizes['dim'] // 3}\nvocab: {sizes['vocab_size']}\nsource: drawn\n"
    )
    job = {**sizes, "gbs": gbs, "experts": None, "etp": 0}
    verdict = partial(torchtitan_refusal, job, world)
    return Job("job.toml", text, world, gbs, None, verdict, {"llama3-tiny.yaml": model})


def mindformers_job(draw: random.Random, seed: int) -> Job:
    """A YAML file of MindFormers with a LLaMA model of its own sizes."""
    heads = draw.choice([4, 8, 8, 12])
    sizes = {
        "num_layers": draw.choice([4, 6, 8, 8, 12]), "hidden_size": heads * 16, "num_heads": heads,
        "n_kv_heads": draw.choice([heads, *[kv for kv in (1, 2, 4, 8) if heads % kv == 0]]),
        "intermediate_size": draw.choice([90, 96, 192]), "vocab_size": 128,
        "seq_length": draw.choice([24, 32, 64, 64, 96]), "use_flash_attention": draw.random() < 0.8,
    }  # fmt: skip
    world, gbs, ulysses = draw.choice(WORLDS), draw.choice([8, 16, 24, 32, 48]), draw.random() < 0.3
    config = "".join(
        f"    {name}: {value}\n" for name, value in {"type": "LlamaConfig", "batch_size": 1, **sizes}.items()
    )
    text = (
        "trainer:\n  type: CausalLanguageModelingTrainer\n  model_name: tiny\n"
        f"runner_config:\n  batch_size: 1\nuse_parallel: True\nparallel:\n  enable_parallel_optimizer: True\n"
        f"parallel_config:\n  data_parallel: {world}\n  model_parallel: 1\n  pipeline_stage: 1\n  micro_batch_num: 1\n"
        + "  context_parallel_algo: ulysses_cp\n" * ulysses
        + f"model:\n  model_config:\n{config}  arch:\n    type: LlamaForCausalLM\n"
    )
    job = {
        "n_heads": heads, "n_kv_heads": sizes["n_kv_heads"], "hidden": heads * 16, "ffn": sizes["intermediate_size"],
        "seq_length": sizes["seq_length"], "flash": sizes["use_flash_attention"], "ulysses": ulysses, "gbs": gbs,
    }  # fmt: skip
    return Job("job.yaml", text, world, gbs, None, partial(mindformers_refusal, job, world))


JOBS: dict[str, Callable[[random.Random, int], Job]] = {
    "megatron": megatron_job,
    "torchtitan": torchtitan_job,
    "mindformers": mindformers_job,
}
