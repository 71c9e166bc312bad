"""The model that Megatron's and MindSpeed's flags describe."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.read import read_config
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import SHARED
from tests.parsers.megatron.test_scripts import BASE, needs_samples, script_of


@pytest.mark.parametrize(
    ("flag", "gated"),
    [
        ("--swiglu", True),
        ("--quick-geglu", True),
        ("--geglu", True),
        ("--gelu-tanh", True),
        ("--squared-relu", False),
        ("--openai-gelu", False),
        ("", False),
    ],
)
def test_the_activation_says_whether_the_mlp_is_gated(flag: str, gated: bool, tmp_path: Path) -> None:
    flags = BASE + f"{flag}\n"
    assert read_config(script_of(tmp_path, flags)).model.gated_mlp is gated


@needs_samples
@pytest.mark.parametrize(("file", "billions"), [("msp_gemma2_27b.sh", 27.2), ("meg_gpt-oss-120b.sh", 116.8)])
def test_a_gated_model_has_its_published_parameters(file: str, billions: float) -> None:
    model = read_config(SHARED / "data" / "configs_more" / file).model
    assert total_parameters(model) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize("value", ["0", "1"])
def test_full_attention_everywhere_is_one_kind_of_layer(value: str, tmp_path: Path) -> None:
    model = read_config(script_of(tmp_path, f"{BASE}--full-attention-interval {value}\n")).model
    (kind,) = model.body_counts
    attention = model.layer(kind).attention
    assert model.n_layers == 24 and attention is not None and attention.gate == (1024 if value == "1" else 0)


NO_VOCABULARY = BASE.replace("--padded-vocab-size 50304\n", "")
LLAMA2_13B = (
    NO_VOCABULARY.replace("--num-layers 24", "--num-layers 40")
    .replace("--hidden-size 1024", "--hidden-size 5120")
    .replace("--num-attention-heads 16", "--num-attention-heads 40")
)

CUT_DEEPSEEK = (
    NO_VOCABULARY.replace("--num-layers 24", "--num-layers 4")
    .replace("--hidden-size 1024", "--hidden-size 7168")
    .replace("--num-attention-heads 16", "--num-attention-heads 128")
) + "--ffn-hidden-size 18432\n--kv-channels 192\n"


@pytest.mark.parametrize(
    ("flags", "vocab", "why"),
    [
        (NO_VOCABULARY, 32000, "an assumption"),
        (NO_VOCABULARY + "--merge-file merges.txt\n", 50432, "that of GPT2BPETokenizer"),
        (
            NO_VOCABULARY + "--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B\n",
            128256,
            "that of llama3-8b, whose tokenizer --tokenizer-model names",
        ),
        (LLAMA2_13B + "--ffn-hidden-size 13824\n--swiglu\n", 32000, "that of llama2-13b"),
        (CUT_DEEPSEEK, 129280, "that of deepseek-v3-671b, which has the same widths"),
        (CUT_DEEPSEEK + "--num-experts 256\n", 129280, "deepseek-v3-671b, which has the same widths and experts"),
    ],
)
def test_a_vocabulary_that_is_not_given_is_assumed_aloud(flags: str, vocab: int, why: str, tmp_path: Path) -> None:
    file = script_of(tmp_path, flags)
    config = read_config(file)
    assert config.model.vocab == vocab
    assert any(why in note and "--padded-vocab-size" in note for note in config.notes)
    for name in ("out.sh", "pretrain_qwen3_gpt.sh"):
        copy = tmp_path / name
        copy.write_bytes(file.read_bytes())
        assert read_config(copy).model.vocab == vocab


@pytest.mark.parametrize(
    ("name", "vocab"), [("llama3_tp2_pp2.sh", 128256), ("pretrain_llama3_8b.sh", 128256), ("run.sh", 32000)]
)
def test_a_file_is_named_after_one_of_several_models_of_its_widths(name: str, vocab: int, tmp_path: Path) -> None:
    """LLaMA 3 8B's config.json states 128,256 tokens, Mistral 7B's 32,000, with the same widths."""
    flags = (
        NO_VOCABULARY.replace("--num-layers 24", "--num-layers 4")
        .replace("--hidden-size 1024", "--hidden-size 4096")
        .replace("--num-attention-heads 16", "--num-attention-heads 32")
    ) + "--ffn-hidden-size 14336\n--group-query-attention\n--num-query-groups 8\n--swiglu\n"
    file = tmp_path / name
    file.write_bytes(script_of(tmp_path, flags).read_bytes())
    assert read_config(file).model.vocab == vocab


def test_a_tokenizer_that_is_there_gives_the_vocabulary(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(
        '{"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 9, "content": "<s>"}]}'
    )
    flags = NO_VOCABULARY + "--make-vocab-size-divisible-by 1\n--tokenizer-name-or-path tokenizer\n"
    assert read_config(script_of(tmp_path, flags)).model.vocab == 10


@pytest.mark.parametrize(
    ("more", "held"), [("", ((0, 1, 1, 0),)), ("--num-virtual-stages-per-pipeline-rank 2\n", None)]
)
def test_embedding_and_loss_may_leave_chunks_without_a_layer(
    more: str, held: tuple[tuple[int, ...], ...] | None, tmp_path: Path
) -> None:
    layers = 2 if held else 6
    flags = BASE.replace("--num-layers 24", f"--num-layers {layers}") + more
    flags += "--account-for-embedding-in-pipeline-split\n--account-for-loss-in-pipeline-split\n"
    plan = read_config(script_of(tmp_path, flags)).plan
    assert plan is not None
    assert plan.total_layers() == (held or ((0, 1, 1, 1), (1, 1, 1, 0)))


@pytest.mark.parametrize(
    ("more", "fits"),
    [
        ("--expert-model-parallel-size 2\n", True),
        ("--expert-model-parallel-size 4\n", False),
        ("--expert-model-parallel-size 4\n--expert-tensor-parallel-size 1\n", True),
    ],
)
def test_expert_parallel_that_does_not_fit_a_stage_is_refused(more: str, fits: bool, tmp_path: Path) -> None:
    """Megatron-LM megatron/core/parallel_state.py: the world must divide by expert TP x EP x PP."""
    flags = BASE + "--num-experts 8\n--moe-ffn-hidden-size 512\n--sequence-parallel\n" + more
    file = script_of(tmp_path, flags, "command")
    assert (not read_config(file).misfits) is fits  # a search for another strategy may still read it
    if fits:
        StatedFile.read(FileJob(file))
        return
    says = (
        r"--expert-model-parallel-size: breaks the rule ep-in-dp-cp: does not fit the 4 ranks.*found 4.*start 32 ranks"
    )
    with pytest.raises(InputError, match=says):
        StatedFile.read(FileJob(file))


@pytest.mark.parametrize(
    ("layers", "stages", "more", "says"),
    [
        (4, 1, "", None),
        (0, 4, "", None),
        (24, 1, "", "all of the 24 layers"),
        (4, 4, "", "4 pipeline stages"),
        (4, 1, "--recompute-activations\n", "recompute"),
    ],
)
def test_activations_that_megatron_does_not_move_to_the_host_are_refused(
    layers: int, stages: int, more: str, says: str | None, tmp_path: Path
) -> None:
    """Megatron-LM core_v0.16.0 megatron/core/transformer/transformer_config.py:1137-1152."""
    flags = BASE.replace("--pipeline-model-parallel-size 4", f"--pipeline-model-parallel-size {stages}") + more
    config = read_config(script_of(tmp_path, f"{flags}--cpu-offloading-num-layers {layers}\n", "command"))
    if says is None:
        assert not config.misfits
        return
    assert says in config.misfits[0].problem
    assert config.misfits[0].field == "--cpu-offloading-num-layers"


@pytest.mark.parametrize(
    ("nodes", "refused"),
    [("NODES=1", True), ("NODES=${SLURM_NNODES:-1}", False), ("N=${SLURM_NNODES:-1}\nNODES=$((N*1))", False)],
)
def test_ranks_that_a_script_only_assumes_refuse_nothing(nodes: str, refused: bool, tmp_path: Path) -> None:
    flags = " ".join((BASE + "--num-experts 8\n--moe-ffn-hidden-size 512\n--expert-model-parallel-size 8").split())
    file = tmp_path / "job.sh"
    file.write_text(f"{nodes}\ntorchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py {flags}\n")
    config = read_config(file)
    assert bool(config.misfits) is refused
    assert any("starts 8 ranks by a default alone" in note for note in config.notes) is not refused


@pytest.mark.parametrize(("ways", "kept"), [("", None), ("1", None), ("2", None), ("4", 4)])
def test_expert_tensor_parallel_beside_one_and_tp_is_kept(ways: str, kept: int | None, tmp_path: Path) -> None:
    flags = BASE + "--num-experts 8\n--moe-ffn-hidden-size 512\n"
    flags += f"--expert-tensor-parallel-size {ways}\n" if ways else ""
    config = read_config(script_of(tmp_path, flags))
    assert config.rules.expert_ways == kept
