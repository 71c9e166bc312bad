"""Pipeline layouts as people write them: every published one is read, with its model, and written back."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.megatron.export import export_layout
from taylor.parsers.megatron.layout import LayoutProblem, ends_placement, expand_layout
from taylor.parsers.megatron.script import FORM
from taylor.parsers.read import read_config
from taylor.parsers.text.script_flags import flags_of
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.register.model import DENSE, MOE, MTP
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import SHARED
from tests.parsers.megatron.test_scripts import BASE, script_of

LAYOUTS = SHARED / "data" / "recipes" / "layouts.csv"
EXPERTS = "--num-experts 64 --moe-ffn-hidden-size 512 "
MODELS = {
    "deepseek_v3": (EXPERTS + "--multi-latent-attention --q-lora-rank 1536 --moe-layer-freq ([0]*3+[1]*58)", 3),
    "moonlight_16b": (EXPERTS + "--multi-latent-attention --moe-layer-freq ([0]*1+[1]*26)", 1),
    "glm_45v": (EXPERTS + "--moe-layer-freq ([0]*1+[1]*45)", 1),
    "olmoe_7b": (EXPERTS, 0),
    "qwen3_30b_a3b": (EXPERTS, 0),
    "llama3_70b": ("", 80),
}
"""What the flags of a model say beside its depth, and its dense layers, which come first."""


def rows() -> list[dict[str, str]]:
    if not LAYOUTS.is_file():
        return []
    with LAYOUTS.open(encoding="utf-8") as table:
        found = {(row["model"], row["pp"], row["vp"], row["layout"]): row for row in csv.DictReader(table)}
    return list(found.values())


def job(folder: Path, layout: str, *, layers: int, mtp: int, pp: int, more: str) -> Path:
    words = " ".join(f"'{word}'" if "(" in word else word for word in more.split())
    file = folder / "job.sh"
    file.write_text(
        f"torchrun --nproc_per_node 1 --nnodes {pp} pretrain_gpt.py --num-layers {layers} --hidden-size 1024 "
        "--num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --padded-vocab-size 50304 "
        f"--micro-batch-size 1 --global-batch-size {pp * 4} --pipeline-model-parallel-size {pp} --bf16 --swiglu "
        f"{f'--mtp-num-layers {mtp}' if mtp else ''} --position-embedding-type rope {words} "
        f"--pipeline-model-parallel-layout '{layout}'\n"
    )
    return file


def contents(config: TrainingConfig, kinds: tuple[str, ...]) -> list[int]:
    """Layers of the kinds in every chunk, in model order."""
    assert config.plan is not None
    there = [kind for kind in kinds if kind in config.plan.layers]
    grid = config.plan.total_layers(there) if there else ((0,) * config.strategy.pp,) * config.strategy.vpp
    return [count for row in grid for count in row]


@pytest.mark.skipif(not LAYOUTS.is_file(), reason="the sample files lie outside the repository")
@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['model']} {row['pp']} {row['layout'][:40]}")
def test_a_published_layout_is_read_with_its_model_and_written_back(row: dict[str, str], tmp_path: Path) -> None:
    layers, placed, mtp = int(row["model_layers"] or row["layers"]), int(row["layers"]), int(row["mtp"])
    pp = int(row["pp"] or row["chunks"])
    more, dense = MODELS.get(row["model"], ("", layers))
    file = job(tmp_path, row["layout"], layers=layers, mtp=mtp, pp=pp, more=more)
    config = read_config(file)
    if placed != layers:
        assert row["fits_model"].startswith("no") and config.plan is None
        with pytest.raises(InputError, match=rf"places {placed} layers; the model has {layers}.*found {placed}"):
            StatedFile.read(FileJob(file))
        return
    assert (config.strategy.pp, config.strategy.vpp) == (pp, int(row["chunks"]) // pp)
    stages = expand_layout(row["layout"])
    body = [stage.count("t") for stage in stages]
    assert contents(config, (DENSE, MOE)) == body
    assert contents(config, (MTP,)) == [stage.count("m") for stage in stages]
    first = iter(([DENSE] * dense + [MOE] * layers)[:layers])
    assert contents(config, (DENSE,)) == [[next(first) for _ in range(count)].count(DENSE) for count in body]
    assert bool(config.misfits) is (sum("m" in stage for stage in stages) > 1)
    assert config.plan is not None
    assert expand_layout(export_layout(config.plan, False, False)) == stages
    # Into a script whose layout is another one.
    other = f"Et*{layers}{'|' * (len(stages) - 1)}{'m' * mtp}L"
    elsewhere = read_config(job(tmp_path, other, layers=layers, mtp=mtp, pp=pp, more=more))
    out = write_plan(elsewhere, config.plan, output=tmp_path / "out.sh")
    assert expand_layout(flags_of(ShellScript.read(out), FORM).text("pipeline-model-parallel-layout")) == stages
    assert read_config(out).plan == config.plan


@pytest.mark.parametrize(
    ("layout", "mtp", "says"),
    [
        ("Et*20|t|t|tL", 0, "places 23 layers; the model has 24"),
        ("Et*21|t|t|tmL", 0, "places 1 MTP layers; the model has 0"),
        ("Et*21|t|t|tL", 1, "places 0 MTP layers; the model has 1"),
        ("Et*22|t|tm|mL", 2, "spreads the MTP layers over 2 chunks"),
    ],
)
def test_a_layout_of_other_layers_is_refused_with_the_counts(layout: str, mtp: int, says: str, tmp_path: Path) -> None:
    more = f"--pipeline-model-parallel-layout '{layout}'\n" + (f"--mtp-num-layers {mtp}\n" if mtp else "")
    file = script_of(tmp_path, BASE + more, "command")
    assert read_config(file).misfits  # A search for another strategy may still read it.
    with pytest.raises(InputError, match=says):
        StatedFile.read(FileJob(file))


@pytest.mark.parametrize(
    ("layout", "mtp", "held", "predicting"),
    [
        ("E|t*8|t*8|t*8L", 0, [0, 8, 8, 8], [0, 0, 0, 0]),
        ("Et*12|t*12|m|L", 1, [12, 12, 0, 0], [0, 0, 1, 0]),
        ("E||t*24|L", 0, [0, 0, 24, 0], [0, 0, 0, 0]),
        ("Et*6|t*6|t*6|t*6mmL", 2, [6, 6, 6, 6], [0, 0, 0, 2]),
    ],
)
def test_embedding_loss_and_mtp_may_have_chunks_of_their_own(
    layout: str, mtp: int, held: list[int], predicting: list[int], tmp_path: Path
) -> None:
    more = f"--pipeline-model-parallel-layout '{layout}'\n" + (f"--mtp-num-layers {mtp}\n" if mtp else "")
    config = read_config(script_of(tmp_path, BASE + more, "command"))
    assert (contents(config, (DENSE,)), contents(config, (MTP,))) == (held, predicting)
    assert config.plan is not None and not config.misfits
    assert expand_layout(export_layout(config.plan, False, False)) == expand_layout(layout)


def test_a_layout_beside_another_number_of_chunks_settles_no_plan(tmp_path: Path) -> None:
    """MindSpeed-LLM's DualPipeV holds two chunks a stage, and four stages of this layout one each."""
    layout = "--pipeline-model-parallel-layout 'Et*6|t*6|t*6|t*6L' --schedules-method dualpipev\n"
    config = read_config(script_of(tmp_path, BASE + layout, "command"))
    assert config.plan is None and any("4 chunks" in note and "ask for 8" in note for note in config.notes)


def test_both_ends_of_one_stage_settle_no_plan(tmp_path: Path) -> None:
    ends = "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 6\n"
    one = BASE.replace("--pipeline-model-parallel-size 4", "--pipeline-model-parallel-size 1")
    assert one != BASE
    config = read_config(script_of(tmp_path, one + ends, "command"))
    assert config.plan is None and any("there is one stage" in note for note in config.notes)


@pytest.mark.parametrize(("stages", "first", "last", "built"), [(1, None, 1, 1), (1, 3, None, 3), (2, 4, 5, 9)])
def test_ends_that_leave_layers_to_no_stage_are_said_with_what_megatron_builds(stages, first, last, built):
    with pytest.raises(LayoutProblem, match=f"Megatron builds {built} of the 20 layers"):
        ends_placement(20, stages, 1, first, last)


def test_a_layout_without_a_loss_is_refused_under_a_v_schedule_too(tmp_path: Path) -> None:
    """DualPipeV takes its stages from the schedule; MindSpeed refuses any layout beside it first."""
    file = job(tmp_path, "Et*4|t*4|t*4|t*4L|t", layers=17, mtp=0, pp=2, more="--schedules-method dualpipev")
    with pytest.raises(InputError, match="dualpipev-without-layout"):
        StatedFile.read(FileJob(file))
    waived = ("dualpipev-without-layout", "dualpipev-untied")
    with pytest.raises(InputError, match=r"--pipeline-model-parallel-layout: .*must end with L"):
        StatedFile.read(FileJob(file, allow_illegal=waived))
