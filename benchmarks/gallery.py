"""Writes docs/gallery.md: ten questions, each with the command that answers it and what it prints.

Run from the repository's root: ``python -m benchmarks.gallery``. A test runs every command.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from taylor.base.files import write_atomic

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gallery.md"
SECONDS = 600
"""Time limit of a command."""

WIDTH = 118
"""Columns of a printed line; longer ones end in an ellipsis."""

_CLOCK = re.compile(r" in [\d.]+ s\b|, [\d.]+ s$")
"""Times that the machine took, which differ at every run."""

_INTRO = """# Gallery

Ten questions, each with the command that answers it and the lines of its output that do. The commands run in a
checkout; `python -m benchmarks.gallery` writes this page from them, without the seconds that they took.
"""


@dataclass(frozen=True)
class Case:
    """One question.

    Parameters
    ----------
    command : str
        As a user types it.
    shown : str
        Regular expression of the lines of standard output that are the answer.
    reading : str
        How to read them.
    """

    title: str
    question: str
    command: str
    shown: str
    reading: str


TABLE = r"^ +stage|^ *\d+ +[\d+]+|^ ─"
CASES = (
    Case(
        "Where does the step of a 671 B model go?",
        "DeepSeek-V3 on 1,024 Ascend 910B by its MindFormers file: step, bubble, and the memory of its fullest stage.",
        "taylor solve config/pretrain_deepseek3_671b_1024p.yaml -evaluate y -check n",
        r"^ *(step|bubble|speed|verdict|memory):",
        "The bubble's parts add up: what the schedule cannot avoid, uneven stages, recompute and exposed transfers.",
    ),
    Case(
        "How many layers should each stage have?",
        "Llama 3 70B on 32 H100 with two virtual stages, by its Megatron-LM script.",
        "taylor solve config/pretrain_llama3_70b.sh --device h100-80g -vpp 2 -t 60 -check n -o solved.sh",
        rf"{TABLE}|^ *(step|bubble|verdict):",
        "The first and the last chunk have fewer layers, as embedding and head take time. The plan is proven optimal.",
    ),
    Case(
        "How do I start a training without any file?",
        "Llama 3 8B on 16 H100: strategy, layers, and a script that starts Megatron-LM.",
        "taylor solve --model llama3-8b --device h100-80g --world_size 16 --gbs 256 -t 30 -o run.sh",
        rf"{TABLE}|^ *(step|speed|config|verdict):",
        "`run.sh` states all degrees; only data and tokenizer are left to fill in.",
    ),
    Case(
        "What fills each stage, and what lowers it?",
        "The same script's plan on cards of 80 GiB, at each stage's worst moment.",
        "taylor why-memory config/pretrain_llama3_70b.sh --device h100-80g",
        r"\S",
        "The changes at the end are sorted by what they free.",
    ),
    Case(
        "Is this strategy legal, and does it fit?",
        "DP16 TP4 PP16 EP8 of DeepSeek-V3 on 1,024 Ascend 910B, asked of the search.",
        "taylor search config/pretrain_deepseek3_671b_1024p.yaml --explain DP16_TP4_PP16_EP8",
        r"\S",
        "A rule that it broke would be named, and its memory is given either way. Without `--explain` the search "
        "writes each candidate as a file that starts, and the rule behind every pruned strategy.",
    ),
    Case(
        "What does LoRA cost?",
        "Fine-tuning of Llama 3 70B with low-rank adapters by MindSpeed-LLM's script.",
        "taylor solve config/finetune_llama3_70b_lora.sh -evaluate y -check n",
        r"^ *(step|speed|bubble|verdict|memory):",
        "Frozen weights keep neither gradients nor optimizer states, and their GEMMs run once in backward.",
    ),
    Case(
        "What do samples of unlike lengths do to the plan?",
        "The same job with the lengths of a sample of texts, packed.",
        "taylor lengths config/finetune_llama3_70b_lora.sh --lengths config/sample_lengths.csv --packing packed",
        r"\S",
        "The plan is best in the mean over sampled steps; the bound says how far from the best it can be at most.",
    ),
    Case(
        "How many cards do I need to end in two weeks?",
        "Llama 3 8B over 100 B tokens on H100, 64 of them at most.",
        "taylor size --model llama3-8b --device h100-80g --tokens 100B --days 14 --gbs 512 --max_devices 64",
        r"^ *devices |^ +\d+ +DP|: (at least|within 14 days: |no knee|beyond)",
        "The least number that fits, the least that meets the deadline, and what they take.",
    ),
    Case(
        "Does my framework run this model in FP8?",
        "Qwen3 30B-A3B with context parallelism under Megatron-LM on H100.",
        "taylor support --model qwen3-30b-a3b --device h100-80g --launcher megatron --precision fp8 --feature cp",
        r"\S",
        "The answer comes from the launcher's own tables and from a file that is written and read back.",
    ),
    Case(
        "What did the last run really do?",
        "Four worker logs drawn as one timeline.",
        "taylor timeline --log_dir ./log --trace timeline.json --html timeline.html",
        r"\S",
        "`timeline.html` opens in a browser, `timeline.json` in Perfetto; a planned timeline can be laid beneath.",
    ),
)


def workplace(folder: Path) -> Path:
    """A folder with what the commands read."""
    for name in ("config", "log"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def answer(case: Case, folder: Path) -> list[str]:
    """The lines that answer a case, without times of the machine.

    Raises
    ------
    RuntimeError
        When the command fails, or prints no such line.
    """
    program, *words = shlex.split(case.command)
    command = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-s", "-m", program, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    lines = [_CLOCK.sub("", line.rstrip()) for line in done.stdout.splitlines() if re.search(case.shown, line)]
    if done.returncode or not lines or "Traceback" in done.stderr:
        raise RuntimeError(f"{case.command}: {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]


def page(answers: list[list[str]]) -> str:
    """The whole page as Markdown."""
    parts = [_INTRO]
    for number, (case, lines) in enumerate(zip(CASES, answers, strict=True), 1):
        figure = "\n".join(lines)
        parts.append(
            f"## {number}. {case.title}\n\n{case.question}\n\n```sh\n{case.command}\n```\n\n```text\n{figure}\n```\n\n"
            f"{case.reading}\n"
        )
    return "\n".join(parts)


def main() -> None:
    """Run every command and write the page."""
    with tempfile.TemporaryDirectory() as place:
        folder = workplace(Path(place) / "checkout")
        write_atomic(PAGE, page([answer(case, folder) for case in CASES]))


if __name__ == "__main__":
    main()
