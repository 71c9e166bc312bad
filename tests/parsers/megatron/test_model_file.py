"""MindSpeed-MM: the language model's sizes and layers come from the JSON that ``--mm-model`` names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.megatron.model_file import MAX_BYTES
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs

SCRIPT = """\
MM_MODEL="./examples/vl/model.json"
GPT_ARGS="
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 VPP --micro-batch-size 1 --global-batch-size 32 \\
    --seq-length 1024 --vocab-size 152064 --make-vocab-size-divisible-by 1 --bf16 --use-flash-attn \\
    --use-distributed-optimizer --num-layers 1
"
torchrun --nproc_per_node 8 --nnodes 1 pretrain_vlm.py $GPT_ARGS --mm-data data.json --mm-model $MM_MODEL
"""
DECODER: dict[str, Any] = {
    "num_layers": 28, "pipeline_num_layers": [4, 8, 8, 8], "hidden_size": 3584, "ffn_hidden_size": 18944,
    "num_attention_heads": 28, "group_query_attention": True, "num_query_groups": 4, "add_qkv_bias": True,
    "position_embedding_type": "mrope", "normalization": "RMSNorm", "gated_linear_unit": True,
    "add_bias_linear": False, "untie_embeddings_and_output_weights": True, "max_position_embeddings": 128000,
    "vocab_size": 152064, "rope_scaling": None, "mrope_section": [16, 24, 24],
}  # fmt: skip


def job(folder: Path, data: object, vpp: str = "") -> Path:
    """The script in a repository of its own, with what its JSON holds."""
    place = folder / "repository" / "examples" / "vl"
    place.mkdir(parents=True, exist_ok=True)
    text = data if isinstance(data, str) else json.dumps(data)
    (place / "model.json").write_text(text, encoding="utf-8")
    file = place / "finetune.sh"
    file.write_text(SCRIPT.replace("VPP", vpp), encoding="utf-8")
    return file


def test_sizes_and_layers_come_from_the_json_of_the_model(tmp_path: Path) -> None:
    config = read_config(job(tmp_path, {"image_encoder": {"num_layers": 32}, "text_decoder": DECODER}))
    assert total_parameters(config.model) == pytest.approx(7_615_616_512)  # Qwen2.5-7B's published count
    assert config.plan is not None and config.plan.total_layers() == ((4, 8, 8, 8),)
    assert (config.strategy.pp, config.strategy.dp, config.strategy.micro_batches) == (4, 2, 16)
    (encoder,) = [flag for flag in config.unmodelled if flag.name == "--mm-model"]
    assert encoder.may_raise_memory and not encoder.may_lower_memory
    two = {**DECODER, "pipeline_num_layers": [[2, 4, 4, 4], [4, 4, 3, 3]]}
    config = read_config(job(tmp_path, {"text_decoder": two}, "--virtual-pipeline-model-parallel-size 2"))
    assert config.plan is not None and config.plan.total_layers() == ((2, 4, 4, 4), (4, 4, 3, 3))


def test_a_plan_is_not_written_into_a_script_whose_layers_stand_elsewhere(tmp_path: Path) -> None:
    file = job(tmp_path, {"text_decoder": DECODER})
    before = file.read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"model.json: text_decoder.pipeline_num_layers: is not written"):
        solve_file(FileJob(file, dryrun=False, check=False), SolveOptions(time_limit=5), Outputs(folder=tmp_path))
    config = read_config(file)
    with pytest.raises(InputError, match="write 7,7,7,7 there"):
        write_plan(config, config.even_plan(config.strategy))
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [4, 24]}}, "must list the layers of each of the 4 stages"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [4, 8, 8, "8"]}}, "must list the layers"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [4, 8, 8, 10**9]}}, "must list the layers"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [[4, 8, 8, 8]]}}, "under --virtual-pipeline-model-par"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [4, 8, 8, 9]}}, "has 29 layers, so that no stage has the"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [8, 0, 10, 10]}}, "has no layer on position 1"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": [0, 8, 10, 10]}}, "begins on position 1, and no encoder"),
        ({"text_decoder": {**DECODER, "pipeline_num_layers": None}}, "must list the layers"),
        (
            {"text_decoder": DECODER, "patch": {"layerwise_disaggregated_training": True}},
            "patch.layerwise_disaggregated_training: puts the first and the last layers on one stage",
        ),
        ({"text_decoder": {**DECODER, "hidden_size": True}}, "hidden-size"),
        ({"text_decoder": {**DECODER, "hidden_size": -1}}, "hidden-size"),
        ({"text_decoder": {"num_layers": 2}, "init_from_hf_path": "/x"}, "lie in the folder of init_from_hf_path"),
        ({"predictor": {"model_id": "wandit"}}, "is a diffusion model, wandit"),
        ({"mllm": {}}, "text_decoder: is missing"),
        ("[" * 100_000, "is not JSON"), ("{", "is not JSON"), ("[1]", "is not a JSON object"),
        (" " * (MAX_BYTES + 1), "model.json"),
    ],
)  # fmt: skip
def test_a_json_without_a_language_model_s_sizes_is_refused_by_its_reason(
    data: object, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        read_config(job(tmp_path, data))


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--virtual-pipeline-model-parallel-size 2", "a row for each of the 2 virtual stages"),
        ("--virtual-pipeline-model-parallel-size 2 --pipeline-model-parallel-size 1", "needs 2 stages or more"),
        (
            "--virtual-pipeline-model-parallel-size 2 --pipeline-model-parallel-size 2 --no-overlap-p2p-communication",
            "needs 3 stages or more",
        ),
        ("--virtual-pipeline-model-parallel-size two", "must be a whole number"),
        ("--num-virtual-stages-per-pipeline-rank 2", "is refused by MindSpeed-MM.*use --virtual-pipeline-model-par"),
        ("--num-layers-per-virtual-pipeline-stage 2", "is refused by MindSpeed-MM.*use --virtual-pipeline-model-par"),
    ],
)
def test_virtual_stages_that_the_launcher_refuses_are_refused(flags: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_config(job(tmp_path, {"text_decoder": DECODER}, flags))


def test_the_flag_of_the_virtual_stages_is_mindspeed_mm_s_alone(tmp_path: Path) -> None:
    for off in (0, 1):
        config = read_config(job(tmp_path, {"text_decoder": DECODER}, f"--virtual-pipeline-model-parallel-size {off}"))
        assert config.strategy.vpp == 1 and [flag.name for flag in config.unmodelled] == ["--mm-model"]
    file = job(tmp_path, {"text_decoder": DECODER}, "--virtual-pipeline-model-parallel-size 2")
    sizes = "--hidden-size 512 --num-attention-heads 8 --max-position-embeddings 1024"
    text = file.read_text(encoding="utf-8").replace("--mm-model $MM_MODEL", sizes)
    file.write_text(text.replace("--num-layers 1", "--num-layers 28"), encoding="utf-8")
    (found,) = read_config(file).unmodelled
    assert found.name == "--virtual-pipeline-model-parallel-size" and not found.known


def test_a_missing_json_is_named_and_one_beside_the_script_is_taken(tmp_path: Path) -> None:
    file = job(tmp_path, {"text_decoder": DECODER})
    alone = tmp_path / "elsewhere" / "run.sh"
    alone.parent.mkdir()
    alone.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError, match="--mm-model: names a JSON that is not there"):
        read_config(alone)
    unknown = file.with_name("other.sh")
    text = file.read_text(encoding="utf-8").replace("./examples", "$(cd `dirname $0`; cd ../..; pwd)/examples")
    unknown.write_text(text, encoding="utf-8")
    assert read_config(unknown).model.hidden == 3584
    (alone.parent / "model.json").write_text(json.dumps({"text_decoder": DECODER}), encoding="utf-8")
    assert read_config(alone).model.hidden == 3584
