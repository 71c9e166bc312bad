"""Scripts of MindSpeed-LLM as `taylor tune --dry` changes them, judged flag by flag by the launcher's own parser.

    python -m benchmarks.launcher_flags --megatron CLONE --mindspeed CLONE --llm CLONE [--work_dir FOLDER]

A CLONE is a git repository, read at the tags of `RELEASE`: MindSpeed-LLM 2.0.0 is the last release with scripts of all
three models that the manual of MindSpeed's tuner supports. Every ``add_argument`` of its three repositories is built
into one parser of argparse. Each script's small runs, and a plan of it, start under bash with a ``torchrun`` that
prints its words; the parser refuses what the training would refuse: unknown flags, wrong types, values, numbers of
words. The manual's own options are added to each script first.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from taylor.blackbox.small_runs import plan_small_runs
from taylor.parsers.launcher import Launcher
from taylor.parsers.small_run import Machines, PlannedJob, ProfiledSteps, RunSetting
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.workflows.tuning.tune import launcher_for

RELEASE = {
    "megatron": ("core_r0.8.0", ("megatron/training/arguments.py",)),
    "mindspeed": ("v2.0.0_core_r0.8.0", ("mindspeed/arguments.py",)),
    "llm": ("v2.0.0", ("mindspeed_llm/training/arguments.py",)),
}
SCRIPTS = (
    "examples/mcore/llama2/pretrain_llama2_7b_ptd.sh",
    "examples/mcore/mixtral/pretrain_mixtral_8x7b_ptd.sh",
    "examples/legacy/gpt3/pretrain_gpt3_15B_ptd.sh",
)
MANUAL = "--auto-tuning --auto-tuning-work-dir ./auto_tuning_dir --auto-tuning-ranks 64 --auto-tuning-log-level debug"
TYPES = {"int": int, "float": float, "str": str, "eval": str}
PLACEHOLDER = re.compile(r"(your|(vocab|merge) file for) [^\"'\n]+")
"""A path that the user fills in."""
TORCHRUN = '#!/bin/bash\nprintf "%s\\n" "$@" > "$PRINTED"\n'


class Refused(Exception):
    """The launcher's parser refuses a command line."""


class OwnParser(argparse.ArgumentParser):
    """A parser that raises instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """Refuse."""
        raise Refused(message)


@dataclass(frozen=True)
class Source:
    """A file of a repository at a tag."""

    clone: Path
    tag: str
    path: str

    def text(self) -> str:
        """Its text."""
        command = ["git", "-C", str(self.clone), "show", f"{self.tag}:{self.path}"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def definitions(source: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Names and plain settings of every argument that a module adds."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "add_argument":
            continue
        names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        settings: dict[str, Any] = {}
        for word in node.keywords:
            if word.arg == "type" and isinstance(word.value, ast.Name):
                settings["type"] = TYPES.get(word.value.id, str)
            elif word.arg in ("action", "nargs", "choices", "dest"):
                try:
                    settings[word.arg] = ast.literal_eval(word.value)
                except ValueError:
                    continue
        if names:
            yield names, settings


def own_parser(clones: dict[str, Path]) -> tuple[OwnParser, int]:
    """The launcher's parser, a later repository's definition in place of an earlier one's, and its number of flags."""
    parser, count = OwnParser(allow_abbrev=False, add_help=False, conflict_handler="resolve"), 0
    for name, (tag, paths) in RELEASE.items():
        for path in paths:
            for names, settings in definitions(Source(clones[name], tag, path).text()):
                parser.add_argument(*names, **settings)
                count += 1
    return parser, count


def words_of(text: str, folder: Path) -> list[str]:
    """Words of the program behind the script's name, as bash hands them to torchrun."""
    (folder / "logs").mkdir(exist_ok=True)
    fake, printed = folder / "bin" / "torchrun", folder / "printed"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(TORCHRUN)
    fake.chmod(0o755)
    environment = {"PATH": f"{fake.parent}:{os.environ['PATH']}", "PRINTED": str(printed), "HOME": str(folder)}
    subprocess.run(["bash", "-c", text, "start.sh"], cwd=folder, env=environment, check=True, capture_output=True)
    words = printed.read_text().split("\n")[:-1]
    program = next(at for at, word in enumerate(words) if word.endswith(".py"))
    return words[program + 1 :]


def with_manual(text: str) -> str:
    """A script as its user has it who follows the manual of MindSpeed's tuner."""
    lines = text.splitlines(keepends=True)
    at = max(number for number, line in enumerate(lines) if "pretrain_gpt.py" in line)
    lines[at] = lines[at].replace("pretrain_gpt.py", f"pretrain_gpt.py {MANUAL}")
    return "".join(lines)


def written(launcher: Launcher, script: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each small run, and of a plan with unequal stages."""
    sizes, machines = launcher.job_sizes(script), Machines(2, 8)
    for run in plan_small_runs(sizes, machines).runs:
        yield run.name, launcher.small_run(script, run.setting, machines, ProfiledSteps(script.parent / "profile"))
    own = sizes.own
    layers = [own.layers // 2 + 1, own.layers - own.layers // 2 - 1]
    plan = PipelinePlan({"layer": (tuple(layers),)}, {FULL: ((2, 2),)})
    setting = RunSetting(2, 2, min(2, own.experts), 1, own.seq, own.experts, own.layers, 2, 8)
    yield "plan", launcher.planned_job(script, setting, PlannedJob(plan))
    switches = tuple((one.name, not one.on) for one in launcher.switches(script) if one.may_be_on(setting))
    yield "switched", launcher.planned_job(script, setting, PlannedJob(plan, switches))


def judged(parser: OwnParser, text: str, folder: Path) -> list[str]:
    """What the parser refuses of a script."""
    try:
        words = words_of(text, folder)
        _, unknown = parser.parse_known_args(words)
    except Refused as error:
        return [str(error)]
    found = [word for word in unknown if word.startswith("--")] or unknown
    return found + [word for word in words if word.startswith(("--auto-tuning", "--auto-settings"))]


def main() -> int:
    """Write, judge, print; the exit code is 1 where anything is refused."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in RELEASE:
        options.add_argument(f"--{name}", type=Path, required=True, metavar="CLONE")
    options.add_argument("--work_dir", type=Path)
    args = options.parse_args()
    clones = {name: getattr(args, name) for name in RELEASE}
    parser, count = own_parser(clones)
    refused, files, flags = 0, 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work_dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for path in SCRIPTS:
            script = folder / Path(path).name
            own = PLACEHOLDER.sub("/data/mine", Source(clones["llm"], RELEASE["llm"][0], path).text())
            before = judged(parser, own, folder)
            if before:
                # A parser that refuses what its project publishes judges nothing.
                raise SystemExit(f"{script.name}: the published script itself is refused: {json.dumps(before)}")
            script.write_text(with_manual(own))
            for name, text in written(launcher_for(script), script):
                files, flags = files + 1, flags + sum(word.startswith("--") for word in words_of(text, folder))
                found = judged(parser, text, folder)
                refused += len(found)
                if found:
                    print(f"  {name}: {json.dumps(found)}")
    print(f"{files} files, {flags} flags, judged by {count} definitions: {refused} refused")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
