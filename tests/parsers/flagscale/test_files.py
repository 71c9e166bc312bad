"""FlagScale experiments and train files: read as the command that FlagScale makes of them, written byte for byte."""

from __future__ import annotations

import difflib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.flagscale.experiment import Experiment
from taylor.parsers.flagscale.job import FlagScaleJob
from taylor.parsers.flagscale.launcher import FlagScale
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from tests.parsers.flagscale.files import COMMAND, EXPERIMENT, ONE_FILE, TRAIN, job


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def same_job(one: TrainingConfig, other: TrainingConfig) -> None:
    """All that two files say is the same, but for their own names."""
    for each in fields(TrainingConfig):
        if each.name not in ("path", "launcher"):
            assert getattr(one, each.name) == getattr(other, each.name), each.name


# ---- read ----------------------------------------------------------------------------------------

FORMS = {
    "as it is": ([], []),
    "experts, MTP and ends of their own": (
        [
            ("  num_layers: 16\n", "  num_layers: 18\n  decoder_first_pipeline_num_layers: 4\n"),
            (
                "  micro_batch_size: 1\n",
                '  num_experts: 16\n  moe_layer_freq: "[0]*2+[1]*16"\n  moe_ffn_hidden_size: 512\n'
                "  moe_router_topk: 4\n  mtp_num_layers: 1\n  micro_batch_size: 1\n",
            ),
            ("  sequence_parallel: true\n", "  sequence_parallel: true\n  expert_model_parallel_size: 2\n"),
            ("  pipeline_model_parallel_size: 4 ", "  decoder_last_pipeline_num_layers: 4\n"
             "  pipeline_model_parallel_size: 4 "),
        ],
        [
            ("--num-layers 16", "--num-layers 18 --decoder-first-pipeline-num-layers 4 "
             "--decoder-last-pipeline-num-layers 4 --num-experts 16 --moe-layer-freq '[0]*2+[1]*16' "
             "--moe-ffn-hidden-size 512 --moe-router-topk 4 --mtp-num-layers 1 --expert-model-parallel-size 2"),
        ],
    ),
    "interleaves and recompute of the first layers": (
        [
            ("  num_layers: 16\n", "  num_layers: 16\n  recompute_granularity: full\n  recompute_method: block\n"),
            ("  bf16: true\n", "  bf16: true\n  recompute_num_layers: 1\n  num_layers_per_virtual_pipeline_stage: 2\n"),
        ],
        [
            ("--num-layers 16", "--num-layers 16 --recompute-granularity full --recompute-method block "
             "--recompute-num-layers 1 --num-layers-per-virtual-pipeline-stage 2"),
        ],
    ),
    "a list, latent attention and a flag that no figure has": (
        [
            ("  num_layers: 16\n", "  num_layers: 16\n  recompute_granularity: selective\n"
             "  recompute_modules: [core_attn, mlp]\n  multi_latent_attention: true\n  kv_lora_rank: 512\n"
             "  qk_head_dim: 128\n  qk_pos_emb_head_dim: 64\n  v_head_dim: 128\n"),
            ("  overlap_grad_reduce: false\n", "  overlap_grad_reduce: true\n"),
        ],
        [
            ("--num-layers 16", "--num-layers 16 --recompute-granularity selective --recompute-modules core_attn mlp "
             "--multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
             "--overlap-grad-reduce"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("train", "command"), FORMS.values(), ids=FORMS)
def test_an_experiment_means_what_the_command_that_it_becomes_means(
    train: list[tuple[str, str]], command: list[tuple[str, str]], tmp_path: Path
) -> None:
    experiment = read_config(job(tmp_path / "conf", changed(TRAIN, *train)))
    script = tmp_path / "small.sh"
    script.write_text(changed(COMMAND, *command))
    assert experiment.launcher == "flagscale" and experiment.strategy.dp == 2
    same_job(experiment, read_config(script))


def test_one_file_with_the_train_sections_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(ONE_FILE)
    same_job(read_config(path), read_config(job(tmp_path / "conf")))


def test_a_train_file_alone_is_read_and_says_what_it_does_not_know(tmp_path: Path) -> None:
    experiment = job(tmp_path, changed(TRAIN, ("${experiment.batch}", "64")))
    whole, alone = read_config(experiment), read_config(tmp_path / "train" / "small.yaml")
    assert alone.model == whole.model and alone.plan == whole.plan
    assert alone.strategy == whole.strategy.replace(dp=1, op=1, micro_batches=64)
    assert any("neither ranks nor program" in note for note in alone.notes)


def test_a_reference_that_a_train_file_cannot_follow_is_refused_where_it_matters(tmp_path: Path) -> None:
    job(tmp_path)
    with pytest.raises(InputError, match=r"model\.global_batch_size: .*known only when the job starts"):
        read_config(tmp_path / "train" / "small.yaml")


@pytest.mark.parametrize(
    ("runner", "ranks", "told"),
    [
        ("nnodes: 2\n    nproc_per_node: 8\n    hostfile: hosts", 16, None),
        ("nnodes: '2:4'\n    nproc_per_node: 8\n    hostfile: hosts", 16, None),
        ("nnodes: 2\n    nproc_per_node: 8", 16, "without a hostfile"),
        ("nnodes: 2\n    nproc_per_node: 16\n    hostfile: hosts", 16, None),  # eight devices are visible
        ("rdzv_backend: static\n    hostfile: null", 8, None),
        ("nnodes: 4\n    nproc_per_node: 8\n    per_node_task: true", 8, None),
        ("nnodes: 2\n    nproc_per_node: 8\n    type: cloud", 16, None),
        ("nproc_per_node: 8\n    hostfile: hosts", None, "how many ranks"),
        ("nnodes: ${env:WORLD_SIZE}\n    nproc_per_node: 8\n    type: cloud", None, "how many ranks"),
    ],
)
def test_the_ranks_are_those_that_the_runner_starts(
    runner: str, ranks: int | None, told: str | None, tmp_path: Path
) -> None:
    text = EXPERIMENT.replace("nnodes: 2\n    nproc_per_node: 8\n    hostfile: hosts", runner)
    config = read_config(job(tmp_path, experiment=text))
    assert config.strategy.world_size == (ranks or 8)
    assert any(told in note for note in config.notes) if told else config.notes == ()


@pytest.mark.parametrize(
    ("more", "width"),
    [("", 5440), ("  multiple_of: 256\n", 5632), ("  multiple_of: 256\n  hidden_dim_multiplier: 1.3\n", 7168)],
)
def test_the_width_that_flagscale_works_out_is_the_models(more: str, width: int, tmp_path: Path) -> None:
    # int(4 * 2048 * 2 / 3) = 5461; times 1.3: 7099.
    train = changed(TRAIN, ("  ffn_hidden_size: 8192\n", more))
    config = read_config(job(tmp_path, train))
    assert config.model.ffn_hidden == width and config.unmodelled == ()


@pytest.mark.parametrize(
    ("train", "experiment", "field", "says"),
    [
        (("  precision:", "  hetero: {enable_hetero: on}\n  precision:"), None, "system.hetero.enable_hetero", "unli"),
        (("  precision:", "  use_dualpipev: true\n  precision:"), None, "system.use_dualpipev", "DualPipeV"),
        (("precision:", "ulysses_sp_parallel_size: 2\n  precision:"), None, "system.ulysses_sp_parallel_size", "Uly"),
        (("num_layers: 16", "num_layers: null"), None, "model.num_layers", "whole number"),
        (("  num_layers: 16\n", ""), None, "model.num_layers", "missing"),
        (("data:\n", "other:\n"), None, "data", "a FlagScale train file has system, model, data"),
        (("system:\n", "# @package _global_\nsystem:\n"), None, "@package", "elsewhere"),
        (None, ("type: train", "type: inference"), "experiment.task.type", "trains nothing"),
        (None, ("backend: megatron", "backend: pi0"), "experiment.task.backend", "no Megatron"),
        (None, ("train_gpt.py", "train_rwkv.py"), "experiment.task.entrypoint", "RWKV"),
        (None, ("- train: small", "- train: ../small"), "defaults", "one train file"),
        (None, ("- train: small", "- train: [a, b]"), "defaults", "one train file"),
        (None, ("  - train: small  # the train file\n", ""), "defaults", "one train file"),
        (None, ("- train: small", "- train: other"), None, "no such file"),
        (None, ("action: run", "train:\n  model:\n    num_layers: 8"), "train", "overrides parts of"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(
    train: tuple[str, str] | None, experiment: tuple[str, str] | None, field: str | None, says: str, tmp_path: Path
) -> None:
    path = job(
        tmp_path,
        changed(TRAIN, *([train] if train else [])),
        changed(EXPERIMENT, *([experiment] if experiment else [])),
    )
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        read_config(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(str(tmp_path))


# ---- written -------------------------------------------------------------------------------------


def changed_lines(before: str, after: str) -> list[str]:
    return [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:2] in ("- ", "+ ")]


def grid_of(*rows: list[int]) -> PipelinePlan:
    return PipelinePlan({"dense": as_grid(rows)}, {FULL: as_grid([[min(1, held) for held in row] for row in rows])})


@pytest.mark.parametrize(
    ("plan", "lines"),
    [
        (
            grid_of([5, 4, 4, 3]),
            [
                '+   recompute_num_layers: 1',
                '+   recompute_method: "block"',
                '+   recompute_granularity: "full"',
                '+   decoder_last_pipeline_num_layers: 3',
                '+   decoder_first_pipeline_num_layers: 5',
                '-   global_batch_size: ${experiment.batch}',
                '+   global_batch_size: 32',
            ],
        ),
        (
            PipelinePlan({"dense": as_grid([[4] * 4])}, {FULL: as_grid([[0] * 4]), SELECT: as_grid([[4] * 4])}),
            [
                '+   recompute_granularity: "selective"',
                '-   global_batch_size: ${experiment.batch}',
                '+   global_batch_size: 32',
            ],
        ),
    ],
)  # fmt: skip
def test_a_plan_is_written_into_the_train_file_and_nothing_else_changes(
    plan: PipelinePlan, lines: list[str], tmp_path: Path
) -> None:
    path = job(tmp_path)
    config = read_config(path)
    home = tmp_path / "train" / "small.yaml"
    assert launcher_of(config).home_of_plan(config) == home
    assert write_plan(config, plan, micro_batches=16) == home
    assert sorted(changed_lines(TRAIN, home.read_text())) == sorted(lines)
    assert path.read_text() == EXPERIMENT
    assert (tmp_path / "train" / "small.yaml.orig").read_text() == TRAIN
    assert sorted(file.name for file in tmp_path.rglob("*.orig")) == ["small.yaml.orig"]
    reread = read_config(path)
    assert reread.plan is not None and reread.plan.layers == plan.layers
    assert reread.strategy == config.strategy.replace(micro_batches=16)
    assert all(reread.plan.recomputed(mode) == plan.recomputed(mode) for mode in (FULL, SELECT))


def test_a_flag_is_taken_away_by_false_which_is_not_passed_on(tmp_path: Path) -> None:
    train = changed(TRAIN, ("  num_layers: 16\n", "  num_layers: 16\n  decoder_first_pipeline_num_layers: 1 # few\n"))
    path = job(tmp_path, train)
    even = PipelinePlan({"dense": as_grid([[4] * 4])}, {FULL: as_grid([[0] * 4])})
    write_plan(read_config(path), even)
    text = (tmp_path / "train" / "small.yaml").read_text()
    assert text == train.replace("num_layers: 1 # few", "num_layers: False # few")
    assert "decoder-first-pipeline-num-layers" not in FlagScaleJob(Experiment.read(path)).flags.by_name


@pytest.mark.parametrize("named", ["small.yaml", "train/small.yaml"])
def test_an_output_that_is_the_job_itself_is_written_in_place(named: str, tmp_path: Path) -> None:
    path = job(tmp_path)
    written = write_plan(read_config(path), grid_of([5, 4, 4, 3]), output=tmp_path / named)
    assert written == tmp_path / "train" / "small.yaml" and path.read_text() == EXPERIMENT
    assert (tmp_path / "train" / "small.yaml.orig").read_text() == TRAIN


def test_a_copy_elsewhere_holds_experiment_and_train_file_in_one(tmp_path: Path) -> None:
    path = job(tmp_path / "conf")
    config = read_config(path)
    plan = grid_of([5, 4, 4, 3])
    reread = read_config(write_plan(config, plan, output=tmp_path / "out" / "small.yaml", micro_batches=16))
    assert reread.plan is not None and (reread.plan.layers, reread.plan.recompute[FULL]) == (
        plan.layers,
        plan.recompute[FULL],
    )
    assert reread.strategy == config.strategy.replace(micro_batches=16) and reread.model == config.model
    assert (tmp_path / "conf" / "train" / "small.yaml").read_text() == TRAIN and path.read_text() == EXPERIMENT


def test_a_variant_starts_the_ranks_and_degrees_asked_for(tmp_path: Path) -> None:
    config = read_config(job(tmp_path / "conf"))
    strategy = config.strategy.replace(dp=4, tp=4, pp=2, op=4, vpp=2, mbs=2, micro_batches=8)
    reread = read_config(emit_variant(config, strategy, tmp_path / "out.yaml", plan=None, extra={"--lr": 1e-4}))
    assert reread.strategy == strategy
    text = (tmp_path / "out.yaml").read_text()
    assert "    nnodes: 4\n    nproc_per_node: 8\n" in text and "four stages" in text and "lr: 0.0001" in text
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES"):  # twelve ranks on one node, with eight visible
        emit_variant(config, config.strategy.replace(dp=3, tp=2, pp=2, op=3), tmp_path / "odd.yaml", plan=None)


@pytest.mark.parametrize("train", ["\ufeff" + TRAIN, "---\n" + TRAIN, TRAIN.replace("\n", "\r\n")])
def test_train_files_of_other_makes_are_joined_too(train: str, tmp_path: Path) -> None:
    (tmp_path / "conf" / "train").mkdir(parents=True)
    path = job(tmp_path / "conf")
    (tmp_path / "conf" / "train" / "small.yaml").write_bytes(train.encode())
    config = read_config(path)
    same_job(config, read_config(emit_variant(config, config.strategy, tmp_path / "small.yaml", plan=config.plan)))


# ---- the table -----------------------------------------------------------------------------------


def releases() -> dict[str, set[str]]:
    """The flags that each release adds to Megatron's, oldest first."""
    found: dict[str, set[str]] = {}
    names: set[str] = set()
    for line in (Path(__file__).parent / "flag_names.txt").read_text().splitlines()[1:]:
        release, _, changes = line.partition(": ")
        words = changes.split()
        names = names - {word[1:] for word in words if word[0] == "-"} | {word[1:] for word in words if word[0] == "+"}
        found[release.removeprefix("FlagScale ")] = names
    return found


def test_every_flag_of_flagscales_own_has_a_row_with_its_releases_and_its_source() -> None:
    own = load_flag_table("taylor.parsers.flagscale", "flags.yaml").rows
    having = {name: [each for each, names in releases().items() if name in names] for name in own}
    assert {name for names in releases().values() for name in names} == set(own)
    for name, row in own.items():
        first, last = having[name][0], having[name][-1]
        assert row.versions == f"FlagScale {first}" + (f" to {last}" if first != last else ""), name
        assert re.fullmatch(rf"FlagScale {re.escape(last)} [\w./-]+\.py(\.patch)?:\d+", row.source), name
    # In MindSpeed-LLM that flag alone freezes the weights; in FlagScale --peft-type does.
    assert own.keys() & flag_table().rows.keys() == {"lora-target-modules"}


def test_a_flag_of_flagscales_that_costs_is_named_and_an_unknown_one_too(tmp_path: Path) -> None:
    more = "  peft_type: lora\n  lora_dim: 8\n  ulysses_sp_parallel_size: 1\n"
    more += "  no_shared_fs: true\n  hiden_size: 4\n  num_layers: 16\n"
    config = read_config(job(tmp_path, changed(TRAIN, ("  num_layers: 16\n", more))))
    assert [(flag.name, flag.known) for flag in config.unmodelled] == [("--peft-type", True), ("--hiden-size", False)]


def test_nothing_but_its_two_sections_tells_a_flagscale_file() -> None:
    launcher = FlagScale()
    for text, own in ((EXPERIMENT, True), (TRAIN, True), (ONE_FILE, True), ("model:\n  system: 1\n", False)):
        assert launcher.recognises(Path("a.yml"), text) is own
