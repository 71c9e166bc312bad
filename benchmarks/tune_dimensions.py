"""What `taylor tune` searches of the features that MindSpeed's auto settings list: writes the table in docs/tune.md.

    python -m benchmarks.tune_dimensions

Choices, small runs and switches are asked of the code, on a MindSpeed script with experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from taylor.blackbox.degree_search import Job, choices
from taylor.blackbox.small_runs import SmallRun, plan_small_runs
from taylor.parsers.launcher import Launcher
from taylor.parsers.small_run import Machines, RunSetting
from taylor.pipeline.plan import FULL
from taylor.workflows.tuning.tune import launcher_for

SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --seq-length 8192 --micro-batch-size 1 --global-batch-size 256 --tensor-model-parallel-size 2 --bf16 \\
    --num-experts 8 --moe-router-topk 2 --moe-token-dispatcher-type alltoall --expert-model-parallel-size 2 \\
    --use-fused-rmsnorm --use-distributed-optimizer --use-cp-send-recv-overlap {more}
"""
PAGE = Path(__file__).parents[1] / "docs" / "tune.md"
BEGIN, END = "<!-- Written by python -m benchmarks.tune_dimensions -->", "<!-- End of what is written -->"
CARDS = Machines(2, 8)
FILE, SEARCHED, COMPARED, NOT = "as the file states", "searched", "compared", "not searched"
ASKED = "searched where asked for"
_NAMES = ("tp", "cp", "ep", "mbs", "pp", "dp", "vpp")


@dataclass(frozen=True)
class Feature:
    """A feature of the list.

    Parameters
    ----------
    setting : str
        Name in a `RunSetting` that the search varies; empty for others.
    switch : str
        Name of the `Switch` that is compared; empty for others.
    note : str
        Column «how».
    kept : bool
        Small runs and plans keep what the file states of it.
    """

    name: str
    setting: str = ""
    switch: str = ""
    note: str = ""
    kept: bool = False


MODULE_RECOMPUTE = "recompute by candidate module"
FEATURES = (
    Feature("data parallel", "dp", note="the ranks that the other degrees leave"),
    Feature("tensor parallel", "tp"),
    Feature("sequence parallel (Megatron)", kept=True, note="on wherever TP is above 1"),
    Feature("pipeline parallel", "pp", note="layers of a stage by the exact solver"),
    Feature("virtual stages (VPP)", "vpp", note="a chunk has layers as a stage does: no run of its own"),
    Feature("ZeRO-1", kept=True, note="on in every small run and plan"),
    Feature("context parallel", "cp"),
    Feature(
        "its algorithm: ring or Ulysses",
        switch="cp_ulysses",
        note="the other than the file's, where the cards suffice for CP",
    ),
    Feature("its algorithm: hybrid", kept=True),
    Feature("expert parallel (DeepSpeed-MoE and Megatron-MoE)", "ep", note="experts over TP as the file states"),
    Feature("micro-batch", "mbs"),
    Feature("full recompute", note="layers of each chunk by the exact solver; every small run recomputes all"),
    Feature("MC2", switch="mc2"),
    Feature("token rearrangement", switch="token_permute"),
    Feature("all-to-all overlap", switch="alltoall_overlap"),
    Feature(
        MODULE_RECOMPUTE,
        note="Megatron's modules, the same in all layers that have them: `--search ...,modules`",
    ),
    Feature("recompute of activation functions", note="small runs drop it, and no plan counts on it"),
    Feature("swap-attention", note="small runs drop it, and no plan counts on it"),
    Feature("ZeRO-2", note="only under FSDP, whose checkpoints differ"),
)


def rows() -> Iterator[tuple[str, str, str, str]]:
    """(feature, how it is treated, small runs that show it, how)."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / "pretrain.sh"
        script.write_text(SCRIPT.format(more="--moe-grouped-gemm --moe-permutation-async-comm"))
        launcher = launcher_for(script)
        sizes = launcher.job_sizes(script)
        runs = plan_small_runs(sizes, CARDS, modules=launcher.recompute_modules(script)).runs
        names = {one.name for one in launcher.switches(script)} | _without_grouped(script, launcher)
        job = Job(sizes, sizes.job_ranks, sizes.batch or 1, 1.0, [*_NAMES])
        varied = [run for run, _ in choices(job)]
        solved = dict(launcher.uniform_recompute(sizes.own.layers, (FULL,)))
    for one in FEATURES:
        yield one.name, _treated(one, varied, names, solved, runs), _shown(one, runs), one.note


def _without_grouped(script: Path, launcher: Launcher) -> set[str]:
    """Switches of the same script where its experts' GEMMs are not grouped."""
    script.write_text(SCRIPT.format(more=""))
    return {one.name for one in launcher.switches(script)}


def _treated(
    one: Feature,
    varied: list[RunSetting],
    switches: set[str],
    solved: dict[str, int],
    runs: tuple[SmallRun, ...],
) -> str:
    if one.setting:
        return SEARCHED if len({getattr(run, one.setting) for run in varied}) > 1 else NOT
    if one.switch:
        return COMPARED if one.switch in switches else NOT
    if one.name == "full recompute":
        return SEARCHED if FULL in solved else NOT
    if one.name == MODULE_RECOMPUTE:
        return ASKED if any(run.again for run in runs) else NOT
    return FILE if one.kept else NOT


def _shown(one: Feature, runs: tuple[SmallRun, ...]) -> str:
    """Names of the runs that change a setting, or the number of runs of a switch."""
    if one.switch:
        return "4 a plan"
    if one.name == MODULE_RECOMPUTE:
        return ", ".join(run.name for run in runs if run.again is not None)
    base = runs[0].setting
    names = [
        run.name for run in runs if one.setting and getattr(run.setting, one.setting) != getattr(base, one.setting)
    ]
    # Cards that another degree leaves are the replicas': no run is there for them.
    return ", ".join(names) if one.setting not in ("", "dp") else ""


def table() -> str:
    """The table of docs/tune.md."""
    head = ("feature", "in the search", "small runs", "how")
    lines = [head, ("---",) * 4, *rows()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def page() -> str:
    """docs/tune.md with the table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
