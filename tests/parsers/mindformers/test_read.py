"""MindFormers files read to what a person reads in them, and refused with the field named."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.base.errors import InputError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.parameters import total_parameters
from taylor.cost_model.memory.activations import activation_bytes
from taylor.nd_search.stated import find_illegality
from taylor.parsers.read import read_config
from taylor.parsers.text.yaml_source import MAX_BYTES, MAX_LINES
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import DENSE, MOE, MTP
from taylor.register.registry import Registry
from taylor.workflows.statement.devices import ChosenDevice, choose_device
from taylor.workflows.statement.job_facts import JobFacts
from tests.conftest import ROOT, SHARED

SAMPLES = SHARED / "data" / "mindformers_yaml"
EXAMPLE = ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml"

needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample files lie outside the repository")


@dataclass(frozen=True)
class Figures:
    """What a person reads in a sample."""

    file: str
    layers: dict[str, int]
    hidden: int
    ffn: int
    vocab: int
    degrees: tuple[int, int, int, int]
    batch: tuple[int, int]
    limit_mib: float
    held: tuple[int, ...] | None
    full: tuple[int, ...] | None
    seq: int = 4096


FIGURES = [
    Figures(
        "mtp_offset__pretrain_deepseek3_671b.yaml",
        {DENSE: 3, MOE: 58, MTP: 1},
        7168,
        18432,
        129280,
        (16, 4, 16, 8),
        (1, 32),
        56320,
        (4,) * 15 + (2,),
        (3,) + (4,) * 12 + (3, 2, 0),
    ),
    Figures(
        "r1.5.0__research_deepseek3_deepseek3_671b_pretrain_deepseek3_671b.yaml",
        {DENSE: 3, MOE: 58, MTP: 1},
        7168,
        18432,
        129280,
        (16, 4, 16, 8),
        (1, 32),
        56320,
        (4,) * 15 + (2,),
        (3,) + (4,) * 12 + (3, 2, 0),
    ),
    Figures(
        "r1.5.0__configs_gpt2_pretrain_gpt2_13b_fp16.yaml",
        {DENSE: 40},
        5120,
        20480,
        50257,
        (4, 8, 1, 1),
        (2, 1),
        30720,
        (40,),
        (40,),
        seq=2048,
    ),
    Figures(
        "r1.5.0__configs_llama2_pretrain_llama2_13b_auto_parallel.yaml",
        {DENSE: 40},
        5120,
        13824,
        32000,
        (8, 1, 1, 1),
        (2, 1),
        59392,
        (40,),
        (40,),
    ),
    Figures(
        "r1.5.0__configs_llama2_pretrain_llama2_70b_bf16_32p.yaml",
        {DENSE: 80},
        8192,
        28672,
        32000,
        (1, 4, 8, 1),
        (1, 256),
        54272,
        (10,) * 8,
        (0,) * 8,
    ),
    Figures(
        "r1.5.0__research_llama3_llama3_70b_pretrain_llama3_70b.yaml",
        {DENSE: 80},
        8192,
        28672,
        128256,
        (1, 8, 8, 1),
        (1, 256),
        53760,
        (10,) * 8,
        (0,) * 8,
        seq=8192,
    ),
    Figures(
        "r1.8.0__research_llama3_1_llama3_1_70b_finetune_llama3_1_70b.yaml",
        {DENSE: 80},
        8192,
        28672,
        128256,
        (1, 8, 8, 1),
        (1, 256),
        53760,
        (10,) * 8,
        (0,) * 8,
        seq=8192,
    ),
    Figures(
        "r1.5.0__research_mixtral_mixtral_8x7b_pretrain_mixtral-8x7b.yaml",
        {MOE: 32},
        4096,
        14336,
        32000,
        (8, 1, 2, 8),
        (1, 16),
        59392,
        (16, 16),
        (16, 16),
    ),
    Figures(
        "r1.5.0__research_qwen2_qwen2_72b_finetune_qwen2_72b_32k.yaml",
        {DENSE: 80},
        8192,
        29568,
        152064,
        (1, 8, 8, 1),
        (1, 64),
        59392,
        (9, 10, 10, 10, 10, 10, 11, 10),
        (8, 8, 8, 7, 7, 5, 4, 2),
        seq=32768,
    ),
    Figures(
        "r1.5.0__tests_st_test_distri_core_test_parallel_seqpipe_pretrain_deepseek3_4layer_4p.yaml",
        {DENSE: 1, MOE: 6, MTP: 1},
        128,
        256,
        129280,
        (1, 1, 4, 1),
        (1, 4),
        56320,
        (2,) * 4,
        (0,) * 4,
    ),
    Figures(
        "master__configs_qwen3_moe_pretrain_qwen3_30b_a3b_4k.yaml",
        {MOE: 48},
        2048,
        6144,
        151936,
        (1, 4, 4, 4),
        (1, 16),
        59392,
        (12,) * 4,
        (12,) * 4,
    ),
    Figures(
        "master__configs_qwen3_pretrain_qwen3_32b_4k.yaml",
        {DENSE: 64},
        5120,
        25600,
        151936,
        (1, 4, 4, 1),
        (1, 4),
        59392,
        (15, 15, 17, 17),
        (15, 15, 17, 17),
    ),
]


@needs_samples
@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures.file[:60])
def test_a_sample_reads_as_a_person_reads_it(figures: Figures) -> None:
    config = read_config(SAMPLES / figures.file)
    assert config.model.layer_counts() == figures.layers
    assert (config.model.hidden, config.model.ffn_hidden, config.model.vocab) == (
        figures.hidden,
        figures.ffn,
        figures.vocab,
    )
    strategy = config.strategy
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.ep) == figures.degrees
    assert (strategy.mbs, strategy.micro_batches) == figures.batch
    assert config.device_limit_mib == figures.limit_mib
    assert config.rules.seq_length == figures.seq
    assert config.plan is not None
    assert config.plan.total_layers() == (figures.held,)
    assert config.plan.recompute[FULL] == (figures.full,)


@needs_samples
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_a_template_without_a_model_is_refused_with_the_folder_it_names(name: str) -> None:
    with pytest.raises(InputError, match=r"pretrained_model_dir: .*config\.json.*path/to/model_dir"):
        read_config(SAMPLES / f"master__configs_general_llm_pretrain_{name}_template.yaml")


@needs_samples
def test_every_sample_is_covered_by_a_figure_or_refused() -> None:
    stated = {figures.file for figures in FIGURES}
    assert {path.name for path in SAMPLES.glob("*.yaml")} - stated == {
        f"master__configs_general_llm_pretrain_{name}_template.yaml" for name in ("dense", "moe")
    }


@needs_samples
def test_selective_lists_count_the_layers_after_the_full_ones() -> None:
    plan = read_config(SAMPLES / "r1.5.0__configs_llama2_pretrain_llama2_70b_bf16_32p.yaml").plan
    assert plan is not None and plan.recompute[SELECT] == ((8, 4, 4, 1, 1, 1, 1, 1),)


@needs_samples
def test_a_template_takes_its_model_from_a_hugging_face_folder(tmp_path: Path) -> None:
    text = (SAMPLES / "master__configs_general_llm_pretrain_moe_template.yaml").read_text(encoding="utf-8")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(
        '{"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,'
        ' "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,'
        ' "num_experts": 64}'
    )
    file = tmp_path / "template.yaml"
    file.write_text(text.replace("path/to/model_dir", "hf"), encoding="utf-8")
    config = read_config(file)
    assert config.model.layer_counts() == {MOE: 48}
    assert config.model.moe is not None
    # The template's own model_config goes before the folder's.
    assert (config.model.moe.n_experts, config.model.moe.expert_hidden) == (128, 768)
    assert config.model.qk_norm and not config.mtp_counted


@pytest.mark.parametrize(
    ("name", "ranks", "layers"),
    [
        ("pretrain_deepseek3_671b_1024p", 1024, {DENSE: 3, MOE: 58, MTP: 1}),
        ("pretrain_deepseek3_128p", 128, {DENSE: 3, MOE: 12, MTP: 1}),
        ("pretrain_llama2_7b", 8, {DENSE: 32}),
        ("pretrain_llama3_70b", 128, {DENSE: 80}),
        ("pretrain_mixtral_8x7b", 32, {MOE: 32}),
        ("pretrain_qwen3_30b_a3b", 32, {MOE: 48}),
    ],
)
def test_the_projects_own_examples_read_without_a_note(name: str, ranks: int, layers: dict[str, int]) -> None:
    config = read_config(ROOT / "config" / f"{name}.yaml")
    assert (config.strategy.world_size, config.model.layer_counts(), config.notes) == (ranks, layers, ())
    assert config.plan is not None


def test_mtp_counts_in_a_legacy_file_and_joins_the_last_stage_in_an_mcore_one(tmp_path: Path) -> None:
    legacy = read_config(EXAMPLE)
    assert legacy.mtp_counted and legacy.plan is not None
    assert sum(map(sum, legacy.plan.total_layers())) == 62
    text = (ROOT / "config" / "pretrain_qwen3_30b_a3b.yaml").read_text()
    file = tmp_path / "mcore.yaml"
    file.write_text(text.replace("    hidden_size: 2048\n", "    hidden_size: 2048\n    mtp_num_layers: 1\n"))
    mcore = read_config(file)
    assert not mcore.mtp_counted and mcore.plan is not None
    assert mcore.plan.layers[MTP] == ((0, 0, 0, 1),)
    assert mcore.plan.total_layers() == ((12, 13, 12, 12),)
    assert mcore.plan.recompute[FULL] == ((8, 6, 4, 0),)


def changed(tmp_path: Path, *changes: tuple[str, str]) -> Path:
    """The DeepSeek example with pieces of text replaced."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file = tmp_path / "changed.yaml"
    file.write_text(text, encoding="utf-8")
    return file


OFFSET = "offset: [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]"
RECOMPUTE = "recompute: [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 3, 3, 2, 1, 0]"


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("pipeline_stage: 16", "pipeline_stage: 0", "parallel_config.pipeline_stage", "0"),
        ("pipeline_stage: 16", "pipeline_stage: -4", "parallel_config.pipeline_stage", "-4"),
        ("pipeline_stage: 16", "pipeline_stage: 1.5", "parallel_config.pipeline_stage", "1.5"),
        ("pipeline_stage: 16", "pipeline_stage: sixteen", "parallel_config.pipeline_stage", "'sixteen'"),
        ("pipeline_stage: 16", "pipeline_stage: [16]", "parallel_config.pipeline_stage", "[16]"),
        ("pipeline_stage: 16", "pipeline_stage: True", "parallel_config.pipeline_stage", "True"),
        ("pipeline_stage: 16", "pipeline_stage: 64", "parallel_config.pipeline_stage", "64"),
        ("pipeline_stage: 16", f"pipeline_stage: {10**30}", "line 59", "1000"),
        ("model_parallel: 4", "model_parallel: .nan", "parallel_config.model_parallel", "nan"),
        ("data_parallel: &dp 16", "data_parallel: &dp -1", "parallel_config.data_parallel", "-1"),
        ("micro_batch_num: &micro_batch_num 64", "micro_batch_num: 99999999", "parallel_config.micro_batch_num", "99"),
        ("num_layers: 61", "num_layers: 1000000", "model.model_config.num_layers", "1000000"),
        ("num_layers: 61", "num_layers:", "model.model_config.num_hidden_layers", "is missing"),
        ("hidden_size: 7168", "hidden_size: wide", "model.model_config.hidden_size", "'wide'"),
        ("first_k_dense_replace: 3", "first_k_dense_replace: 99", "moe_config.first_k_dense_replace", "99"),
        ("num_experts_chosen: 8", "num_experts_chosen: 999", "moe_config.num_experts_chosen", "999"),
        ('"55GB"', '"12 apples"', "context.max_device_memory", "'12 apples'"),
        ('"55GB"', '"-5GB"', "context.max_device_memory", "'-5GB'"),
        ('"55GB"', '"0GB"', "context.max_device_memory", "'0GB'"),
        ('"55GB"', "55", "context.max_device_memory", "55"),
        (OFFSET, "offset: [1, two]", "model.model_config.offset", "'two'"),
        (OFFSET, "offset: 0.5", "model.model_config.offset", "0.5"),
        (RECOMPUTE, "recompute: [some]", "recompute_config.recompute", "'some'"),
        ("recompute_config:", "recompute_config: 7\nrest:", "recompute_config", "7"),
        ("parallel_config:", "parallel_config: []\nrest:", "parallel_config", "[]"),
        ('param_init_type: "float32"', 'param_init_type: "float7"', "params_dtype", "'float7'"),
        ("use_seq_parallel: True", "use_seq_parallel: maybe", "parallel_config.use_seq_parallel", "'maybe'"),
    ],
)
def test_a_wrong_value_is_refused_with_file_field_and_value(
    tmp_path: Path, old: str, new: str, field: str, value: str
) -> None:
    file = changed(tmp_path, (old, new))
    with pytest.raises(InputError) as caught:
        read_config(file)
    message = str(caught.value)
    assert str(file) in message and field in message and value in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- 1\n- 2\n", "must be a mapping"),
        ("just text\n", "must be a mapping"),
        ("a: [1\n", "is not valid YAML at line 2"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        ("a: &a [*a]\n", "refers to itself"),
        ("a: 1\n", "is no known training file"),
        ("a: " + "[" * 80 + "]" * 80 + "\n", "nested too deep"),
        ("a: " + "9" * 5000 + "\n", "it is too long"),
        ("model: \x07\n", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(content)
    with pytest.raises(InputError, match=says):
        read_config(file)


def test_aliases_that_expand_without_measure_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    file = tmp_path / "laughs.yaml"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="expands by its aliases"):
        read_config(file)


def test_a_file_that_is_too_big_missing_binary_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    big, long, binary, other = (tmp_path / name for name in ("big.yaml", "long.yaml", "binary.yaml", "x.txt"))
    big.write_bytes(b"# " + b"x" * MAX_BYTES)
    long.write_bytes(b"#\n" * (MAX_LINES + 1))
    binary.write_bytes(b"\xff\xfe\x00")
    other.write_text("")
    for file, says in (
        (big, "larger"),
        (long, "more than 5,000 lines"),
        (binary, "UTF-8"),
        (other, "known kind"),
        (tmp_path / "none.yaml", "no such file"),
    ):
        with pytest.raises(InputError, match=says):
            read_config(file)


def plan_of(
    tmp_path: Path,
    offset: str,
    recompute: str,
    *,
    interleave: int = 2,
    scheduler: str = "1f1b",
    select: str = "False",
    extra: tuple[tuple[str, str], ...] = (),
):
    """Plan and notes of a 30 + 1-layer, 4-stage model."""
    file = changed(
        tmp_path,
        ("pipeline_stage: 16", "pipeline_stage: 4"),
        ("num_layers: 61", "num_layers: 30"),
        ("mtp_loss_factor: 0.3", f"pp_interleave_num: {interleave}"),
        (OFFSET, f"offset: {offset}"),
        (RECOMPUTE, f"recompute: {recompute}"),
        ("select_recompute: False", f"select_recompute: {select}"),
        (
            "  parallel_optimizer_config:",
            "  pipeline_config:\n    pipeline_interleave: True\n"
            f"    pipeline_scheduler: {scheduler}\n  parallel_optimizer_config:",
        ),
        *extra,
    )
    config = read_config(file)
    return config.plan, config.notes


EVEN = "[[1, 1, 1, 1], [1, 1, 1, 0]]"  # 31 layers on 8 chunks: 3 each, 7 left over


def test_a_two_dimensional_offset_counts_per_chunk(tmp_path: Path) -> None:
    plan, notes = plan_of(tmp_path, EVEN, "False")
    assert notes == ()
    assert plan.total_layers() == ((4, 4, 4, 4), (4, 4, 4, 3))
    assert plan.layers[DENSE] == ((3, 0, 0, 0), (0, 0, 0, 0))
    assert plan.layers[MTP] == ((0, 0, 0, 0), (0, 0, 0, 1))


def test_a_one_dimensional_recompute_list_is_dealt_over_a_stages_chunks_and_passes_full_ones(tmp_path: Path) -> None:
    plan, _ = plan_of(tmp_path, "[[1, 1, 1, -1], [1, 1, 1, 2]]", "[3, 0, 99, 5]")
    assert plan.total_layers() == ((4, 4, 4, 2), (4, 4, 4, 5))
    # 3 -> 2 + 1; 99 -> clipped to 4 + 4; 5 -> 2 (all it has) + 3
    assert plan.recompute[FULL] == ((2, 0, 4, 2), (1, 0, 4, 3))


def test_a_two_dimensional_recompute_list_is_clipped_per_chunk_and_true_means_all(tmp_path: Path) -> None:
    plan, _ = plan_of(tmp_path, EVEN, "[[9, 0, 1, True], [0, 2, False, 9]]")
    assert plan.recompute[FULL] == ((4, 0, 1, 4), (0, 2, 0, 3))


@pytest.mark.parametrize(
    "select",
    [
        "[[4, 3, 2, 0], [1, 0, 0, 3]]",
        r"{'feed_forward\.mul': [[4, 3, 2, 0], [1, 0, 0, 3]], 'a\.b': [[1, 1, 1, 0], [0, 0, 0, 0]]}",
    ],
)
def test_selective_counts_hold_beyond_the_full_ones_in_list_and_pattern_form(tmp_path: Path, select: str) -> None:
    plan, _ = plan_of(tmp_path, EVEN, "[[1, 3, 4, 0], [0, 0, 0, 1]]", select=select)
    assert plan.recompute[SELECT] == ((3, 0, 0, 0), (1, 0, 0, 2))


def test_a_list_of_operators_means_all_layers(tmp_path: Path) -> None:
    plan, _ = plan_of(tmp_path, EVEN, "False", select=r"['feed_forward\.mul']")
    assert plan.recompute[SELECT] == ((4, 4, 4, 4), (4, 4, 4, 3))


@pytest.mark.parametrize("scheduler", ["seqvpp", "seqsmartvpp"])
def test_seqvpp_and_seqsmartvpp_are_read_and_broken_ones_refused_by_their_rule(tmp_path: Path, scheduler: str) -> None:
    def read(interleave: int, splits: int) -> TrainingConfig:
        more = (("parallel_config:", f"parallel_config:\n  seq_split_num: {splits}"),)
        plan_of(tmp_path, "0", "False", interleave=interleave, scheduler=scheduler, extra=more)
        return read_config(next(tmp_path.glob("*.yaml")))

    config = read(2, 2)
    device = choose_device(config).spec
    assert config.schedule == ScheduleSpec(scheduler, seq_splits=2) and config.strategy.vpp == 2
    assert find_illegality(config, device) is None
    for interleave, splits in ((1, 2), (2, 8)):
        found = find_illegality(read(interleave, splits), device)
        assert found is not None and "pieces-fill-rounds" in [rule.name for rule in found.rules]


def test_the_v_shape_runs_its_second_row_in_reverse(tmp_path: Path) -> None:
    plan, _ = plan_of(tmp_path, "[[1, 1, 1, 1], [0, 1, 1, 1]]", "False", scheduler="zero_bubble_v")
    assert plan.total_layers() == ((4, 4, 4, 4), (3, 4, 4, 4))
    assert plan.layers[MTP] == ((0, 0, 0, 0), (1, 0, 0, 0))


def test_with_swap_on_the_lists_are_layer_indices(tmp_path: Path) -> None:
    swap = (("select_recompute: ", "swap: True\n  select_recompute: "),)
    plan, _ = plan_of(tmp_path, EVEN, "[0, 1, 4, 16]", extra=swap)
    assert plan.recompute[FULL] == ((2, 1, 0, 0), (1, 0, 0, 0))
    plan, notes = plan_of(tmp_path, EVEN, "[1]", extra=swap)
    assert plan is None and "not the first ones of chunk [0][0]" in notes[0]


@pytest.mark.parametrize(
    ("offset", "recompute", "why"),
    [
        ("0", "False", "sums to 0 and must sum to 7"),
        ("7", "False", "broadcast"),
        ("[2, 2, 2, 1]", "False", "write it as [vpp][pp]"),
        ("[1, 1, 1]", "False", "rows of [3] entries for 4 stages"),
        ("[[1, 1, 1, 1]]", "False", "1 rows for 2 virtual stages"),
        ("[[1, 1, 1, 1], [1, 1, 1]]", "False", "entries for 4 stages"),
        ("[[-9, 1, 1, 1], [1, 1, 1, 10]]", "False", "fewer than 0 layers"),
        (EVEN, "[1, 2, 3]", "3 entries for 4 stages"),
        (EVEN, "[[1, 2, 3, 4]]", "1 rows for 2 virtual stages"),
        (EVEN, "[-1, 0, 0, 0]", "recompute"),
    ],
)
def test_lists_that_settle_no_plan_are_noted_with_the_reason(
    tmp_path: Path, offset: str, recompute: str, why: str
) -> None:
    plan, notes = plan_of(tmp_path, offset, recompute)
    assert plan is None and why in notes[-1]


def test_interleaves_count_only_where_the_switch_is_on(tmp_path: Path) -> None:
    file = changed(tmp_path, ("mtp_loss_factor: 0.3", "pp_interleave_num: 2"))
    config = read_config(file)
    assert config.strategy.vpp == 1 and "pipeline_interleave is off" in config.notes[0]


def test_one_stage_accumulates_gradients_instead_of_micro_batches(tmp_path: Path) -> None:
    file = changed(
        tmp_path,
        ("pipeline_stage: 16", "pipeline_stage: 1"),
        (OFFSET, "offset: 0"),
        (RECOMPUTE, "recompute: True"),
        ("sink_size: 1", "gradient_accumulation_steps: 6"),
    )
    assert read_config(file).strategy.micro_batches == 6


@pytest.mark.parametrize(
    ("on", "shard", "op"),
    [("True", "", 16), ("True", "-1", 16), ("True", "4", 4), ("True", "64", 16), ("False", "4", 1)],
)
def test_the_optimizers_split_follows_its_switch_and_size(tmp_path: Path, on: str, shard: str, op: int) -> None:
    changes = [("enable_parallel_optimizer: True", f"enable_parallel_optimizer: {on}")]
    if shard:
        changes.append(("parallel_optimizer_threshold: 64", f"optimizer_weight_shard_size: {shard}"))
    assert read_config(changed(tmp_path, *changes)).strategy.op == op


@needs_samples
def test_dropout_and_number_types_are_the_files_own() -> None:
    gpt = read_config(SAMPLES / "r1.5.0__configs_gpt2_pretrain_gpt2_13b_fp16.yaml").rules
    qwen = read_config(SAMPLES / "master__configs_qwen3_pretrain_qwen3_32b_4k.yaml").rules
    assert (gpt.dropout, gpt.param_bytes, gpt.compute_bytes, gpt.flash_attention) == (True, 2, 2, False)
    assert (qwen.dropout, qwen.param_bytes, qwen.compute_bytes, qwen.flash_attention) == (False, 4, 2, True)


@needs_samples
def test_experts_drop_tokens_only_where_a_capacity_counts() -> None:
    grouped = "r1.5.0__research_deepseek3_deepseek3_671b_pretrain_deepseek3_671b.yaml"
    assert read_config(SAMPLES / grouped).rules.capacity_factor is None
    assert read_config(SAMPLES / "mtp_offset__pretrain_deepseek3_671b.yaml").rules.capacity_factor == 1.5


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Published counts; DeepSeek-V3's without MTP and with the routers' correction bias.
        ("pretrain_deepseek3_671b_1024p", 671_026_419_200),
        ("pretrain_llama2_7b", 6_738_415_616),
        ("pretrain_llama3_70b", 70_553_706_496),
        ("pretrain_mixtral_8x7b", 46_702_792_704),
        ("pretrain_qwen3_30b_a3b", 30_532_122_624),
    ],
)
def test_the_examples_hold_the_models_they_are_named_after(name: str, parameters: int) -> None:
    assert total_parameters(read_config(ROOT / "config" / f"{name}.yaml").model) == parameters


def yaml_file(folder: Path, text: str) -> Path:
    """A file of its own with this text."""
    file = folder / "own.yaml"
    file.write_text(text, encoding="utf-8")
    return file


RANKS = "parallel_config: {data_parallel: 8, model_parallel: 1, pipeline_stage: 1}\n"


def test_sizes_that_an_mcore_file_leaves_out_are_those_of_its_class(tmp_path: Path) -> None:
    text = RANKS + 'use_legacy: False\nmodel: {model_config: {model_type: "deepseek_v3", vocab_size: 129280}}\n'
    config = read_config(yaml_file(tmp_path, text))
    assert total_parameters(config.model) == 671_026_419_200
    assert config.model.layer_counts() == {DENSE: 3, MOE: 58, MTP: 1}
    (note,) = [note for note in config.notes if "class" in note]
    assert "num_attention_heads 128" in note and "n_routed_experts 256" in note and "vocab_size" not in note


def test_a_legacy_file_without_its_layers_is_refused_whatever_its_class_would_take(tmp_path: Path) -> None:
    text = RANKS + "model: {model_config: {type: LlamaConfig, hidden_size: 4096, num_heads: 32, vocab_size: 32000}}\n"
    with pytest.raises(InputError, match="num_hidden_layers: is missing"):
        read_config(yaml_file(tmp_path, text))


GLM = """
model:
  model_config:
    type: ChatGLM2Config
    num_layers: 40
    hidden_size: 4096
    num_attention_heads: 32
    ffn_hidden_size: 13696
    seq_length: 8192
    padded_vocab_size: 151552
"""


@pytest.mark.parametrize(
    ("more", "groups"), [("", 2), ("multi_query_group_num: 4", 4), ("multi_query_attention: False", 32)]
)
def test_the_chatglm_classes_have_names_of_their_own(tmp_path: Path, more: str, groups: int) -> None:
    config = read_config(yaml_file(tmp_path, f"{RANKS}{GLM}    {more}\n"))
    assert (config.model.n_kv_heads, config.model.vocab, config.model.attention_bias) == (groups, 151552, True)
    if not more:
        assert round(total_parameters(config.model) / 1e9, 2) == 9.40  # GLM-4-9B, as published.


def test_a_whole_number_may_be_written_with_a_point(tmp_path: Path) -> None:
    config = read_config(changed(tmp_path, ("  shared_expert_num: 1", "  shared_expert_num: 8.0")))
    assert config.model.moe is not None and config.model.moe.n_shared == 8


def test_an_entry_of_the_file_goes_before_config_json_under_any_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_hidden_layers": 48, "hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 32000,'
        ' "intermediate_size": 4096, "num_key_value_heads": 8}'
    )
    sizes = "{num_layers: 10, hidden_size: 2048, seq_length: 512}"
    text = f"{RANKS}pretrained_model_dir: {tmp_path}\nmodel:\n  model_config: {sizes}\n"
    model = read_config(yaml_file(tmp_path, text)).model
    assert (model.n_layers, model.hidden, model.n_heads, model.n_kv_heads) == (10, 2048, 16, 8)


def test_interleaved_parts_of_a_micro_batch_are_one_micro_batch_of_all_their_samples(tmp_path: Path) -> None:
    parts = ("\nmicro_batch_interleave_num: 1", "\nmicro_batch_interleave_num: 2")
    config = read_config(changed(tmp_path, parts))
    plain = read_config(EXAMPLE)
    assert (config.strategy.mbs, config.strategy.global_batch) == (2, 2 * plain.strategy.global_batch)
    assert [flag.name for flag in config.unmodelled if flag.name.startswith("micro")] == ["micro_batch_interleave_num"]
    for samples, batch, interleaved in ((4, 2, 2), (3, 3, 1)):
        file = emit_variant(
            config, config.strategy.replace(mbs=samples), tmp_path / f"{samples}.yaml", plan=config.plan
        )
        written = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert written["runner_config"]["batch_size"] == batch
        assert written["micro_batch_interleave_num"] == interleaved
        assert read_config(file).strategy.mbs == samples


@pytest.mark.parametrize(
    ("key", "change", "named"),
    [
        ("recompute_config.recompute_slice_activation", (), False),
        ("recompute_config.recompute_slice_activation", (("use_seq_parallel: True", "use_seq_parallel: False"),), True),
        ("recompute_config.parallel_optimizer_comm_recompute", (), False),
        ("recompute_config.mp_comm_recompute", (("mp_comm_recompute: True", "mp_comm_recompute: False"),), False),
        ("model.model_config.fine_grain_interleave", (), True),
        ("model.model_config.fine_grain_interleave", (("model_parallel: 8", "model_parallel: 1"),), False),
    ],
)
def test_a_key_is_named_where_the_framework_acts_on_it(
    tmp_path: Path, key: str, change: tuple[tuple[str, str], ...], named: bool
) -> None:
    more = (
        ("recompute_slice_activation: True", "recompute_slice_activation: True\n  recompute: True"),
        ("parallel_optimizer_comm_recompute: False", "parallel_optimizer_comm_recompute: True"),
        ("hidden_size: 8192", "hidden_size: 8192\n    fine_grain_interleave: 2"),
    )
    text = (ROOT / "config" / "pretrain_llama3_70b.yaml").read_text(encoding="utf-8")
    text = "\n".join(line for line in text.split("\n") if not line.startswith(("  recompute:", "  select_recompute:")))
    for old, new in (*more, *change):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    assert (key in [flag.name for flag in read_config(yaml_file(tmp_path, text)).unmodelled]) is named


def test_latent_attention_follows_its_switch(tmp_path: Path) -> None:
    text = RANKS + (
        "use_legacy: False\nmodel: {model_config: {num_hidden_layers: 4, hidden_size: 1024, num_attention_heads: 16,"
        " vocab_size: 32000, seq_length: 512, multi_latent_attention: SWITCH, kv_lora_rank: 128}}\n"
    )
    on = read_config(yaml_file(tmp_path, text.replace("SWITCH", "True"))).model.mla
    assert on is not None and (on.kv_lora_rank, on.q_lora_rank, on.qk_nope_head_dim, on.v_head_dim) == (
        128,
        512,
        128,
        128,
    )
    assert read_config(yaml_file(tmp_path, text.replace("SWITCH", "False"))).model.mla is None


@pytest.mark.parametrize(
    ("line", "splits"),
    [
        ("  use_gmm: True", False),
        ("  use_gmm: False", True),
        ("  expert_model_parallel: 1", False),
        ("  expert_model_parallel: 4", True),
    ],
)
def test_experts_are_split_over_model_parallel_only_by_the_batched_products(
    tmp_path: Path, line: str, splits: bool
) -> None:
    """MindFormers 1.3 and 1.5, modules/transformer/moe.py (MoEV2) and moev3.py."""
    config = read_config(changed(tmp_path, ("  use_gmm: True", line)))
    assert config.rules.whole_experts is not splits
    assert not config.notes


def test_expert_parallel_that_batched_products_cannot_run_is_illegal(tmp_path: Path) -> None:
    changes = (("  use_gmm: True", "  use_gmm: False"), ("  data_parallel: &dp 16", "  data_parallel: &dp 4"))
    config = read_config(changed(tmp_path, *changes))
    found = find_illegality(config, choose_device(config).spec)
    assert found is not None and [rule.name for rule in found.rules] == ["ep-in-dp-cp"]
    assert (found.field, found.value, config.strategy.ep) == ("ep", 8, 8)


@pytest.mark.parametrize(
    ("length", "switch", "refused"), [(1024, "True", True), (1024, "False", False), (2048, "True", False)]
)
def test_a_sequence_shorter_than_the_compressed_mask_is_refused(
    length: int, switch: str, refused: bool, tmp_path: Path
) -> None:
    lines = f"    seq_length: {length}\n    use_attn_mask_compression: {switch}"
    misfits = read_config(changed(tmp_path, ("    seq_length: 4096", lines))).misfits
    assert (bool(misfits) and misfits[0].rule == "compressed-mask-in-sequence") is refused


@pytest.mark.parametrize(
    ("name", "words", "bytes_kept"),
    [
        ("pretrain_llama2_7b", {}, 2),
        ("pretrain_llama2_7b", {"residual_dtype": "float32"}, 2),
        ("pretrain_qwen3_30b_a3b", {}, 2),
        ("pretrain_qwen3_30b_a3b", {"fp32_residual_connection": True}, 2),
        ("pretrain_qwen3_30b_a3b", {"residual_dtype": "float32"}, 2),
        ("pretrain_llama2_7b", {"res_dtype": "float32"}, 4),
        ("pretrain_deepseek3_671b_1024p", {}, 4),
    ],
)
def test_a_recomputed_layer_keeps_its_input_in_the_type_of_the_stream(
    name: str, words: dict[str, object], bytes_kept: int, tmp_path: Path
) -> None:
    """Layers cast what they add in float32 back (next test); DeepSeek's is what its fit to dry-runs says."""
    data = yaml.safe_load((ROOT / "config" / f"{name}.yaml").read_text())
    data["model"]["model_config"] |= words
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(data))
    config = read_config(file)
    kept = activation_bytes(config.model, config.model.body_kind, FULL, config.strategy, config.rules)
    split = config.strategy.tp if config.strategy.sp else 1
    tokens = config.strategy.mbs * config.rules.seq_length / config.strategy.cp / split
    assert kept == tokens * config.model.hidden * bytes_kept


_MCORE = "mindformers/parallel_core/training_graph/transformer/transformer_layer.py"


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("revision", "file", "name"),
    [
        ("refs/heads/r1.5.0", "mindformers/models/llama/llama_transformer.py", "LLamaDecodeLayer"),
        ("refs/heads/r1.7.0", _MCORE, "TransformerLayer"),
        ("refs/heads/r1.8.0", _MCORE, "TransformerLayer"),
        ("f52743ca", _MCORE, "TransformerLayer"),
    ],
)
def test_mindformers_own_layers_hand_on_what_is_in_the_compute_type(
    revision: str, file: str, name: str, wide: bool
) -> None:
    """Its own `construct`, run on the names of types, whether or not it adds in float32."""
    try:
        text = source("mindformers", revision, file)
    except NotHere as here:
        pytest.skip(str(here))
    (layer,) = (each for each in ast.parse(text).body if isinstance(each, ast.ClassDef) and each.name == name)
    (construct,) = (each for each in layer.body if isinstance(each, ast.FunctionDef) and each.name == "construct")
    construct.returns, construct.args.defaults = None, [ast.Constant(None) for _ in construct.args.defaults]
    for argument in construct.args.args:
        argument.annotation = None
    module = loaded("their_layer", ast.unparse(construct), ms=SimpleNamespace(float32="float32"))

    def same(value: str, *_: object, **__: object) -> str:
        return value

    def add(one: str, other: str) -> str:
        return "float32" if "float32" in (one, other) else one

    whole = SimpleNamespace(
        use_past=True, seq_pipe=False, residual_cast_flag=wide, residual_dtype="float32", dtype="bfloat16",
        fp32_residual_connection=wide, compute_dtype="bfloat16", has_self_attention=True, has_cross_attention=False,
        apply_residual_connection_post_norm=False, cast=lambda value, to: to, add=add, attention=same,
        attention_norm=same, ffn_norm=same, feed_forward=same, input_layernorm=same, self_attention=same,
        hidden_states_dropout=same, pre_cross_attn_layernorm=same, cross_attention=same, pre_mlp_layernorm=same,
        mlp=lambda value, **_: (value, None, None),
    )  # fmt: skip
    result = module.construct(whole, "bfloat16", None)
    assert (result[0] if isinstance(result, tuple) else result) == "bfloat16"


@pytest.mark.parametrize("stated, limit", [("58GB", 58 * 1024), ("64GB", 64 * 1024 - 5 * 2 * 200)])
def test_a_pool_as_large_as_the_card_leaves_the_buffers_of_communication(
    tmp_path: Path, stated: str, limit: int
) -> None:
    """Replicas, TP, stages, and two groups of all ranks: five communicators of two buffers of 200 MB."""
    text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "job.yaml"
    path.write_text(text.replace('"58GB"', f'"{stated}"'), encoding="utf-8")
    config = read_config(path).replace(margin=MemoryMargin(risk=0.0))
    device = Registry.load().device("ascend-910b")
    assert device.memory_mib == 64 * 1024 and config.memory_limit_mib(device) == limit
    line = JobFacts(config, ChosenDevice(device)).device_line()
    assert f"{limit:,} MiB, {'by the file' if stated == '58GB' else 'what the buffers of communication leave'}" in line
