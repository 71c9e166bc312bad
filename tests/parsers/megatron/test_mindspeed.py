"""A launch is MindSpeed's by its flags, its program, its spec or its variables, and its device is the one it states."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.mindspeed_flags import added_flags
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.megatron.mindspeed import sign_of_mindspeed, telltales
from taylor.parsers.megatron.script import Script
from taylor.parsers.read import read_config
from taylor.workflows.statement.devices import choose_device
from tests.conftest import ROOT, SHARED

FLAGS = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--position-embedding-type rope --padded-vocab-size 32000 --bf16"
)
SIGNS = {
    "torchrun --nproc_per_node 8 pretrain_gpt.py {}": None,
    "CUDA_VISIBLE_DEVICES=0 NCCL_IB_TIMEOUT=22\ntorchrun --nproc_per_node 8 pretrain_gpt.py {}": None,
    "torchrun --nproc_per_node 8 pretrain_gpt.py {} --spec megatron.core.models.hybrid stack": None,
    "torchrun --nproc_per_node 8 pretrain_gpt.py {} --use-fused-rmsnorm": "it has --use-fused-rmsnorm",
    "torchrun --nproc_per_node 8 pretrain_gpt.py {} --swap-optimizer": "it has --swap-optimizer",
    "export NCCL_IB_TIMEOUT=22\ntorchrun --nproc_per_node 8 pretrain_gpt.py {} --rope-theta 500000": None,
    "export NCCL_IB_TIMEOUT=22\ntorchrun --nproc_per_node 8 pretrain_gpt.py {} --pack --neat-pack": "it has --pack",
    "torchrun --nproc_per_node 8 posttrain_gpt.py {}": "it starts posttrain_gpt.py",
    "msrun --worker_num 8 --local_worker_num 8 pretrain_gpt.py {}": "it starts msrun",
    "torchrun --nproc_per_node 8 pretrain_gpt.py {} --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec": (
        "--spec names mindspeed_llm.tasks.models.spec.deepseek_spec"
    ),
    "export HCCL_CONNECT_TIMEOUT=3600\ntorchrun --nproc_per_node 8 pretrain_gpt.py {}": (
        "it sets HCCL_CONNECT_TIMEOUT"
    ),
}
DEVICES = (
    ("run.sh", "", 8, "ascend-910b", "the default for MindSpeed files, for it sets HCCL_CONNECT_TIMEOUT"),
    ("run.sh", "", 16, "ascend-a3", "for it starts 16 NPUs a node"),
    ("pretrain_8b_A3_ptd.sh", "", 8, "ascend-a3", "by its name, pretrain_8b_A3_ptd.sh"),
    ("pretrain_8b_A2_ptd.sh", "# made for A3\n", 16, "ascend-910b", "by its name, pretrain_8b_A2_ptd.sh"),
    ("pretrain_8b_bf16_A5.sh", "", 8, "ascend-950dt", "by its name, pretrain_8b_bf16_A5.sh"),
    ("pretrain_30b_a3b_ptd.sh", "", 8, "ascend-910b", "the default for MindSpeed files"),
    ("14b_A3/pretrain.sh", "", 8, "ascend-a3", "by its folder, 14b_A3"),
    ("run.sh", "NNODES=16 # 235B模型需要16机A3运行\n", 8, "ascend-a3", "by its comments"),
    ("run.sh", "# Ascend 910B, eight of them\n", 8, "ascend-910b", "by its comments"),
    ("run.sh", "# A2: TP 8, A3: TP 4\n", 8, "ascend-910b", "the default for MindSpeed files"),
    ("run.sh", "# A100 and A30, 950 steps\n", 8, "ascend-910b", "the default for MindSpeed files"),
)  # fmt: skip


@pytest.mark.parametrize("command", SIGNS)
def test_mindspeed_is_known_by_flag_program_spec_and_variable(command: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(command.format(FLAGS) + "\n", encoding="utf-8")
    assert sign_of_mindspeed(Script.read(file).flags) == SIGNS[command]
    expected = "h100-80g" if SIGNS[command] is None else "ascend-910b"
    assert choose_device(read_config(file)).spec.name == expected


@pytest.mark.parametrize(("name", "comment", "per_node", "device", "why"), DEVICES)
def test_the_device_is_the_one_that_the_file_states(
    name: str, comment: str, per_node: int, device: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "jobs" / "own" / name
    file.parent.mkdir(parents=True)
    command = f"export HCCL_CONNECT_TIMEOUT=1\ntorchrun --nproc_per_node {per_node} pretrain_gpt.py {FLAGS}\n"
    file.write_text(comment + command, encoding="utf-8")
    chosen = choose_device(read_config(file))
    assert chosen.spec.name == device and chosen.assumption is not None and why in chosen.assumption
    assert choose_device(read_config(file), "a100-80g").assumption is None


def test_a_mindformers_file_states_its_device_too(tmp_path: Path) -> None:
    text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text(encoding="utf-8")
    file = tmp_path / "jobs" / "own" / "pretrain_llama2_7b_A3.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    chosen = choose_device(read_config(file))
    assert chosen.spec.name == "ascend-a3"
    assert chosen.reason == "by its name, pretrain_llama2_7b_A3.yaml (MindFormers files)"
    assert not chosen.is_default and chosen.assumption is not None
    assert chosen.assumption.startswith("device: ascend-a3 (64 GiB), by its name, pretrain_llama2_7b_A3.yaml (")


def test_the_list_of_flags_is_of_mindspeed_alone_and_names_its_commits() -> None:
    data = yaml.safe_load((ROOT / "parsers" / "megatron" / "mindspeed.yaml").read_text(encoding="utf-8"))
    assert data["of"]["Ascend/MindSpeed"] == "028de58c" and data["of"]["Ascend/MindSpeed-LLM"] == "c77308a1"
    rows = load_flag_table("taylor.parsers.megatron", "flags.yaml").rows
    megatron = {name for name, row in rows.items() if "Megatron-LM" in row.versions}
    assert len(telltales()) > 300 and not telltales() & megatron
    assert {"num-layer-list", "noop-layers", "schedules-method", "ai-framework", "moe-tp-extend-ep"} <= telltales()


def test_flags_are_read_off_a_parser_s_source() -> None:
    source = (
        "class F:\n    wide_flag: int = 1\n    def add(self, parser):\n"
        "        parser.add_argument('-s', '--some_flag', type=int)\n        group.add_argument('--other-flag')\n"
    )
    assert added_flags(source) == {"some-flag", "other-flag"}
    assert added_flags(source, fields=True) == {"some-flag", "other-flag", "wide-flag"}
    assert added_flags("not python (") == set()


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared inputs")
def test_no_script_for_gpus_is_taken_for_mindspeed_s() -> None:
    for file in sorted((SHARED / "data" / "mlperf" / "scripts").glob("*.sh"))[:40]:
        assert sign_of_mindspeed(Script.read(file).flags) is None, file
