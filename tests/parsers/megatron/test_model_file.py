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
from taylor.pipeline.plan import FULL, PipelinePlan
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


def test_a_plan_goes_into_the_json_and_the_script_stays(tmp_path: Path) -> None:
    text = json.dumps({"text_decoder": DECODER, "note": [1, 2]}, indent=3)
    file = job(tmp_path, text)
    home, before = file.parent / "model.json", file.read_text(encoding="utf-8")
    write_plan((config := read_config(file)), config.even_plan(config.strategy))
    row = ",\n".join(f"         {count}" for count in DECODER["pipeline_num_layers"])
    assert home.read_text(encoding="utf-8") == text.replace(f"[\n{row}\n      ]", "[7, 7, 7, 7]")
    assert home.with_name("model.json.orig").read_text(encoding="utf-8") == text
    assert file.read_text(encoding="utf-8") == before
    written = read_config(file)
    assert written.plan is not None and written.plan.total_layers() == ((7, 7, 7, 7),)
    write_plan(config, config.even_plan(config.strategy))  # a second time changes nothing
    assert read_config(file).plan == written.plan


def test_recompute_goes_into_the_json_alone(tmp_path: Path) -> None:
    data = {"text_decoder": {**DECODER, "recompute_granularity": "full", "recompute_method": "uniform"}}
    file = job(tmp_path, data, "--recompute-granularity full --recompute-method block --recompute-num-layers 9")
    config = read_config(file)
    (note,) = config.notes
    assert note.startswith("--recompute-num-layers: no effect on the language model, which text_decoder in model.json")
    layers = ((4, 8, 8, 8),)
    for again, words in (
        (((2, 2, 2, 2),), ("full", "block", 2)),
        (layers, ("full", "uniform", 1)),
        (((0, 0, 0, 0),), (None, None, None)),
    ):
        plan = PipelinePlan({"dense": layers}, {FULL: again})
        write_plan(config, plan)
        decoder = json.loads((file.parent / "model.json").read_text(encoding="utf-8"))["text_decoder"]
        assert tuple(decoder.get(f"recompute_{key}") for key in ("granularity", "method", "num_layers")) == words
        found = read_config(file).plan
        assert found is not None and found.recomputed(FULL) == again


def test_chunks_of_the_json_are_rows(tmp_path: Path) -> None:
    two = {**DECODER, "pipeline_num_layers": [[2, 4, 4, 4], [4, 4, 3, 3]]}
    file = job(tmp_path, {"text_decoder": two}, "--virtual-pipeline-model-parallel-size 2")
    config = read_config(file)
    write_plan(config, PipelinePlan({"dense": ((4, 4, 4, 4), (3, 3, 3, 3))}, {}))
    decoder = json.loads((file.parent / "model.json").read_text(encoding="utf-8"))["text_decoder"]
    assert decoder["pipeline_num_layers"] == [[4, 4, 4, 4], [3, 3, 3, 3]]
    flat = config.even_plan(config.strategy.replace(vpp=1))
    with pytest.raises(InputError, match=r"2 chunks, and the plan has 1.*set it to 1 and solve again"):
        write_plan(config, flat)
    with pytest.raises(InputError, match=r"global-batch-size.*set it to 16 there"):
        write_plan(config, config.even_plan(config.strategy), micro_batches=8)
    with pytest.raises(InputError, match=r"optimizer-cpu-offload: is not written.*set it there"):
        write_plan(config.replace(added=(("optimizer-cpu-offload", True),)), config.even_plan(config.strategy))


def test_a_schedule_that_the_script_states_otherwise_is_refused_before_the_solve(tmp_path: Path) -> None:
    stated = FileJob(job(tmp_path, {"text_decoder": DECODER}), dryrun=False, check=False, vpp=2)
    with pytest.raises(InputError, match="schedule: cannot be written into this Megatron"):
        solve_file(stated, SolveOptions(time_limit=20), Outputs(folder=tmp_path))


def test_an_encoder_without_its_sizes_stays_where_it_is(tmp_path: Path) -> None:
    encoder = {"vision_encoder": {"model_id": "own", "pipeline_num_layers": "anything"}}
    file = job(tmp_path, {"image_encoder": encoder, "text_decoder": DECODER})
    write_plan((config := read_config(file)), config.even_plan(config.strategy))
    assert json.loads((file.parent / "model.json").read_text(encoding="utf-8"))["image_encoder"] == encoder


def test_a_solve_writes_the_json_or_a_copy_of_it(tmp_path: Path) -> None:
    file = job(tmp_path, {"text_decoder": DECODER})
    home, copy = file.parent / "model.json", tmp_path / "planned.json"
    before = home.read_bytes()
    stated = FileJob(file, dryrun=False, check=False, device="ascend-910b")
    done = solve_file(stated, SolveOptions(time_limit=20), Outputs(folder=tmp_path, write_to=copy))
    assert home.read_bytes() == before
    (row,) = done.plan.total_layers()
    assert json.loads(copy.read_text(encoding="utf-8"))["text_decoder"]["pipeline_num_layers"] == list(row)
    with pytest.raises(InputError, match=r"text_decoder.pipeline_num_layers: is not written.*write"):
        solve_file(stated, SolveOptions(time_limit=20), Outputs(folder=tmp_path, write_to=tmp_path / "planned.sh"))


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
