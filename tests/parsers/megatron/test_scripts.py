"""Launch scripts read to what bash would start, and written back in their own style."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.parsers.megatron.layout import LayoutProblem, expand_layout, layout_text
from taylor.parsers.megatron.recompute import ACTIVATION_PARTS
from taylor.parsers.megatron.script import Script
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.text.shell_arithmetic import evaluate_arithmetic
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import BACKWARD, WEIGHT_GRADIENT, ScheduleSpec
from taylor.register import frameworks
from taylor.register.model import DENSE, MOE, MTP
from tests.conftest import SHARED

SAMPLES = SHARED / "data" / "shells"
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample files lie outside the repository")
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

STAND_IN = '#!/bin/bash\nprintf "%s\\0" "$(basename "$0")" "$@" > "$STAND_IN_OUT"\n'


def arguments_under_bash(script: Path, folder: Path) -> list[str]:
    """What the launch gets when bash runs the script with the launchers replaced by a stand-in."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("python", "python3", "torchrun", "msrun"):
        (tools / name).write_text(STAND_IN)
        (tools / name).chmod(0o755)
    work, out = folder / "a" / "b" / "c" / "work", folder / "arguments"
    (work / "logs").mkdir(parents=True, exist_ok=True)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "STAND_IN_OUT": str(out)}
    subprocess.run(["bash", str(script)], cwd=work, env=environment, capture_output=True, check=True, timeout=20)
    return out.read_bytes().decode().split("\0")[:-1]


def known_arguments(script: Path) -> list[str]:
    """The same by the reader; None where only a running shell would know."""
    source = ShellScript.read(script)
    command = max(source.commands, key=lambda command: len(command.words))
    return [None if word.unknown else word.text for word in command.words]


@dataclass(frozen=True)
class Figures:
    """What a person reads in a script."""

    file: str
    layers: dict[str, int]
    hidden: int
    ffn: int
    vocab: int
    degrees: tuple[int, int, int, int]
    batch: tuple[int, int]
    held: tuple[tuple[int, ...], ...]
    full: tuple[tuple[int, ...], ...]
    schedule: str = "1f1b"


# --moe-tp-extend-ep multiplies EP by TP: all three DeepSeek-V3 scripts hold 8 experts a rank.
DEEPSEEK = {DENSE: 3, MOE: 58, MTP: 1}
V = ((4,) * 8, (2, 4, 4, 4, 4, 4, 4, 4))  # 61 layers and the MTP one: positions 61, 62, 63 hold nothing
FIGURES = [
    Figures(
        "megatron__gpt3_train_gpt3_175b_distributed.sh",
        {DENSE: 96},
        12288,
        49152,
        51200,
        (1, 8, 16, 1),
        (1, 1536),
        ((6,) * 16,),
        ((0,) * 16,),
    ),
    Figures(
        "mindspeed__mcore_deepseek3_pretrain_deepseek3_671b_4k_ptd.sh",
        DEEPSEEK,
        7168,
        18432,
        129280,
        (16, 4, 8, 32),
        (1, 240),
        V,
        ((4,) * 8, (1, 4, 4, 4, 4, 4, 4, 4)),
        "dualpipev",
    ),
    Figures(
        "mindspeed__mcore_llama2_pretrain_llama2_13b_ptd.sh",
        {DENSE: 40},
        5120,
        13824,
        32000,
        (1, 8, 1, 1),
        (4, 128),
        ((40,),),
        ((0,),),
    ),
    Figures(
        "mindspeed__mcore_qwen25_pretrain_qwen25_72b_8k_pack_ptd.sh",
        {DENSE: 80},
        8192,
        29568,
        152064,
        (1, 8, 4, 1),
        (1, 32),
        ((4,) * 4,) * 5,
        ((0,) * 4,) * 5,
        "megatron-interleaved",
    ),
    Figures(
        "mindspeed__mindspore_deepseek3_pretrain_deepseek3_671b_4k_ms.sh",
        DEEPSEEK,
        7168,
        18432,
        129280,
        (16, 4, 8, 8 * 4),
        (1, 240),
        ((8,) * 7 + (6,),),
        ((8,) * 7 + (5,),),
    ),
    Figures(
        "mindspeed__mindspore_llama3_pretrain_llama3_70b_ms.sh",
        {DENSE: 80},
        8192,
        28672,
        128256,
        (1, 8, 4, 1),
        (1, 512),
        ((17, 20, 22, 21),),
        ((0,) * 4,),
    ),
    Figures(
        "pretrain_deepseek3_671b_4k_A3_ptd.sh",
        DEEPSEEK,
        7168,
        18432,
        129280,
        (32, 2, 8, 16 * 2),
        (1, 120),
        V,
        ((4,) * 8, (1, 4, 4, 4, 4, 4, 4, 4)),
        "dualpipev",
    ),
]


@needs_samples
@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures.file[:50])
def test_a_sample_reads_as_a_person_reads_it(figures: Figures) -> None:
    config = read_config(SAMPLES / figures.file)
    model, strategy = config.model, config.strategy
    assert model.layer_counts() == figures.layers
    assert (model.hidden, model.ffn_hidden, model.vocab) == (figures.hidden, figures.ffn, figures.vocab)
    assert (strategy.dp, strategy.tp, strategy.pp, strategy.ep) == figures.degrees
    assert (strategy.mbs, strategy.micro_batches) == figures.batch
    assert config.schedule.name == figures.schedule
    assert config.plan is not None
    assert config.plan.total_layers() == figures.held
    assert config.plan.recompute[FULL] == figures.full


@needs_samples
def test_every_sample_is_covered_by_a_figure() -> None:
    assert {path.name for path in SAMPLES.glob("*.sh")} == {figures.file for figures in FIGURES}


@needs_samples
@needs_bash
@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures.file[:50])
def test_the_reader_finds_the_arguments_that_bash_would_pass(figures: Figures, tmp_path: Path) -> None:
    found = known_arguments(SAMPLES / figures.file)
    passed = arguments_under_bash(SAMPLES / figures.file, tmp_path)
    flags = [word for word in found if word is None or word.startswith("--")]
    assert [word for word in passed if word.startswith("--")] == [word for word in flags if word is not None]
    if None not in found:
        assert found == passed


SYNTAX = r"""#!/bin/bash
# comment with "quotes' and $VARS
set -euo pipefail
export A=1 B="two words" C='sin"gle $A'
N=$((A + 7 * (3 - 1) % 4)); M=$(( $N*2 ))
UNUSED=$(date +%s)
D=${MISSING:-4}; E=${A:-9}; F=${A:+yes}
if [ "$A" = 1 ]; then
    G=inside
fi
cat <<END > /dev/null
--num-layers 999 "unclosed
END
LIST=(--x 1   # one
    --y "2 3" --z=$N
    '--w' 4\ 5)
LIST+=(--more "$B")
TEXT="--num-layers ${N} \
  --hidden-size 64 --tensor-model-parallel-size $A
  --bare"
TEXT+=" --tail $D"
for i in 1 2; do :; done
torchrun --nproc_per_node $M \
    run.py $TEXT "${LIST[@]}" ${LIST[@]} --s "$C" --d $D$E-$F --e "" --g ${LIST[0]} 2>&1 | tee log
"""


@needs_bash
def test_the_forms_of_the_language_expand_as_under_bash(tmp_path: Path) -> None:
    script = tmp_path / "s.sh"
    script.write_text(SYNTAX)
    assert known_arguments(script) == arguments_under_bash(script, tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("-7/2", -3),
        ("-7%3", -1),
        ("$A*${B}", 6),
        ("A-1", 1),
        ("2**3", None),
        ("1/0", None),
        ("C", None),
        ("1;2", None),
        ("", None),
        ("9" * 18 + "*" + "9" * 18, None),
    ],
)
def test_arithmetic_is_worked_out_as_the_shell_does_or_not_at_all(text: str, value: int | None) -> None:
    assert evaluate_arithmetic(text, {"A": 2, "B": 3}.get) == value


LAUNCH = "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py"


def script_of(folder: Path, flags: str, style: str = "string") -> Path:
    """A script of one's own with the given flags in a style."""
    lines = [line.strip() for line in flags.strip().splitlines()]
    if style == "string":
        body = 'ARGS="\n    ' + " \\\n    ".join(lines) + '\n"\n' + LAUNCH + " $ARGS\n"
    elif style == "array":
        listed = "\n\t".join(f"{line}  # {i} 注释" for i, line in enumerate(lines))
        body = f'ARGS=(\n\t{listed}\n)\n{LAUNCH} "${{ARGS[@]}}"\n'
    elif style == "command":
        body = LAUNCH + " \\\n    " + " \\\n    ".join(lines) + "\n"
    elif style == "joined":
        body = LAUNCH + " \\\n    " + " \\\n    ".join(line.replace(" ", "=", 1) for line in lines) + "\n"
    elif style == "one line":
        body = f"{LAUNCH} {' '.join(lines)} | tee log\n"
    elif style == "newlines":
        body = "ARGS='\n" + "\n".join(lines) + f"\n'\n{LAUNCH} $ARGS"
    else:
        names = {line.split()[0]: f"V{i}" for i, line in enumerate(lines) if " " in line}
        head = "".join(f"{names[line.split()[0]]}={line.split()[1]}\n" for line in lines if " " in line)
        body = (
            head
            + LAUNCH
            + " \\\n"
            + " \\\n".join(
                f"  {line.split()[0]} ${{{names[line.split()[0]]}}}" if " " in line else f"  {line}" for line in lines
            )
            + "\n"
        )
    file = folder / f"{style.replace(' ', '_')}.sh"
    file.write_text(f"#!/bin/bash\n# 启动脚本\n{body}", encoding="utf-8")
    return file


STYLES = ("string", "array", "command", "joined", "one line", "newlines", "variables")
BASE = """
--num-layers 24
--hidden-size 1024
--num-attention-heads 16
--seq-length 2048
--max-position-embeddings 2048
--padded-vocab-size 50304
--tensor-model-parallel-size 2
--pipeline-model-parallel-size 4
--micro-batch-size 1
--global-batch-size 64
--bf16
"""
MOE_FLAGS = """
--num-experts 8
--moe-layer-freq ([0]*2+[1]*22)
--moe-router-topk 2
--mtp-num-layers 1
"""


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ("", ((6, 6, 6, 6),)),
        ("--num-layers-per-virtual-pipeline-stage 3", ((3,) * 4,) * 2),
        ("--num-virtual-stages-per-pipeline-rank 2", ((3,) * 4,) * 2),
        ("--num-layer-list 3,7,8,6", ((3, 7, 8, 6),)),
        ("--noop-layers 22,23", ((6, 6, 6, 4),)),
        ("--noop-layers 0,5", ((4, 6, 6, 6),)),
        ("--decoder-first-pipeline-num-layers 3", ((3, 7, 7, 7),)),
        ("--decoder-first-pipeline-num-layers 4", None),
        ("--decoder-first-pipeline-num-layers 4\n--decoder-last-pipeline-num-layers 2", ((4, 9, 9, 2),)),
        ("--decoder-last-pipeline-num-layers 9", ((5, 5, 5, 9),)),
        ("--pipeline-model-parallel-layout Et*5|t*7|t*7|t*5L", ((5, 7, 7, 5),)),
        ("--pipeline-model-parallel-layout Ettt|(ttt|)*6,tttL", ((3,) * 4,) * 2),
        ("--pipeline-model-parallel-layout Ettt|(ttt|)*6,L", None),
        ("--num-layer-list 3,7,8", None),
    ],
)
def test_the_flags_that_place_layers_mean_what_their_manuals_say(
    tmp_path: Path, more: str, held: tuple[tuple[int, ...], ...] | None
) -> None:
    config = read_config(script_of(tmp_path, BASE + more))
    if held is None:
        assert config.plan is None and "settles no plan" in config.notes[-1]
    else:
        assert config.plan is not None and config.plan.total_layers() == held


def test_embedding_and_loss_can_count_as_layers(tmp_path: Path) -> None:
    flags = BASE.replace("--num-layers 24", "--num-layers 22")
    flags += "--account-for-embedding-in-pipeline-split\n--account-for-loss-in-pipeline-split"
    plan = read_config(script_of(tmp_path, flags)).plan
    assert plan is not None and plan.total_layers() == ((5, 6, 6, 5),)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ("", None),
        ("--recompute-modules core_attn", (frameworks.ATTENTION_CORE,)),
        ("--recompute-modules [layernorm mlp]", (frameworks.NORMS, frameworks.DENSE_MLP)),
        ("--recompute-modules moe_act shared_experts", (frameworks.EXPERT_ACTIVATION, frameworks.SHARED_EXPERTS)),
        ("--moe-layer-recompute", (frameworks.ATTENTION_CORE, frameworks.EXPERT_BLOCK)),
    ],
)
def test_the_modules_of_selective_recompute_are_the_parts_that_run_again(
    tmp_path: Path, more: str, parts: tuple[str, ...] | None
) -> None:
    assert read_config(script_of(tmp_path, f"{BASE}--recompute-granularity selective {more}")).rules.selective == parts


UP, SENT = frameworks.LATENT_UP, (frameworks.EXPERT_ACTIVATION, frameworks.EXPERT_ROWS)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ("--recompute-mla-up-proj", (UP,)),
        ("--moe-zero-memory level0", None),
        ("--moe-zero-memory disable --moe-fb-overlap", None),
        ("--moe-zero-memory level0 --moe-fb-overlap", SENT),
        ("--moe-zero-memory level1 --moe-alltoall-overlap-comm", SENT),
        ("--recompute-granularity selective --recompute-mla-up-proj", (frameworks.ATTENTION_CORE, UP)),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2 --recompute-mla-up-proj",
            (UP,),
        ),
    ],
)
def test_parts_that_mindspeed_runs_again_in_every_layer_do_so_where_none_is_recomputed_whole(
    tmp_path: Path, more: str, parts: tuple[str, ...] | None
) -> None:
    config = read_config(script_of(tmp_path, f"{BASE}{MOE_FLAGS}{more}"))
    assert config.rules.selective == parts and config.plan is not None
    full, select = config.plan.recomputed(FULL), config.plan.recomputed(SELECT)
    body = config.plan.total_layers([kind for kind in config.plan.layers if kind != MTP])
    wanted = body if parts else tuple(tuple(0 for _ in row) for row in body)
    assert tuple(tuple(a + b for a, b in zip(*rows, strict=True)) for rows in zip(full, select, strict=True)) == wanted
    if not config.plan.uses(FULL) and parts:
        for plan in (config.plan, PipelinePlan(config.plan.layers, {FULL: body})):
            _, text = launcher_of(config).with_plan(config, plan, None)
            (tmp_path / "new.sh").write_text(text)
            assert read_config(tmp_path / "new.sh").plan.recomputed(FULL) == plan.recomputed(FULL)
            assert read_config(tmp_path / "new.sh").plan.recomputed(SELECT) == plan.recomputed(SELECT)


@pytest.mark.parametrize(("more", "whole"), [("", True), ("--dualpipev-dw-detach", False)])
def test_the_v_schedule_puts_weight_gradients_off_only_where_it_is_told_to(
    tmp_path: Path, more: str, whole: bool
) -> None:
    schedule = read_config(script_of(tmp_path, f"{BASE}--schedules-method dualpipev {more}")).schedule
    assert schedule == ScheduleSpec("dualpipev", whole_drain=whole)
    drain = build_schedule(schedule, 4, 2, 8).order[3, -8:, 0].tolist()
    assert (drain == [BACKWARD, WEIGHT_GRADIENT] * 4) == whole


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ("", "zb-h1"),
        (" --zero-bubble-max-pending-backward 4", "zb-h1"),
        (" --zero-bubble-max-pending-backward 8", "zb-h2"),
    ],
)
def test_zero_bubble_s_own_flags_choose_its_schedule_and_are_written_for_it(
    tmp_path: Path, more: str, name: str
) -> None:
    file = script_of(tmp_path, f"{BASE}--enable-zero-bubble{more}")
    config = read_config(file)
    assert (config.schedule.name, config.strategy.vpp) == (name, 1)
    assert any("planned as ZB-H1" in note for note in config.notes) == (not more)
    assert config.plan is not None
    for other in ("zb-h1", "zb-h2", "1f1b"):
        wanted = config.replace(schedule=ScheduleSpec(other))
        assert launcher_of(config).can_write(config, wanted.schedule)
        again = read_config(write_plan(wanted, config.plan, output=tmp_path / f"{other}.sh"))
        assert again.schedule.name == other and again.plan == config.plan
    uneven = PipelinePlan({DENSE: ((5, 7, 6, 6),)}, {FULL: ((0,) * 4,)})
    with pytest.raises(InputError, match="spreads layers evenly"):
        write_plan(config, uneven, output=tmp_path / "uneven.sh")
    assert not launcher_of(config).can_write(read_config(script_of(tmp_path, BASE)), ScheduleSpec("zb-h1"))


def test_an_unknown_module_of_selective_recompute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--recompute-modules: names no part of a layer.*'mlps'.*core_attn"):
        read_config(script_of(tmp_path, f"{BASE}--recompute-modules mlps"))


@pytest.mark.parametrize(
    ("more", "full", "select"),
    [
        ("", (0, 0, 0, 0), None),
        ("--recompute-granularity selective", (0, 0, 0, 0), (6, 6, 6, 6)),
        ("--recompute-activations", (0, 0, 0, 0), (6, 6, 6, 6)),
        ("--recompute-granularity full\n--recompute-method uniform\n--recompute-num-layers 1", (6, 6, 6, 6), None),
        ("--recompute-granularity full\n--recompute-method block\n--recompute-num-layers 4", (4, 4, 4, 4), None),
        ("--recompute-granularity full\n--recompute-method block\n--recompute-num-layers 9", (6, 6, 6, 6), None),
        ("--recompute-granularity full\n--recompute-activations", (0, 0, 0, 0), (6, 6, 6, 6)),
        ("--checkpoint-activations", (6, 6, 6, 6), None),
        ("--activations-checkpoint-method uniform", (6, 6, 6, 6), None),
        ("--activations-checkpoint-method block\n--activations-checkpoint-num-layers 2", (2, 2, 2, 2), None),
    ],
)
def test_recompute_flags_count_layers_of_each_chunk(
    tmp_path: Path, more: str, full: tuple[int, ...], select: tuple[int, ...] | None
) -> None:
    plan = read_config(script_of(tmp_path, BASE + more)).plan
    assert plan is not None
    assert plan.recompute[FULL] == (full,)
    assert plan.recompute.get(SELECT) == (None if select is None else (select,))


ACTIVATION = "--recompute-activation-function"
BLOCK_OF_TWO = "--recompute-granularity full\n--recompute-method block\n--recompute-num-layers 2\n"
PER_STAGE = "--num-layers-per-virtual-pipeline-stage 3\n--enable-recompute-layers-per-pp-rank\n"


@pytest.mark.parametrize(
    ("more", "full", "select"),
    [
        (ACTIVATION, ((0,) * 4,), ((6,) * 4,)),
        (f"{ACTIVATION}\n{ACTIVATION}-num-layers 4", ((0,) * 4,), ((4,) * 4,)),
        (f"{BLOCK_OF_TWO}{ACTIVATION}", ((2,) * 4,), ((4,) * 4,)),
        (f"{BLOCK_OF_TWO}{ACTIVATION}\n{ACTIVATION}-num-layers 3", ((2,) * 4,), ((3,) * 4,)),
        (f"{BLOCK_OF_TWO}{ACTIVATION}\n{ACTIVATION}-num-layers 9", ((2,) * 4,), ((4,) * 4,)),
        (f"{PER_STAGE}{BLOCK_OF_TWO}{ACTIVATION}\n{ACTIVATION}-num-layers 3", ((1,) * 4,) * 2, ((2,) * 4, (1,) * 4)),
    ],
)
def test_activation_functions_run_again_in_the_layers_that_are_not_recomputed_whole(
    tmp_path: Path, more: str, full: tuple[tuple[int, ...], ...], select: tuple[tuple[int, ...], ...]
) -> None:
    config = read_config(script_of(tmp_path, BASE + more))
    assert config.plan is not None and config.rules.selective == ACTIVATION_PARTS
    assert (config.plan.recompute[FULL], config.plan.recompute[SELECT]) == (full, select)


def test_activation_functions_beside_modules_count_as_kept_and_it_is_said(tmp_path: Path) -> None:
    config = read_config(script_of(tmp_path, f"{BASE}--recompute-granularity selective {ACTIVATION}"))
    assert config.rules.selective is None and any("count as kept" in note for note in config.notes)


def test_layers_of_uneven_chunks_whose_activation_functions_run_again_are_said_to_be_assumed(tmp_path: Path) -> None:
    flags = f"{BASE}--num-layer-list 3,7,8,6\n{ACTIVATION}\n{ACTIVATION}-num-layers 4"
    config = read_config(script_of(tmp_path, flags))
    assert config.plan is not None and config.plan.recompute[SELECT] == ((3, 4, 4, 4),)
    assert any("chunks are uneven" in note for note in config.notes)


@pytest.mark.parametrize("mode", [NONE, SELECT, FULL])
@pytest.mark.parametrize("most", [2, 6])
def test_a_script_whose_activation_functions_run_again_keeps_them_as_its_selective_recompute(
    tmp_path: Path, mode: str, most: int
) -> None:
    config = read_config(script_of(tmp_path, f"{BASE}{BLOCK_OF_TWO}{ACTIVATION}"))
    assert config.plan is not None
    again = {mode: ((6 if mode == SELECT else most,) * 4,)} if mode != NONE else {}
    plan = PipelinePlan(config.plan.layers, again)
    back = read_config(write_plan(config, plan))
    assert back.plan is not None and back.rules == config.rules
    assert all(back.plan.recomputed(each) == plan.recomputed(each) for each in (FULL, SELECT))
    assert "uniform" not in back.path.read_text(encoding="utf-8")


PP = "--pipeline-model-parallel-size"


@pytest.mark.parametrize(
    ("old", "new", "field", "says"),
    [
        (f"{PP} 4", f"{PP} 0", PP, "0"),
        (f"{PP} 4", f"{PP} four", PP, "'four'"),
        (f"{PP} 4", f"{PP} 32", PP, "32"),
        ("--num-layers 24", "--num-layers -3", "--num-layers", "-3"),
        ("--num-layers 24", "--num-layers 2.5", "--num-layers", "'2.5'"),
        ("--num-layers 24", "--num-layers $LAYERS", "--num-layers", "$LAYERS"),
        ("--num-layers 24", "--num-layers", "--num-layers", "no value"),
        ("--hidden-size 1024", "--hidden-sizes 1024", "--hidden-size", "missing"),
        ("--hidden-size 1024", "--hidden-size 1000", "--hidden-size", "16 attention heads"),
        ("--global-batch-size 64", "--global-batch-size 63", "--global-batch-size", "63"),
        ("--bf16", "--schedules-method zigzag", "--schedules-method", "'zigzag'"),
        ("--bf16", "--zero-bubble-v-schedule", "--zero-bubble-v-schedule", "as training starts"),
        ("--bf16", "--enable-1f1b-v", "--enable-1f1b-v", "as training starts"),
        ("--bf16", "--enable-zero-bubble --zero-bubble-max-pending-backward 3", "max-pending-backward", "4 stages"),
        ("--bf16", "--enable-zero-bubble --num-layers-per-virtual-pipeline-stage 2", "--enable-zero", "no virtual"),
        ("--bf16", "--recompute-granularity some", "--recompute-granularity", "'some'"),
        ("--bf16", "--recompute-granularity full", "--recompute-method", "None"),
        ("--bf16", "--num-experts 8 --moe-layer-freq 0", "--moe-layer-freq", "0"),
        ("--bf16", "--num-experts 8 --moe-layer-freq ([0]*3+[1]*20)", "--moe-layer-freq", "names 23 layers"),
        ("--bf16", "--num-experts 8 --moe-layer-freq ([0]*3+1)", "--moe-layer-freq", "a list of 0 and 1"),
        ("--bf16", "--noop-layers 1,x", "--noop-layers", "'1,x'"),
        ("--bf16", "--pipeline-model-parallel-layout Etq", "--pipeline-model-parallel-layout", "'q'"),
    ],
)
def test_a_wrong_flag_is_refused_with_file_flag_and_value(
    tmp_path: Path, old: str, new: str, field: str, says: str
) -> None:
    file = script_of(tmp_path, BASE.replace(old, new))
    with pytest.raises(InputError) as caught:
        read_config(file)
    assert str(file) in str(caught.value) and field in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "starts no training"),
        ("echo hello\n", "starts no training"),
        ("A='unclosed\n", "quote opened at line 1"),
        ("A=(1 2\n", "array opened at line 1"),
        ("\nA=${B\n", "bracket opened at line 2"),
        ("A=xxxxxxxxxx\n" + "A=$A$A\n" * 40, "too long a text"),
    ],
)
def test_a_script_that_is_no_launch_is_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "x.sh"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_config(file)


PROGRAM = "torchrun --nproc_per_node 8 {} --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 8\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        # NVIDIA/Megatron-LM d98e8a64 examples/t5, examples/mimo/scripts, examples/inference, examples/rl/model_configs.
        (PROGRAM.format("pretrain_t5.py"), "trains an encoder with a decoder"),
        (PROGRAM.format("examples/mimo/train.py"), "MIMO.*sizes stand in Python"),
        (PROGRAM.format("-m examples.inference.launch_inference_server"), "launch_inference_server.py generates text"),
        (
            "OPTIONS='--tensor-model-parallel-size 2 --micro-batch-size 1'\n",
            "sets flags for another.*--num-layers stands",
        ),
    ],
)
def test_a_script_of_no_language_model_is_refused_for_what_it_is(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "x.sh"
    file.write_text(text)
    with pytest.raises(InputError, match=says):
        read_config(file)


def test_a_model_in_a_file_that_an_argument_names_is_asked_for_by_that_argument(tmp_path: Path) -> None:
    """As examples/post_training/modelopt/train.sh of Megatron-LM."""
    sizes = "--num-layers 8 --hidden-size 256 --num-attention-heads 8 --vocab-size 1024"
    model = f"MODEL_ARGS='{sizes} --seq-length 512 --max-position-embeddings 512'\n"
    (tmp_path / "small.sh").write_text(model)
    script = tmp_path / "train.sh"
    program = PROGRAM.format("train.py").strip()
    script.write_text(f'DIR="$(dirname "$(readlink -f "$0")")"\nsource "$DIR/${{1}}.sh"\n{program} $MODEL_ARGS\n')
    with pytest.raises(InputError, match="--num-layers: stands in a file that argument 1 .*-shell 'FILE ARGUMENT"):
        read_config(script)
    with started(ShellStart(("small",), {})):
        assert read_config(script).model.n_layers == 8


def test_nothing_in_a_script_is_ever_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    file = script_of(tmp_path, BASE)
    touch = f"touch {mark}"
    head = f"{touch}\nX=$({touch})\nY=`{touch}`\nZ=$((1 + $({touch}; echo 1)))\n"
    file.write_text(head + file.read_text(encoding="utf-8"), encoding="utf-8")
    read_config(file)
    assert not mark.exists()


def block_plan(
    counts: dict[str, int], stages: int, vpp: int, cuts: list[int], block: int | None, v_shape: bool = False
) -> PipelinePlan:
    """Layers cut at the given places; the first `block` of each chunk recomputed (None: all selectively)."""
    order = chunk_order(stages, vpp, v_shape)
    kinds = [kind for kind, count in counts.items() if kind != MTP for _ in range(count)]
    bounds = [0, *sorted(cuts), len(kinds)]
    layers = {kind: [[0] * stages for _ in range(vpp)] for kind in counts}
    body = [[0] * stages for _ in range(vpp)]
    for k, (v, s) in enumerate(order):
        body[v][s] = bounds[k + 1] - bounds[k]
        for kind in kinds[bounds[k] : bounds[k + 1]]:
            layers[kind][v][s] += 1
    if MTP in counts:
        layers[MTP][order[-1][0]][order[-1][1]] = counts[MTP]
    zeros = as_grid([[0] * stages] * vpp)
    modes = (
        {FULL: zeros, SELECT: as_grid(body)}
        if block is None
        else {FULL: as_grid([[min(block, held) for held in row] for row in body])}
    )
    return PipelinePlan({kind: as_grid(grid) for kind, grid in layers.items()}, modes)


@needs_bash
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("mindspeed", [False, True], ids=["megatron", "mindspeed"])
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_plan_survives_the_way_through_a_script_of_any_style(
    style: str, mindspeed: bool, data: st.DataObject, tmp_path: Path
) -> None:
    flags = BASE + ("--use-fused-rmsnorm\n" if mindspeed else "")
    if style in ("string", "newlines") and data.draw(st.booleans()):
        flags += MOE_FLAGS  # The bracketed list needs quotes of its own anywhere else.
    for each in data.draw(
        st.lists(
            st.sampled_from(
                [
                    "--num-layer-list 3,7,8,6",
                    "--recompute-granularity selective",
                    "--decoder-last-pipeline-num-layers 9",
                ]
            ),
            max_size=1,
        )
    ):
        flags += each + "\n"
    file = script_of(tmp_path, flags, style)
    config = read_config(file)
    vpp = data.draw(st.integers(1, 3))
    v_shape = mindspeed and vpp == 2 and data.draw(st.booleans())
    config = config.replace(
        schedule=ScheduleSpec("dualpipev" if v_shape else "megatron-interleaved" if vpp > 1 else "1f1b")
    )
    cuts = data.draw(st.lists(st.integers(0, 24), min_size=4 * vpp - 1, max_size=4 * vpp - 1))
    block = data.draw(st.none() | st.integers(0, 8))
    plan = block_plan(config.model.layer_counts(), 4, vpp, cuts, block, v_shape)
    assert launcher_of(config).nearest_plan(plan) == (plan, ())
    written = write_plan(config, plan, output=tmp_path / "out.sh", micro_batches=16)
    back = read_config(written)
    assert (back.plan, back.schedule.name) == (plan, config.schedule.name) and back.strategy.micro_batches == 16
    assert (back.model, back.strategy.tp, back.rules) == (config.model.replace(name="out"), 2, config.rules)
    subprocess.run(["bash", "-n", str(written)], check=True, capture_output=True)
    assert known_arguments(written) == arguments_under_bash(written, tmp_path)
    text, new = file.read_text(encoding="utf-8"), written.read_text(encoding="utf-8")
    for line in text.splitlines():
        if "注释" in line or line.startswith("#"):
            assert line.split("#", 1)[1] in new
    again = write_plan(back, plan, output=tmp_path / "again.sh", micro_batches=16)
    assert again.read_text(encoding="utf-8") == new


@needs_samples
@needs_bash
@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures.file[:50])
@pytest.mark.parametrize("ends", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_plan_written_into_a_real_script_reads_back_and_touches_no_other_flag(
    figures: Figures, ends: str, tmp_path: Path
) -> None:
    text = (SAMPLES / figures.file).read_bytes().decode("utf-8").replace("\n", ends)
    file = tmp_path / figures.file
    file.write_bytes(text.encode("utf-8"))
    config = read_config(file)
    assert config.plan is not None
    order = chunk_order(config.strategy.pp, config.strategy.vpp, config.schedule.name == "dualpipev")
    layers = {kind: [list(row) for row in grid] for kind, grid in config.plan.layers.items()}
    if len(order) > 2:  # One layer of the body's kind from the second chunk to the third.
        rows = layers[[kind for kind in layers if kind != MTP][-1]]
        (a, b), (c, d) = order[1], order[2]
        rows[a][b] -= 1
        rows[c][d] += 1
    frozen = {kind: as_grid(rows) for kind, rows in layers.items()}
    body = PipelinePlan(frozen, {}).total_layers([kind for kind in frozen if kind != MTP])
    plan = PipelinePlan(frozen, {FULL: as_grid([[min(2, held) for held in row] for row in body])})
    written = write_plan(config, plan)
    assert read_config(written).plan == plan
    new = written.read_bytes().decode("utf-8")
    owned = (
        "num-layers",
        "num-layer-list",
        "noop-layers",
        "recompute-",
        "swap-attention",
        "decoder-",
        "pipeline-model-parallel-layout",
        "num-virtual-stages-per-pipeline-rank",
        "NUM_LAYERS=",
    )
    keep = [line for line in text.split("\n") if not any(name in line for name in owned)]
    assert [line for line in new.split("\n") if not any(name in line for name in owned)] == keep
    assert (tmp_path / f"{figures.file}.orig").read_bytes().decode("utf-8") == text
    again = write_plan(read_config(written), plan)
    assert again.read_bytes().decode("utf-8") == new
    if ends == "\n":
        subprocess.run(["bash", "-n", str(written)], check=True, capture_output=True)
        flags = [word for word in known_arguments(written) if word and word.startswith("--")]
        assert [word for word in arguments_under_bash(written, tmp_path) if word.startswith("--")] == flags


@needs_samples
@needs_bash
@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures.file[:50])
@pytest.mark.parametrize("ep", [2, 8])
def test_a_variant_starts_the_ranks_and_degrees_asked_for(figures: Figures, ep: int, tmp_path: Path) -> None:
    config = read_config(SAMPLES / figures.file)
    vpp = 2 if config.schedule.name == "dualpipev" else 1
    strategy = config.strategy.replace(
        dp=2, tp=4, pp=4, ep=ep if config.model.moe else 1, op=4, sp=True, vpp=vpp, mbs=2, micro_batches=8, cp=2
    )
    written = emit_variant(config, strategy, tmp_path / "v.sh", plan=None, extra={"train-iters": 10, "profile": True})
    assert read_config(written).strategy == strategy
    subprocess.run(["bash", "-n", str(written)], check=True, capture_output=True)
    passed = arguments_under_bash(written, tmp_path)
    assert passed[passed.index("--train-iters") + 1] == "10" and "--profile" in passed


def test_a_plan_that_the_flags_cannot_say_gets_the_nearest_that_fits_memory(tmp_path: Path) -> None:
    config = read_config(script_of(tmp_path, BASE))
    assert config.plan is not None
    plan = PipelinePlan(config.plan.layers, {FULL: ((4, 2, 1, 0),), SELECT: ((0, 3, 0, 0),)})
    nearest, why = launcher_of(config).nearest_plan(plan)
    assert nearest.recompute == {FULL: ((5, 5, 5, 5),)} and "N = 5" in why[0]
    assert read_config(write_plan(config, plan)).plan == nearest


def test_a_value_shared_by_two_flags_parts_at_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "s.sh"
    body = BASE.replace("--num-layers 24", "--num-layers $N").replace(f"{PP} 4", f"{PP} $P")
    body = body.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size $P").replace("\n", " ")
    file.write_text(f"N=24\nP=4\n{LAUNCH} {body}\n")
    config = read_config(file)
    strategy = config.strategy.replace(tp=2, dp=2, micro_batches=32)
    written = emit_variant(config, strategy, tmp_path / "v.sh", plan=None)
    assert read_config(written).strategy == strategy
    assert "--tensor-model-parallel-size 2" in written.read_text() and "P=4\n" in written.read_text()


def test_text_that_a_shell_would_take_apart_is_refused(tmp_path: Path) -> None:
    config = read_config(script_of(tmp_path, BASE))
    for value in ("a b", "$(reboot)", "x;y", "'q'"):
        with pytest.raises(InputError, match="split or expand"):
            emit_variant(config, config.strategy, tmp_path / "v.sh", plan=None, extra={"data-path": value})
    assert not (tmp_path / "v.sh").exists()


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*3|(tt|)*3,m|L", ["Ettt", "tt", "tt", "tt", "m", "L"]),
        ("E|(t|)*2,L", ["E", "t", "t", "L"]),
        ("EtttL", ["EtttL"]),
        ("Et|t m L", ["Et", "tmL"]),
    ],
)
def test_a_layout_string_spells_out_its_stages(text: str, stages: list[str]) -> None:
    assert expand_layout(text) == stages


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "tttL", "Ettt", "EtLt|L", "Emt|L", "Et*99999999|L", "E" + "(t*9999|)*9999" * 9 + "L", "Ex|L"]
)
def test_a_string_that_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(LayoutProblem):
        expand_layout(text)


@given(data=st.data())
def test_a_layout_written_for_a_plan_spells_out_that_plan(data: st.DataObject) -> None:
    stages, vpp = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    cuts = data.draw(st.lists(st.integers(0, 40), min_size=stages * vpp - 1, max_size=stages * vpp - 1))
    plan = block_plan({DENSE: 3, MOE: 37, MTP: 2}, stages, vpp, cuts, 0)
    spelled = expand_layout(layout_text(plan))
    body = plan.total_layers([DENSE, MOE])
    assert [stage.count("t") for stage in spelled] == [count for row in body for count in row]
    assert spelled[-1].endswith("mmL")


def test_the_last_of_two_equal_flags_counts(tmp_path: Path) -> None:
    file = script_of(tmp_path, BASE + "--micro-batch-size 2")
    assert read_config(file).strategy.mbs == 2
    assert Script.read(file).flags.integer("micro-batch-size") == 2


def test_ranks_that_no_full_node_holds_are_set_through_computed_values(tmp_path: Path) -> None:
    file = tmp_path / "s.sh"
    flags = BASE.replace("\n", " ")
    file.write_text(
        "PER=8\nNNODES=4\nWORLD=$(($PER*$NNODES))\n"
        f'D="--worker_num $WORLD --local_worker_num $PER"\nmsrun $D pretrain_gpt.py {flags}\n'
    )
    config = read_config(file)
    assert config.strategy.dp == 4
    for dp, tp in ((3, 2), (1, 1)):
        strategy = config.strategy.replace(dp=dp, tp=tp, micro_batches=5)
        written = emit_variant(config, strategy, tmp_path / "v.sh", plan=None)
        assert read_config(written).strategy == strategy
    file.write_text(file.read_text().replace("NNODES", "MACHINES"))
    strategy = config.strategy.replace(dp=2, micro_batches=5)
    assert read_config(emit_variant(read_config(file), strategy, tmp_path / "w.sh", plan=None)).strategy == strategy


def test_a_plan_of_fewer_layers_takes_the_dense_and_mtp_counts_along(tmp_path: Path) -> None:
    flags = BASE + MOE_FLAGS
    for each in (flags, flags.replace("--moe-layer-freq ([0]*2+[1]*22)", "--first-k-dense-replace 2")):
        config = read_config(script_of(tmp_path, each))
        plan = block_plan({DENSE: 1, MOE: 7}, 4, 1, [2, 4, 6], 2)
        back = read_config(emit_variant(config, config.strategy, tmp_path / "v.sh", plan=plan))
        assert back.plan == plan and back.model.layer_counts() == {DENSE: 1, MOE: 7}


@pytest.mark.parametrize(
    ("more", "without_scores"),
    [
        ("", True),
        ("--transformer-impl transformer_engine", True),
        ("--transformer-impl local", False),
        ("--transformer-impl local --use-flash-attn", True),
        ("--attention-backend auto", True),
        ("--attention-backend fused", True),
        ("--attention-backend unfused", False),
        ("--use-fused-rmsnorm", False),
        ("--use-fused-rmsnorm --use-flash-attn", True),
    ],
)
def test_attention_keeps_its_scores_only_where_its_implementation_does(tmp_path, more, without_scores):
    """Megatron-LM: arguments.py, transformer_config.py; MindSpeed-LLM (2.3.0): training/arguments.py:766."""
    assert read_config(script_of(tmp_path, BASE + more)).rules.flash_attention is without_scores


@pytest.mark.parametrize(
    ("more", "engine"),
    [
        ("", True),
        ("--transformer-impl local", False),
        ("--use-fused-rmsnorm", False),
        ("--use-fused-rmsnorm --transformer-impl transformer_engine", True),
    ],
)
def test_layers_are_transformer_engine_s_where_that_is_the_usual_or_named(tmp_path, more, engine):
    """Megatron-LM: arguments.py; MindSpeed-LLM's are local (2.3.0): training/arguments.py:766."""
    assert read_config(script_of(tmp_path, BASE + more)).rules.engine_layers is engine


@pytest.mark.parametrize(
    ("flags", "degree", "levels"),
    [
        ("", 1, None),
        ("--cp-comm-type all_gather", 1, None),
        ("--cp-comm-type a2a", None, None),
        ("--cp-comm-type p2p a2a", None, None),
        ("--cp-comm-type a2a+p2p\n--hierarchical-context-parallel-sizes 2 4", 2, 8),
        ("--cp-comm-type a2a+p2p\n--hierarchical-context-parallel-sizes 8 1", None, 8),
        ("--hierarchical-context-parallel-sizes 2 4", 1, 8),
    ],
)
def test_the_exchange_of_context_ranks_says_how_many_of_them_split_the_heads(
    tmp_path: Path, flags: str, degree: int | None, levels: int | None
) -> None:
    rules = read_config(script_of(tmp_path, f"{BASE}--context-parallel-size 8\n{flags}")).rules
    assert (rules.ulysses_degree, rules.context_levels) == (degree, levels)


def test_the_groups_of_micro_batches_of_a_script_are_planned(tmp_path: Path) -> None:
    flags = "--num-virtual-stages-per-pipeline-rank 2\n--microbatch-group-size-per-virtual-pipeline-stage 8\n"
    config = read_config(script_of(tmp_path, BASE + flags))
    assert config.schedule == ScheduleSpec("megatron-interleaved", group_size=8)
    assert "--microbatch-group-size-per-virtual-pipeline-stage" not in [flag.name for flag in config.unmodelled]
    notes = read_config(script_of(tmp_path, BASE + flags + "--global-batch-size 18\n")).notes
    assert [note for note in notes if "groups of 8" in note]


@pytest.mark.parametrize(
    ("flags", "once"),
    [
        ([], False),
        (["--moe-token-dispatcher-type alltoall", "--moe-enable-deepep"], False),
        (["--moe-token-dispatcher-type flex"], True),
        (["--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend hybridep"], True),
        (["--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend ncclep"], False),
    ],
)
def test_the_flex_dispatcher_sends_a_token_once_to_a_node(tmp_path: Path, flags: list[str], once: bool) -> None:
    path = script_of(tmp_path, "\n".join([BASE, "--num-experts 8", "--moe-router-topk 2", *flags]))
    assert read_config(path).rules.dispatch_by_node is once
