"""Models of unlike layers by Megatron's flags: their counts against those of the models' own code, and their order.

Flags are those that NVIDIA-NeMo/Megatron-Bridge (067f987d) sets for the models' configurations:
src/megatron/bridge/models/nemotronh/nemotron_h_bridge.py, gpt_oss/gpt_oss_bridge.py, qwen/qwen3_next_bridge.py,
llama/llama4_utils.py; sizes are the configurations' own.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import layer_parameters, total_parameters
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes, routed_slots
from taylor.cost_model.memory.backward_workspace import workspace_bytes
from taylor.cost_model.time.step import layer_time
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, NONE
from taylor.register.layers import SLIDING, MoeSpec
from taylor.register.pattern import kinds_in_order
from taylor.register.registry import Registry
from tests.conftest import SHARED
from tests.parsers.megatron.test_scripts import BASE, needs_samples, script_of

COMMON = """
--seq-length 4096
--max-position-embeddings 4096
--position-embedding-type rope
--normalization RMSNorm
--untie-embeddings-and-output-weights
--group-query-attention
--micro-batch-size 1
--global-batch-size 8
--bf16
"""
NEMOTRON = "--disable-bias-linear --squared-relu --kv-channels 128 --mamba-state-dim 128 --mamba-head-dim 64 "
NEMOTRON += "--mamba-num-groups 8 --num-query-groups 2 --padded-vocab-size 131072 --moe-router-enable-expert-bias "
NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
NANO_SIZES = "--hidden-size 2688 --num-attention-heads 32 --mamba-num-heads 64 --num-experts 128 --moe-router-topk 6 "
NANO_SIZES += "--ffn-hidden-size 1856 --moe-ffn-hidden-size 1856 --moe-shared-expert-intermediate-size 3712"
ULTRA = "MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEME"
ULTRA += "MEME"
ULTRA_SIZES = (
    "--hidden-size 8192 --num-attention-heads 64 --mamba-num-heads 256 --num-experts 512 --ffn-hidden-size 5120 "
)
ULTRA_SIZES += "--moe-router-topk 22 --moe-ffn-hidden-size 5120 --moe-shared-expert-intermediate-size 10240 "
ULTRA_SIZES += "--moe-latent-size 2048"
QWEN = "--disable-bias-linear --swiglu --qk-layernorm --attention-output-gate --kv-channels 256 "
QWEN += "--experimental-attention-variant gated_delta_net --linear-attention-freq 4 --padded-vocab-size 248320 "
LLAMA4 = "--num-layers 48 --hidden-size 5120 --num-attention-heads 40 --num-query-groups 8 --kv-channels 128 --swiglu "
LLAMA4 += "--disable-bias-linear --padded-vocab-size 202048 --ffn-hidden-size 16384 --moe-ffn-hidden-size 8192 "
LLAMA4 += "--moe-router-topk 1 --moe-shared-expert-intermediate-size 8192 --qk-l2-norm "
MODELS = {
    "Nemotron-3-Nano-30B-A3B": f"{NEMOTRON} {NANO_SIZES} --hybrid-layer-pattern '{NANO}'",
    "Nemotron-3.5-Lightning-30B-A3B": f"{NEMOTRON} {NANO_SIZES} --hybrid-layer-pattern '{NANO}/*E' --mtp-num-layers 1",
    "Nemotron-3-Ultra-550B-A55B": f"{NEMOTRON} {ULTRA_SIZES} --hybrid-override-pattern '{ULTRA}' --is-hybrid-model "
    "--mtp-hybrid-override-pattern '*E' --mtp-num-layers 1",
    "gpt-oss-20b": "--num-layers 24 --hidden-size 2880 --num-attention-heads 64 --num-query-groups 8 --kv-channels 64 "
    "--ffn-hidden-size 2880 --moe-ffn-hidden-size 2880 --num-experts 32 --moe-router-topk 4 --quick-geglu "
    "--softmax-type learnable --window-size 127,0 --window-attn-skip-freq 2 --padded-vocab-size 201088",
    "Qwen3.5-122B-A10B": f"{QWEN} --num-layers 48 --hidden-size 3072 --num-attention-heads 32 --num-query-groups 2 "
    "--linear-num-value-heads 64 --num-experts 256 --moe-router-topk 8 --ffn-hidden-size 1024 "
    "--moe-ffn-hidden-size 1024 --moe-shared-expert-intermediate-size 1024 --moe-shared-expert-gate",
    "Qwen3.5-27B": f"{QWEN} --num-layers 64 --hidden-size 5120 --num-attention-heads 24 --num-query-groups 4 "
    "--linear-num-value-heads 48 --ffn-hidden-size 17408",
    "Llama-4-Scout": f"{LLAMA4} --num-experts 16",
    "Llama-4-Maverick": f"{LLAMA4} --num-experts 128 --moe-layer-freq ([0]*1+[1]*1)*24",
    "DeepSeek-V3.2": "--num-layers 61 --hidden-size 7168 --num-attention-heads 128 --ffn-hidden-size 18432 --swiglu "
    "--disable-bias-linear --multi-latent-attention --qk-layernorm --q-lora-rank 1536 --kv-lora-rank 512 "
    "--num-experts 256 --moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--moe-layer-freq ([0]*3+[1]*58) --moe-router-enable-expert-bias --padded-vocab-size 129280 "
    "--experimental-attention-variant dsa --dsa-indexer-n-heads 64 --dsa-indexer-head-dim 128 "
    "--dsa-indexer-topk 2048 --num-query-groups 128",
}


def job(folder: Path, flags: str) -> Path:
    """A script with the flags on one line, lists in quotes."""
    words = [f"'{word}'" if set(word) & set("()*|") and word[0] != "'" else word for word in flags.split()]
    file = folder / "job.sh"
    file.write_text(f"torchrun --nproc_per_node 8 pretrain.py {' '.join(words)}\n")
    return file


@needs_samples
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_unlike_layers_has_the_parameters_of_its_own_code(name: str, tmp_path: Path) -> None:
    with (SHARED / "data" / "model_configs" / "models.csv").open(encoding="utf-8") as table:
        row = next(each for each in csv.DictReader(table) if each["model"] == name)
    model = read_config(job(tmp_path, MODELS[name] + COMMON)).model
    assert total_parameters(model) == pytest.approx(int(row["counted_parameters"]), rel=0.001)
    # Chunked attention has no flag, and is full attention here.
    wanted = [kind.replace("attn-chunked", "attn") for kind in kinds_in_order(row["pattern"])]
    read = kinds_in_order(model.pattern) if model.pattern else ["attn+moe"] * model.n_layers
    assert list(read) == wanted


@needs_samples
@pytest.mark.parametrize(
    ("file", "billions"), [("msp_qwen3_next_80b_A3.sh", 79.674), ("meg_Nemotron-H-56B-Base-8K.sh", 54.714)]
)
def test_a_real_script_of_unlike_layers_has_its_published_parameters(file: str, billions: float) -> None:
    """Qwen3-Next: its Hugging Face count. Nemotron-H: 56.3 with its vocabulary of 131,072, which the script lacks."""
    model = read_config(SHARED / "data" / "configs_more" / file).model
    assert total_parameters(model) / 1e9 == pytest.approx(billions, rel=0.001)


def kinds_of(folder: Path, more: str) -> list[str]:
    model = read_config(script_of(folder, BASE.replace("--num-layers 24", "--num-layers 8") + more, "command")).model
    return list(kinds_in_order(model.pattern)) if model.pattern else []


EXPERTS = "--num-experts 8\n--moe-ffn-hidden-size 512\n"
S, F, G = "attn-sliding+dense", "attn+dense", "gdn+dense"


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ("--window-size 127,0", [S] * 8),
        ("--window-size '(127, 0)'\n--window-attn-skip-freq 4", [S, S, S, F] * 2),
        ("--window-size 127,0\n--window-attn-skip-freq '[1]*6+[0]*2'", [S] * 6 + [F] * 2),
        ("--window-size -1,0\n--softmax-type learnable", [F] * 8),
        ("--window-size -1,0", []),
        ("--sliding-window 4096", [S] * 8),
        ("--experimental-attention-variant gdn\n--linear-attention-freq 4", [G, G, G, F] * 2),
        ("--experimental-attention-variant gdn\n--linear-attention-freq '[0]+[1]*7'", [F] + [G] * 7),
        ("--full-attention-interval 3", [G, G, F, G, G, F, G, G]),
        (EXPERTS + "--moe-layer-freq 2", ["attn+moe", F] * 4),
        (EXPERTS + "--moe-layer-freq '([0]+[1])*4'", [F, "attn+moe"] * 4),
        (EXPERTS + "--moe-layer-freq '[0]*2+[1]*6'", []),
        (EXPERTS + "--moe-layer-freq '[0]*8'", []),
        ("--attention-output-gate", [F] * 8),
    ],
)
def test_every_layer_is_of_the_kind_that_the_flags_say(more: str, wanted: list[str], tmp_path: Path) -> None:
    assert kinds_of(tmp_path, more + "\n") == wanted


def test_a_window_counts_the_token_itself(tmp_path: Path) -> None:
    model = read_config(script_of(tmp_path, BASE + "--window-size 127,0\n")).model
    attention = model.layer(model.body_kind).attention
    assert attention is not None and (attention.reach, attention.window) == (SLIDING, 128)


def test_layers_that_reuse_chosen_tokens_have_no_indexer_of_their_own(tmp_path: Path) -> None:
    """With a frequency of 4 and an offset of 1, layers 1, 5, 9, … choose (Megatron-LM main dsa.py:37-56)."""
    more = "--multi-latent-attention\n--experimental-attention-variant dsa\n--dsa-indexer-n-heads 4\n"
    more += "--dsa-indexer-head-dim 64\n--dsa-indexer-topk 512\n--dsa-indexer-topk-freq 4\n"
    model = read_config(script_of(tmp_path, BASE + more)).model
    assert list(kinds_in_order(model.pattern)) == (["mla-dsa+dense"] + ["mla-dsa-reused+dense"] * 3) * 6
    indexers = [kind.attention.indexer for kind in model.kinds if kind.attention is not None]
    assert [each.parameters for each in indexers if each is not None] == [1024 * (4 * 64 + 64 + 4) + 128, 0]


def test_an_mtp_module_is_the_last_layer_again(tmp_path: Path) -> None:
    more = EXPERTS + "--moe-layer-freq '([1]+[0])*12'\n--mtp-num-layers 1\n"
    model = read_config(script_of(tmp_path, BASE + more, "command")).model
    assert model.body_kind == "attn+moe" and [each.name for each in model.mtp_module()] == ["attn+dense"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("--experimental-attention-variant gdn2", "attention of the variant gdn2"),
        ("--experimental-attention-variant gdn", "--linear-attention-freq: is missing"),
        ("--experimental-attention-variant dsa", "wants latent attention"),
        ("--window-size 127", "two whole numbers"),
        ("--heterogeneous-layers-config-path blocks.json", "--heterogeneous-layers-config-path: asks for what is not"),
        ("--spec mindspeed_llm.tasks.models.spec.longcat_spec layer_spec", "the layers of this spec have experts"),
        ("--spec mindspeed_llm.tasks.models.spec.deepseek4_spec layer_spec", "--qk-head-dim: is missing"),
        ("--spec megatron.core.models.hybrid.hybrid_layer_specs gated_delta_product_stack_spec", "delta products"),
    ],
)
def test_layers_that_are_not_modelled_are_refused_by_their_name(more: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_config(script_of(tmp_path, BASE + more + "\n"))


LONGCAT = (
    "--spec mindspeed_llm.tasks.models.spec.longcat_spec layer_spec --num-layers 28 --hidden-size 6144 --swiglu "
    "--ffn-hidden-size 12288 --num-attention-heads 64 --kv-channels 64 --multi-latent-attention --q-lora-rank 1536 "
    "--kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --qk-layernorm "
    "--num-experts 512 --num-zero-experts 256 --moe-router-topk 12 --moe-ffn-hidden-size 2048 --moe-grouped-gemm "
    "--padded-vocab-size 131072 --disable-bias-linear --tensor-model-parallel-size 8 --sequence-parallel "
    "--pipeline-model-parallel-size 4 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 --nnodes 4"
)
"""Of MindSpeed-LLM c77308a1 examples/mcore/longcat_flash, on fewer devices."""


def test_longcat_s_layers_are_the_registered_ones_and_whole_on_a_stage(tmp_path: Path) -> None:
    config = read_config(job(tmp_path, LONGCAT + COMMON))
    known = Registry.load().model("longcat-flash-560b")
    assert total_parameters(config.model) == total_parameters(known)
    assert config.model.pattern == known.pattern and config.plan is not None
    assert config.plan.layers == {config.model.body_kind: ((7, 7, 7, 7),)}
    assert not [flag for flag in config.unmodelled if flag.name in ("spec", "num-zero-experts")]


def test_a_layer_of_two_halves_costs_what_they_cost(tmp_path: Path) -> None:
    """But for full recompute, which keeps the input of the first one alone."""
    config = read_config(job(tmp_path, LONGCAT + COMMON))
    model, strategy, rules = config.model, config.strategy, config.rules
    device, whole = Registry.load().device("ascend-a3"), model.body_kind
    halves = model.layers_of(whole)
    apart = model.replace(
        n_layers=2,
        kinds=tuple(half.replace(name=f"half{at}") for at, half in enumerate(halves)),
        pattern=", ".join(f"1 half{at}" for at in range(len(halves))),
    )
    each = [f"half{at}" for at in range(len(halves))]
    kept, full = (
        [float(activation_bytes(part, kind, mode, strategy, rules)) for part, kinds in ((model, [whole]), (apart, each))
         for kind in kinds]
        for mode in (NONE, FULL)
    )  # fmt: skip
    assert kept[0] == pytest.approx(sum(kept[1:])) and full[0] == full[1] == full[2]
    assert layer_parameters(model, whole) == sum(layer_parameters(apart, kind) for kind in each)
    rebuilt = float(workspace_bytes(model, strategy, rules)) - float(workspace_bytes(apart, strategy, rules))
    assert rebuilt > 0
    ahead = [float(layer_time(part, kind, strategy, rules, device).forward) for part, kind in
             ((model, whole), (apart, each[0]), (apart, each[1]))]  # fmt: skip
    assert ahead[0] == pytest.approx(ahead[1] + ahead[2], rel=1e-3)


def test_tokens_of_experts_that_hold_nothing_are_sent_and_kept_but_not_multiplied() -> None:
    moe, rules, degrees = MoeSpec(512, 12, 2048, n_empty=256), TrainingRules(), Strategy(1, 1, 1, ep=8)
    assert moe.visited == 8 and routed_slots(moe, degrees, rules) == 8


def test_a_part_that_is_counted_as_kept_is_said(tmp_path: Path) -> None:
    more = "--experimental-attention-variant gdn\n--linear-attention-freq 4\n--recompute-granularity selective\n"
    file = script_of(tmp_path, BASE + more + "--recompute-modules gdn_norm_out core_attn\n", "command")
    assert any("gdn_norm_out: counted as kept" in note for note in read_config(file).notes)


def test_endless_runs_are_no_plan(tmp_path: Path) -> None:
    """A short list that asks for some thousands of runs over some thousands of chunks."""
    flags = BASE.replace("--num-layers 24", "--num-layers 8192").replace("size 4", "size 4096") + EXPERTS
    flags = flags.replace("--global-batch-size 64", "--global-batch-size 4096")
    config = read_config(script_of(tmp_path, flags + "--moe-layer-freq 2\n", "command"))
    assert config.plan is None and any("8192 runs of different layers" in note for note in config.notes)
