"""Writes parsers/megatron/mindspeed.yaml: the flags by which a launch is known as MindSpeed's.

    python -m benchmarks.mindspeed_flags \\
        --of Ascend/MindSpeed=CLONE Ascend/MindSpeed-LLM=CLONE Ascend/MindSpeed-MM=CLONE \\
        --without alibaba/Pai-Megatron-Patch=CLONE deepspeedai/Megatron-DeepSpeed=CLONE ...

A CLONE is a git repository, bare or not, read at its HEAD. A flag is in the file where MindSpeed's argument parser adds
it (`PARSERS`, or a release that parsers/megatron/flags.yaml names) and neither Megatron-LM, nor a program that starts
ranks, nor another fork of Megatron-LM knows it: a script on GPUs may have those.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from taylor.base.files import write_atomic
from taylor.parsers.flag_table import load_flag_table

FILE = Path(__file__).resolve().parents[1] / "parsers" / "megatron" / "mindspeed.yaml"
PARSERS = (
    r"mindspeed/arguments\.py|mindspeed/features_manager/.*"
    r"|mindspeed_llm/training/arguments\.py|mindspeed_llm/mindspore/training/arguments\.py"
    r"|mindspeed_llm/features_manager/.*|mindspeed_mm/arguments\.py|mindspeed_mm/configs/config\.py"
)
"""Places where MindSpeed's repositories add flags to the parser of a training."""
STARTS_RANKS = frozenset(
    {"nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "local-worker-num", "worker-num"}
)
_HEAD = """# Flags that MindSpeed, MindSpeed-LLM or MindSpeed-MM add to Megatron-LM's and no fork of it for GPUs has:
# a launch with one of them is MindSpeed's. Written by `python -m benchmarks.mindspeed_flags`; do not edit.
"""


@dataclass(frozen=True)
class Clone:
    """A repository at a commit: ``owner/name``, and where its git folder lies."""

    name: str
    path: Path

    @classmethod
    def of(cls, text: str) -> Clone:
        """From ``owner/name=PATH``."""
        name, _, path = text.partition("=")
        return cls(name, Path(path))

    @property
    def commit(self) -> str:
        """The commit that is read, eight digits."""
        return self._git("rev-parse", "HEAD").decode().strip()[:8]

    def sources(self, pattern: str = ".*") -> Iterator[str]:
        """The text of every Python file whose path matches."""
        with tarfile.open(fileobj=io.BytesIO(self._git("archive", "HEAD", "*.py"))) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".py") and re.fullmatch(pattern, member.name):
                    content = archive.extractfile(member)
                    yield "" if content is None else content.read().decode("utf-8", "replace")

    def _git(self, *words: str) -> bytes:
        return subprocess.run(["git", "-C", str(self.path), *words], capture_output=True, check=True).stdout


def added_flags(source: str, *, fields: bool = False) -> set[str]:
    """The flags that a module's text adds to an argument parser, ``_`` read as ``-``.

    Parameters
    ----------
    fields : bool
        The annotated fields of classes count too: some parsers are made of those.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "add_argument":
            given = [word.value for word in node.args if isinstance(word, ast.Constant)]
            names |= {word[2:] for word in given if isinstance(word, str) and word.startswith("--")}
        elif fields and isinstance(node, ast.ClassDef):
            targets = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name.replace("_", "-") for name in names}


def telltales(of: Iterable[Clone], without: Iterable[Clone]) -> list[str]:
    """The flags of MindSpeed alone, sorted."""
    rows = load_flag_table("taylor.parsers.megatron", "flags.yaml").rows
    found = {name for name, row in rows.items() if "MindSpeed" in row.versions}
    for clone in of:
        found |= {flag for source in clone.sources(PARSERS) for flag in added_flags(source)}
    others = {name for name, row in rows.items() if "Megatron-LM" in row.versions} | STARTS_RANKS
    for clone in without:
        others |= {flag for source in clone.sources() for flag in added_flags(source, fields=True)}
    return sorted(found - others)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="flags of MindSpeed alone")
    parser.add_argument("--of", type=Clone.of, nargs="+", required=True, metavar="NAME=CLONE")
    parser.add_argument("--without", type=Clone.of, nargs="*", default=[], metavar="NAME=CLONE")
    options = parser.parse_args()
    lines = [_HEAD.rstrip(), "of:", *(f"  {clone.name}: {clone.commit}" for clone in options.of), "without:"]
    lines += [f"  {clone.name}: {clone.commit}" for clone in options.without]
    lines += ["flags:", *(f"  - {name}" for name in telltales(options.of, options.without))]
    write_atomic(FILE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
