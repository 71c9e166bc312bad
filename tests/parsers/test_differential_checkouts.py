"""The independent readers of files whose defaults stand in a checkout of their program."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.differential_reading import __main__ as differential
from benchmarks.differential_reading.checkout import MARKS
from benchmarks.differential_reading.sandbox import available
from tests.parsers.nemo_rl import files as nemo_rl
from tests.parsers.trainer.files import AXOLOTL, LLAMA_FACTORY, NEWER

composed = pytest.mark.skipif(find_spec("hydra") is None, reason="Hydra, which composes such files, is not installed")
scripts_run = pytest.mark.skipif(not available(), reason="this machine lets no one close a script in")

SCHEMAS = "src/axolotl/utils/schemas"
HPARAMS = "src/llamafactory/hparams"
V1 = "src/llamafactory/v1"
CHECKOUTS = {
    "axolotl": {
        f"{SCHEMAS}/config.py": "class A:\n    bf16: str | None = Field(default='auto')\n"
        "    sequence_len: int = Field(default=512)\n",
        f"{SCHEMAS}/training.py": "class A:\n    gradient_accumulation_steps: int | None = Field(default=1)\n",
        f"{SCHEMAS}/peft.py": "",
        f"{SCHEMAS}/model.py": "",
    },
    "LLaMA-Factory": {
        f"{HPARAMS}/data_args.py": "class A:\n    cutoff_len: int = field(default=2048, metadata={})\n",
        f"{HPARAMS}/finetuning_args.py": "class A:\n    finetuning_type: str = field(default='lora')\n"
        "    pure_bf16: bool = field(default=False)\n    lora_rank: int = field(default=8)\n"
        "    lora_target: str = field(default='all')\n",
        f"{HPARAMS}/model_args.py": "",
        f"{HPARAMS}/training_args.py": "",
        f"{V1}/config/training_args.py": "class A:\n    micro_batch_size: int = 1\n    cutoff_len: int = 2048\n"
        "    bf16: bool = True\n    cp_size: int = 1\n    enable_activation_checkpointing: bool = True\n",
        f"{V1}/plugins/model_plugins/peft.py": "class A:\n    r: int = 8\n"
        "    target_modules: list[str] | str = 'all'\n",
    },
    "NeMo RL": {"nemo_rl/utils/config.py": ""},
    "verl": {
        "verl/trainer/main_ppo.py": '@hydra.main(config_path="config", config_name="ppo")\ndef main(config): ...\n',
        "verl/trainer/config/ppo.yaml": """\
data: {train_batch_size: 1024, max_prompt_length: 512, max_response_length: 512}
trainer: {nnodes: 1, n_gpus_per_node: 8}
actor_rollout_ref:
  model: {path: null, enable_gradient_checkpointing: true, lora_rank: 0, exclude_modules: null}
  rollout: {n: 1}
  actor:
    strategy: fsdp
    ppo_mini_batch_size: 256
    ppo_micro_batch_size_per_gpu: null
    use_dynamic_bsz: false
    ulysses_sequence_parallel_size: 1
    fsdp_config: {fsdp_size: -1, dtype: bfloat16, model_dtype: fp32, ulysses_sequence_parallel_size: 1}
""",
    },
}
"""Files of each program that state defaults, in the form in which it writes them."""
SCRIPT = """\
NGPUS=${NGPUS:-4}
python3 -m verl.trainer.main_ppo data.max_response_length=1536 actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=5 trainer.n_gpus_per_node=$NGPUS $@
"""
FILES = {
    "axolotl": AXOLOTL,
    "axolotl, of defaults": AXOLOTL.replace("bf16: auto\n", "").replace(
        "gradient_accumulation_steps: 4", "batch_size: 8"
    ),
    "axolotl, adapters": f"{AXOLOTL[: AXOLOTL.index('fsdp_version')]}adapter: lora\nlora_r: 16\nlora_alpha: 32\n"
    "lora_target_modules: [q_proj, v_proj, down_proj]\n",
    "LLaMA-Factory": LLAMA_FACTORY.replace("deepspeed: ds.json  # beside the file\n", ""),
    "LLaMA-Factory, second generation": NEWER,
    "LLaMA-Factory, second generation, adapters": f"{NEWER}peft_config: {{name: lora}}\n",
    "NeMo RL": nemo_rl.MEGATRON,
    "NeMo RL, sharded": nemo_rl.SHARDED,
    "verl": SCRIPT,
    "verl, ulysses twice": SCRIPT.replace(
        "rollout.n=5", "rollout.n=5 actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=4"
    ),
}
MARKED = {
    name: [each for each, on in ((composed, name[:4] in ("NeMo", "verl")), (scripts_run, name[:4] == "verl")) if on]
    for name in FILES
}


def checkout(place: Path, name: str) -> Path:
    """A file of a program in a checkout of it."""
    program = name.partition(",")[0]
    for path, text in CHECKOUTS[program].items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    file = place / "examples" / ("run.sh" if program == "verl" else "train.yaml")
    file.parent.mkdir()
    file.write_text(FILES[name], encoding="utf-8")
    return file


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKED[name]) for name in FILES])
def test_a_file_in_a_checkout_is_read_alike_in_every_field_that_it_settles(tmp_path: Path, name: str) -> None:
    compared = differential.compare(checkout(tmp_path, name))
    assert (compared.apart, compared.refusal, compared.differences) == ("", "", ())
    assert compared.launcher == name.partition(",")[0] and compared.settled >= 8


BROKEN = {
    "axolotl": ("axolotl.read._is_on", lambda fields, name: False, "compute_bytes"),
    "axolotl, adapters": ("axolotl.read.rank_of", lambda *stated: 8, "adapter_rank"),
    "LLaMA-Factory": ("llamafactory.read.ACCUMULATION", "accumulation_steps", "accumulation"),
    "LLaMA-Factory, second generation": ("llamafactory.newer._accumulation", lambda *stated: 2, "accumulation"),
    "LLaMA-Factory, second generation, adapters": ("llamafactory.newer.rank_of", lambda *stated: 4, "adapter_rank"),
    "NeMo RL": ("nemo_rl.job._PAIRS", ("grpo",), "batch"),
    "NeMo RL, sharded": ("nemo_rl.job._PAIRS", ("sft",), "batch"),
    "verl": ("verl.job.VerlStart.answers", 1, "batch"),
}
"""By file: a fault put into the product's reader below `taylor.parsers`, and a field that is wrong then."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKED[name]) for name in BROKEN])
def test_a_fault_of_the_products_reader_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    place, fault, field = BROKEN[name]
    monkeypatch.setattr(f"taylor.parsers.{place}", fault)
    compared = differential.compare(checkout(tmp_path, name))
    assert field in [each for each, _, _ in compared.differences]


@pytest.mark.parametrize("name", [name for name in FILES if name[:4] != "verl"])
def test_a_file_that_lies_in_no_checkout_says_that_it_needs_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.yaml").write_text(FILES[name], encoding="utf-8")
    program = name.partition(",")[0]
    reason = differential.compare(tmp_path / "train.yaml").apart
    assert reason == f"lies in no checkout of {program}, whose own files state its defaults"
    assert program in MARKS


def test_an_empty_key_of_axolotl_is_no_default(tmp_path: Path) -> None:
    file = checkout(tmp_path, "axolotl")
    file.write_text(AXOLOTL.replace("gradient_accumulation_steps: 4", "gradient_accumulation_steps:\nbatch_size: 8"))
    (reading,) = differential.read_axolotl(file, tmp_path)
    assert reading["accumulation"] == 4


@composed
def test_ranks_of_a_reward_model_are_left_out_on_either_side(tmp_path: Path) -> None:
    file = checkout(tmp_path, "NeMo RL")
    text = nemo_rl.MEGATRON.replace("num_nodes: 2", "num_nodes: 3")
    resources = "{gpus_per_node: 8, num_nodes: 1}"
    reward = f"data: {{default: {{env_name: reward_model}}}}\nenv: {{reward_model: {{resources: {resources}}}}}\n"
    file.write_text(text + reward, encoding="utf-8")
    compared = differential.compare(file)
    assert (compared.apart, compared.refusal, compared.differences) == ("", "", ())
    assert differential.read_experiment(file)[0]["ranks"] == 16


TUNING = (
    "model:\n  tensor_model_parallel_size: ${oc.decode:${oc.env:TP,1}}\n  pipeline_model_parallel_size: 1\n"
    "  context_parallel_size: ${oc.decode:${oc.env:CP,1}}\n  micro_batch_size: ${oc.decode:${oc.env:MBS,1}}\n"
    "  global_batch_size: ${floor_div:${multiply:${oc.decode:${oc.env:MINIBS,1}},${floor_div:${multiply:"
    "${trainer.devices},${trainer.num_nodes}},${model.tensor_model_parallel_size}}},${oc.decode:${oc.env:CP,1}}}\n"
    "  encoder_seq_length: 8192\n  fp8: ${oc.decode:${oc.env:FP8,True}}\n"
    "trainer:\n  devices: ${oc.decode:${oc.env:DGXNGPU,8}}\n  num_nodes: ${oc.decode:${oc.env:DGXNNODES,1}}\n"
    "optim:\n  use_distributed_optimizer: ${oc.decode:${oc.env:USE_DISTRIBUTED_OPTIMIZER,True}}\n"
)


@pytest.mark.skipif(find_spec("omegaconf") is None, reason="OmegaConf, which resolves the YAML, is not installed")
def test_mlperfs_fine_tuning_is_read_alike_over_the_yaml_of_its_harness(tmp_path: Path) -> None:
    folder = tmp_path / "llama2_70b_lora"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "megatron_gpt_peft_tuning_config.yaml").write_text(TUNING)
    (folder / "config_common.sh").write_text("export TP=2\nexport MBS=1\n")
    path = folder / "config_H200_4x8.sh"
    path.write_text(
        "source $(dirname ${BASH_SOURCE[0]})/config_common.sh\nexport MINIBS=4 # a rank's\nexport DGXNNODES=4\n"
        "export DGXNGPU=8 && export CP=2\n"
    )
    found = {one.path.name: one for one in differential.compare_folders([folder])}
    assert found["config_common.sh"].apart == "is a part of a configuration"
    assert found[path.name].differences == () and found[path.name].settled == 15
