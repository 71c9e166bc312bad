"""Launch scripts whose ranks are taken out: is the world size that Taylor assumes the least that Megatron starts on?

    python -m benchmarks.least_ranks FOLDER... [--most 200]

Every script below the folders whose degrees bash settles (`differential_reading`) is read once more without the lines
that say how many nodes it starts. Megatron-LM itself makes its process groups on ever more whole nodes, and the first
world size on which it does is the right one: `initialize_model_parallel` of megatron-core 0.16.1 (`make outside`).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.differential_reading.megatron import parse
from benchmarks.differential_reading.reading import whole
from benchmarks.differential_reading.sandbox import launches
from benchmarks.reliability.megatron_verdict import groups_refusal
from taylor.base.console import start_logging
from taylor.base.errors import TaylorError
from taylor.parsers.read import read_config

MOST_RANKS = 2048
NODES = re.compile(
    r"^(?P<before>\s*(?:export\s+)?(?:NNODES|NODES|NUM_NODES|NODE_NUM|NNODE)=)[^\s#;]+|(?P<flag>--nnodes[ =])[^\s\\]+",
    re.MULTILINE,
)
"""What says how many nodes a script starts."""


@dataclass(frozen=True)
class Degrees:
    """Degrees of a launch, and the ranks of a node, as bash hands them to the program."""

    per_node: int
    tp: int
    pp: int
    cp: int
    ep: int
    expert_tp: int | None

    def least(self) -> int | None:
        """The least world size of whole nodes on which Megatron-LM makes its groups; None beyond `MOST_RANKS`."""
        for world in range(self.per_node, MOST_RANKS + 1, self.per_node):
            if groups_refusal(world, self.tp, self.pp, self.cp, self.ep, self.expert_tp) is None:
                return world
        return None


def degrees_of(text: str) -> Degrees | None:
    """The degrees of the one training that a script starts; None where bash does not settle them."""
    calls = [parse(call) for call in launches(text, files_exist=True) if call]
    trainings = [flags for flags in calls if "num-layers" in flags and "hidden-size" in flags]
    found = {_degrees(flags) for flags in trainings}
    return found.pop() if len(found) == 1 else None


def _degrees(flags: Mapping[str, Sequence[str]]) -> Degrees | None:
    def number(name: str, default: int | None) -> int | None:
        return default if name not in flags else whole(flags[name][0] if flags[name] else None)

    names = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    tp, pp, cp = (number(name, 1) for name in names)
    ep, per_node = number("expert-model-parallel-size", 1), number("nproc-per-node", None)
    if "moe-tp-extend-ep" in flags or None in (tp, pp, cp, ep, per_node):
        return None
    assert tp is not None and pp is not None and cp is not None and ep is not None and per_node is not None
    return Degrees(per_node, tp, pp, cp, ep, number("expert-tensor-parallel-size", None))


def without_nodes(text: str) -> str:
    """The script with its number of nodes left to its caller."""
    return NODES.sub(lambda match: f"{match['before'] or match['flag']}$1", text)


def compared(files: Iterator[Path], most: int) -> Iterator[tuple[Path, str, int | None, int | None]]:
    """Outcome of each script: ``equal``, ``different``, ``refused`` or why it says nothing; ours, and Megatron's."""
    seen: set[str] = set()
    counted = 0
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        if text in seen or counted >= most:
            continue
        seen.add(text)
        degrees = degrees_of(text)
        if degrees is None or without_nodes(text) == text:
            yield file, "not settled", None, None
            continue
        least = degrees.least()
        with tempfile.TemporaryDirectory(prefix="least-") as folder:
            copy = Path(folder) / file.name
            copy.write_text(without_nodes(text), encoding="utf-8")
            try:
                config = read_config(copy)
            except TaylorError as error:
                yield file, f"refused: {str(error).replace(folder, '')[:160]}", None, least
                continue
        if config.open_ranks is None:
            yield file, "stated all the same", config.strategy.world_size, least
            continue
        counted += 1
        ours = config.strategy.world_size
        yield file, "equal" if ours == least else "different", ours, least


def main() -> int:
    """Command line; exit code 1 when a world size differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--most", type=int, default=200, help="scripts that are compared (default: %(default)s)")
    arguments = parser.parse_args()
    start_logging()
    files = (file for folder in arguments.folders for file in sorted(folder.rglob("*.sh")))
    outcomes: Counter[str] = Counter()
    for file, outcome, ours, least in compared(files, arguments.most):
        outcomes[outcome.partition(":")[0]] += 1
        if outcome not in ("equal", "not settled"):
            print(f"{file}: {outcome} (Taylor {ours}, Megatron-LM {least})")
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return int(outcomes["different"] > 0)


if __name__ == "__main__":
    sys.exit(main())
