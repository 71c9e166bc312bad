"""DeepSeek-V4 by MindSpeed-LLM's flags is the published model, cut or whole."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.megatron.placing import chunk_layers
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan, deal_kinds
from taylor.register.model import MTP
from taylor.register.registry import Registry

RATIOS = "0 0 " + " ".join(["4 128"] * 20) + " 4"
FLAGS = (
    "torchrun --nproc_per_node 16 --nnodes 2 pretrain_deepseek4.py --tensor-model-parallel-size 1 "
    "--pipeline-model-parallel-size 2 --expert-model-parallel-size 16 --expert-tensor-parallel-size 1 "
    "--num-layers LAYERS --hidden-size 4096 --ffn-hidden-size 2048 --num-attention-heads 64 --seq-length 4096 "
    "--max-position-embeddings 163840 --micro-batch-size 1 --global-batch-size 64 --padded-vocab-size 129280 "
    "--untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type deepseek4 "
    "--normalization RMSNorm --swiglu --bf16 --use-distributed-optimizer --use-flash-attn "
    "--spec mindspeed_llm.tasks.models.spec.deepseek4_spec layer_spec --multi-latent-attention --qk-layernorm "
    "--qk-pos-emb-head-dim 64 --qk-head-dim 512 --q-lora-rank 1024 --o-lora-rank 1024 --kv-lora-rank 512 "
    "--v-head-dim 128 --o-groups 8 --sliding-window-size 128 --compress-ratios RATIOS --enable-dsa-indexer "
    "--index-n-heads 64 --index-head-dim 128 --index-topk 512 --enable-mhc --hc-mult 4 --kv-compress "
    "--num-experts 256 --moe-router-topk 6 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
    "--first-k-dense-replace -1 --moe-layer-freq 1 --moe-router-enable-expert-bias MORE\n"
)


def job(folder: Path, layers: int = 43, ratios: str = RATIOS, more: str = "") -> Path:
    file = folder / "pretrain.sh"
    text = FLAGS.replace("LAYERS", str(layers)).replace("RATIOS", ratios).replace("MORE", more)
    file.write_text(text, encoding="utf-8")
    return file


def test_the_flash_model_has_its_published_layers_and_parameters(tmp_path: Path) -> None:
    published = Registry.load().model("deepseek-v4-flash")
    for file in (job(tmp_path), job(tmp_path, 44, more="--noop-layers 43")):
        config = read_config(file)
        assert total_parameters(config.model) == pytest.approx(total_parameters(published), rel=1e-6)
        assert config.model.pattern == published.pattern and config.model.head_dim == 512
        assert [layer.attention for layer in config.model.kinds] == [each.attention for each in published.kinds]
        assert not [flag.name for flag in config.unmodelled if flag.name in ("--compress-ratios", "--enable-mhc")]


@pytest.mark.parametrize(
    ("layers", "ratios", "says"),
    [(5, "0 0 4 128", "has 4 entries, and there is a layer 5"), (2, "0 x", "must be whole numbers")],
)
def test_ratios_that_do_not_fit_the_layers_are_refused(layers: int, ratios: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"--compress-ratios: {says}"):
        read_config(job(tmp_path, layers, ratios))


def test_a_cut_model_keeps_the_kinds_of_its_layers(tmp_path: Path) -> None:
    model = read_config(job(tmp_path, 4, "0 0 4 128 4 128")).model
    assert model.pattern == "2 mqa-sliding+moe, 1 csa+moe, 1 hca+moe" and model.n_layers == 4
    plain = read_config(job(tmp_path, 4, "0 0 4 64")).model
    assert plain.pattern == "2 mqa-sliding+moe, 1 csa+moe, 1 hca64+moe"


@pytest.mark.parametrize("mtp", [False, True])
def test_a_written_plan_gives_each_layer_its_own_ratio_at_its_new_position(mtp: bool, tmp_path: Path) -> None:
    """csa.py:274 finds a layer's ratio by its position, empty ones included."""
    after = ["0"] if mtp else []
    more = "--noop-layers 43" + (" --mtp-num-layers 1" if mtp else "")
    config = read_config(job(tmp_path, 44, " ".join([RATIOS, "0", *after]), more))
    counts = config.model.layer_counts()
    plan = PipelinePlan(deal_kinds(counts, [25, 18], 2, False, {MTP: 1} if mtp else {}), {})
    written = write_plan(config, plan, output=tmp_path / "written.sh")
    again = read_config(written)
    assert again.plan is not None
    assert chunk_layers(again.model, again.plan, False) == chunk_layers(config.model, plan, False)
    text = written.read_text(encoding="utf-8")
    count, empty = (re.findall(rf"--{flag} ([\d,]+)", text)[-1] for flag in ("num-layers", "noop-layers"))
    ratios = re.findall(r"--compress-ratios ([\d ]+)", text)[-1].split()
    layers = [ratio for at, ratio in enumerate(ratios[: int(count)]) if str(at) not in empty.split(",")]
    assert layers == RATIOS.split() and ratios[int(count) :] == after
