"""Memory and steps that ms-swift's examples state in their first lines, beside the predicted ones; none is in a fit.

Run from the repository's root with a checkout of modelscope/ms-swift: ``python -m benchmarks.swift_scripts FOLDER``.

A row is a script below ``examples/megatron`` or ``examples/models`` that starts Megatron with packed samples and opens
with the cards and what each took («# 8 * 57GiB, 2.95s/it»). Packing fills a micro-batch to ``max_length``; without it
the memory depends on samples that the script does not show. The figure is the program's own ``memory(GiB)``,
``torch.cuda.max_memory_reserved`` of the fullest rank (swift/megatron/callbacks/print.py:63), rounded by whoever wrote
the line. A line may describe other settings than the script's; a prefix says whose it is (``# BF16: 8 * 52GiB``), and
only lines without one, and those that `OWN` names, are rows; a line of 80 GiB is none, which is the whole card. The
card is taken for an A100 with 80 GiB but where a line names another.

Three groups: models of text trained whole; models with images, whose tokens the scripts do not show, or with another
head than the vocabulary's, which is not modelled; adapters. Steps are longer than those of the same job with samples of
`max_length`, or shorter, as attention sees each packed sample alone.
"""

from __future__ import annotations

import argparse
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.variant_order import Variant, variant_order
from taylor.base.errors import TaylorError
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.workspaces import allocated_mib, reserved_mib
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.planned_step import planned_step_ms
from taylor.workflows.statement.stated_file import StatedFile

OWN = ("FP8", "Megatron-LM", "GPU Memory", "muon", "lora")
"""Prefixes of lines that describe the script itself."""
_LINE = re.compile(
    r"^#\s*(?:(?P<whose>[\w ()-]+):\s*)?(?:(?P<early>[\d.]+)s/it[;,]\s*)?(?P<cards>\d+) \* (?P<gib>[\d.]+)(?:GiB|GB)"
    r"(?:[.;,\s]+(?:Training Speed )?(?P<late>[\d.]+)s/it)?",
    re.MULTILINE,
)
_PACKED = re.compile(r"^\s*--packing true", re.MULTILINE)
_CARD_GIB = 80
_IMAGES = re.compile(r"--model \S*(?:VL|Omni|Ovis|V-)")
_MEGATRON = re.compile(r"^megatron (?:sft|pt|rlhf)", re.MULTILINE)


@dataclass(frozen=True)
class StatedRun:
    """What a script states and what is predicted for it; None where a figure is missing."""

    group: str
    name: str
    cards: int
    device: str
    stated_gib: float
    stated_seconds: float | None
    gib: float | None = None
    seconds: float | None = None
    reason: str = ""
    flags: tuple[str, ...] = ()
    job: tuple[str, str] = ("", "")
    tokens: float = 1.0


def stated_runs(folder: Path) -> Iterator[StatedRun]:
    """Every row below a checkout, priced."""
    for path in sorted(folder.glob("examples/m*/**/*.sh")):
        text = path.read_text(encoding="utf-8")
        found = [line for line in _LINE.finditer(text) if (line["whose"] or OWN[0]).strip() in OWN]
        if not found or not _PACKED.search(text) or not _MEGATRON.search(text):
            continue
        line, card = found[0], "h20-96g" if "H20" in text[: text.find("megatron ")] else "a100-80g"
        if float(line["gib"]) == _CARD_GIB:
            continue
        seconds = line["early"] or line["late"]
        group = "images or another head" if _IMAGES.search(text) or "seq_cls" in text or "type rm" in text else "whole"
        yield _priced(
            path,
            StatedRun(
                "adapters" if "--tuner_type lora" in text else group,
                str(path.relative_to(folder / "examples")),
                int(line["cards"]),
                card,
                float(line["gib"]),
                None if seconds is None else float(seconds),
            ),
        )


def _priced(path: Path, run: StatedRun) -> StatedRun:
    try:
        stated = StatedFile.read(FileJob(path, device=run.device, world_size=run.cards, dryrun=False, check=False))
    except TaylorError as error:
        return replace(run, reason=str(error))
    config, device = stated.running, stated.chosen.spec
    plan = config.plan or config.even_plan(config.strategy)
    stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
    heaviest = max(stages, key=lambda stage: stage.total)
    reserved = reserved_mib(heaviest, config.model, config.rules, device)
    allocated = allocated_mib(heaviest, config.model, config.rules, device)
    return replace(
        run,
        gib=(allocated if reserved is None else reserved) / 1024,
        seconds=planned_step_ms(config, device) / 1000,
        flags=tuple(flag.name for flag in config.unmodelled),
        job=(config.model.name, run.device),
        tokens=config.strategy.global_batch * config.rules.seq_length / run.cards,
    )


def main() -> None:
    """Print every row and the medians."""
    parser = argparse.ArgumentParser(description="memory and steps that ms-swift's examples state, beside predicted")
    parser.add_argument("folder", type=Path, help="checkout of modelscope/ms-swift")
    folder = parser.parse_args().folder
    logging.disable(logging.WARNING)
    errors: dict[tuple[str, str], list[float]] = {}
    peaks: list[Variant] = []
    steps: list[Variant] = []
    for run in stated_runs(folder):
        if run.gib is None or run.seconds is None:
            print(f"{run.name:44s} not read: {run.reason[:160]}")
            continue
        error = run.gib / run.stated_gib - 1
        errors.setdefault(("memory", run.group), []).append(error)
        peaks.append(Variant((*run.job, run.cards), run.stated_gib, run.gib))
        step = ""
        if run.stated_seconds is not None:
            slower = run.seconds / run.stated_seconds - 1
            steps.append(Variant(run.job, run.stated_seconds / run.tokens, run.seconds / run.tokens))
            errors.setdefault(("step", run.group), []).append(slower)
            step = f"{run.stated_seconds:7.2f} s {run.seconds:7.2f} s {slower:+7.1%}"
        print(
            f"{run.name:44s} {run.cards:3d} {run.device:9s} {run.stated_gib:5.0f} GiB {run.gib:6.1f} GiB "
            f"{error:+7.1%} {step:30s} {' '.join(run.flags)}"
        )
    for (figure, group), known in sorted(errors.items()):
        print(
            f"{figure}, {group}: {len(known)} rows, median error {median(map(abs, known)):.1%}, "
            f"bias {median(known):+.1%}, largest {max(known, key=abs):+.1%}"
        )
    print(f"memory on as many cards: {variant_order(peaks)}")
    print(f"card-seconds a token: {variant_order(steps)}")


if __name__ == "__main__":
    main()
