"""Every launch script and configuration of the repositories for Ascend devices, read as the commands read them.

    python -m benchmarks.ascend_sweep Ascend/MindSpeed=CLONE Ascend/MindSpeed-LLM=CLONE \\
        mindspore-ai/mindformers=CLONE Ascend/MindSpeed-MM=CLONE [--table FILE.csv]

A CLONE is a git repository, bare or not, read at its HEAD. One row a file: the launcher that it is read by and why it
is taken for MindSpeed's, the device and why it is that one, ranks, parameters, the peak of the plan as written and the
memory limit; or the refusal. The summary counts refusals by their words, and the files whose name states a generation
of devices that is not the one that is planned for. Exit code 1 where a file ends in a traceback or its device is wrong.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from taylor.base.errors import TaylorError
from taylor.cost_model.job.parameters import total_parameters
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.profile import MemorySource
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.stated_size import size_note
from taylor.workflows.statement.devices import choose_device

READ_SUFFIXES = (".sh", ".yaml", ".yml")
KEPT_SUFFIXES = (*READ_SUFFIXES, ".json")
GENERATIONS = {"A2": "ascend-910b", "A3": "ascend-a3", "A5": "ascend-950dt"}
"""Names of device generations in file names; checked by a pattern of its own."""


@dataclass(frozen=True)
class Row:
    """One file as it is read; `refusal` or `crash` where it is not."""

    file: str
    launcher: str = ""
    device: str = ""
    why: str = ""
    ranks: int = 0
    parameters: int = 0
    peak_mib: float = 0.0
    limit_mib: float = 0.0
    misfit: str = ""
    least_mib: float = 0.0
    lowers: str = ""
    size: str = ""
    refusal: str = ""
    crash: str = ""

    @property
    def over(self) -> bool:
        """The plan as written needs more memory than the device offers."""
        return self.peak_mib > self.limit_mib

    @property
    def explained(self) -> str:
        """Reason why it may fit where the figure says that it does not; empty without one."""
        if self.misfit:
            return f"it does not start: {self.misfit}"
        if self.size:
            return self.size
        if self.lowers:
            return f"not known: {self.lowers} may lower the peak"
        return "not known: within what the estimate may be off" if self.least_mib <= self.limit_mib else ""

    @property
    def named(self) -> str | None:
        """The device that the file's name states; None where it states none."""
        found = {device for word, device in GENERATIONS.items() if re.search(rf"[_-]{word}[_.-]", Path(self.file).name)}
        return found.pop() if len(found) == 1 else None


def swept(root: Path, file: Path) -> Row:
    """A file read as the commands do, with the plan that it states or an even one."""
    name = file.relative_to(root).as_posix()
    try:
        config = read_config(file)
        chosen = choose_device(config)
        plan = config.plan or config.even_plan(config.strategy)
        stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
        peak, known = max(stage.total for stage in stages), config.memory_error(MemorySource.ESTIMATE)
        lowers = [flag.name for flag in config.unmodelled if flag.may_lower_memory]
        return Row(
            name, launcher_of(config).name, chosen.spec.name, chosen.reason, config.strategy.world_size,
            total_parameters(config.model), peak, config.memory_limit_mib(chosen.spec),
            next((misfit.problem for misfit in config.misfits), ""),
            peak if known is None else peak * known.lower(config.margin.stated_risk), " ".join(lowers),
            size_note(config) or "",
        )  # fmt: skip
    except (TaylorError, ValueError) as error:
        reason = str(error).replace(str(root), "")
        return Row(name, refusal=reason) if isinstance(error, TaylorError) else Row(name, crash=traceback.format_exc())
    except Exception:
        return Row(name, crash=traceback.format_exc())


def laid_out(clone: Path, place: Path) -> list[Path]:
    """The scripts and configurations of a clone, written below a folder with the JSON files that they name."""
    git = ["git", "-C", str(clone)]
    listed = subprocess.run([*git, "ls-tree", "-r", "--name-only", "HEAD"], capture_output=True, check=True, text=True)
    kinds = [f"*{suffix}" for suffix in KEPT_SUFFIXES if f"{suffix}\n" in listed.stdout]
    packed = subprocess.run([*git, "archive", "HEAD", *kinds], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        kept = [member for member in archive if member.isfile() and member.name.endswith(KEPT_SUFFIXES)]
        archive.extractall(place, kept, filter="data")
    return sorted(path for path in place.rglob("*") if path.suffix in READ_SUFFIXES and path.is_file())


def sweep(clones: Iterable[tuple[str, Path]], workers: int = 2) -> Iterator[Row]:
    """A row a file of the clones, in their order."""
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(workers) as pool:
        root = Path(folder)
        for name, clone in clones:
            files = laid_out(clone, root / name)
            yield from pool.map(swept, [root] * len(files), files, chunksize=8)


def refusal_words(refusal: str) -> str:
    """A refusal without what differs from file to file."""
    words = re.sub(r"^\S+?: ", "", refusal)
    return re.sub(r"\d[\d,.]*", "N", words)[:150]


def summary(rows: Sequence[Row]) -> list[str]:
    """Counts of files, launchers, devices, refusals and plans over the limit."""
    read = [row for row in rows if row.launcher]
    lines = [f"{len(rows)} files, {len(read)} read, {sum(bool(row.crash) for row in rows)} tracebacks"]
    for what, found in (
        ("launcher and device", Counter(f"{row.launcher}, {row.device}" for row in read)),
        ("refusal", Counter(refusal_words(row.refusal) for row in rows if row.refusal)),
    ):
        lines += [f"{count:5d}  {what}: {text}" for text, count in found.most_common()]
    wrong = [row for row in read if row.named not in (None, row.device)]
    lines += [f"wrong device: {row.file}: {row.device}, {row.why}" for row in wrong]
    named = sum(row.named is not None for row in read)
    over = [row for row in read if row.over]
    lines += [
        f"does not fit: {row.file}: {row.peak_mib:,.0f} of {row.limit_mib:,.0f} MiB; {row.explained or 'NOT EXPLAINED'}"
        for row in over
    ]
    left = sum(not row.explained for row in over)
    lines.append(
        f"{named - len(wrong)} of {named} devices as the file's name states; {len(over)} plans over the limit, "
        f"{left} of them without a reason why they may fit"
    )
    return lines


def main() -> None:
    """Sweep the clones and print the summary."""
    parser = argparse.ArgumentParser(description="scripts of the repositories for Ascend devices")
    parser.add_argument("clones", nargs="+", metavar="NAME=CLONE")
    parser.add_argument("--table", type=Path, help="CSV file of all rows")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    pairs = [(name, Path(path)) for name, _, path in (text.partition("=") for text in options.clones)]
    rows = list(sweep(pairs, options.workers))
    if options.table is not None:
        with open(options.table, "w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, [field.name for field in fields(Row)])
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    print("\n".join(summary(rows)))
    sys.exit(int(any(row.crash or (row.launcher and row.named not in (None, row.device)) for row in rows)))


if __name__ == "__main__":
    main()
