"""Scripts as `taylor tune --dry` and its plans write them, judged flag by flag by the launcher's own parser.

    python -m benchmarks.launcher_flags --megatron CLONE --mindspeed CLONE --llm CLONE [--work_dir FOLDER] [SCRIPT ...]

A CLONE is a git repository, read at the places of `RELEASES`: MindSpeed-LLM 2.0.0 is the last release with scripts of
all three models that the manual of MindSpeed's tuner supports, c77308a1 reads its flags by feature. Every argument that
a release's three repositories add is built into one parser of argparse. The commands are those of the manuals, with
their options in the script or on the command line; what they write starts under bash with a ``torchrun`` that prints
its words, as do a plan of each script and one with its switches inverted. The parser refuses what the training would
refuse: unknown flags, wrong types, values, numbers of words. Further SCRIPTs (such as shared/data/faults_2026/
pre_auto.sh) are judged by every release. A release's default of ``--context-parallel-algo`` is compared with the one
that Taylor assumes where the release has it.
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
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from taylor.command_lines import tune
from taylor.parsers.launcher import Launcher
from taylor.parsers.megatron.context import ALGORITHM, DEFAULT_ALGORITHM
from taylor.parsers.small_run import PlannedJob, RunSetting
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.workflows.tuning.tune import launcher_for


@dataclass(frozen=True)
class Release:
    """Places of a release's arguments and scripts.

    Parameters
    ----------
    sources : mapping of str to (str, tuple of str)
        By repository: what git calls the place, and files or folders of which every module is read.
    scripts : tuple of str
        Of MindSpeed-LLM.
    algorithm : str
        Default of ``--context-parallel-algo``, as its definition states it.
    modules : bool
        Whether its Megatron takes ``--recompute-modules``.
    """

    sources: dict[str, tuple[str, tuple[str, ...]]]
    scripts: tuple[str, ...]
    algorithm: str
    modules: bool


RELEASES = {
    "2.0.0": Release(
        {
            "megatron": ("core_r0.8.0", ("megatron/training/arguments.py",)),
            "mindspeed": ("v2.0.0_core_r0.8.0", ("mindspeed/arguments.py",)),
            "llm": ("v2.0.0", ("mindspeed_llm/training/arguments.py",)),
        },
        (
            "examples/mcore/llama2/pretrain_llama2_7b_ptd.sh",
            "examples/mcore/mixtral/pretrain_mixtral_8x7b_ptd.sh",
            "examples/legacy/gpt3/pretrain_gpt3_15B_ptd.sh",
        ),
        "ulysses_cp_algo",
        False,
    ),
    "c77308a1": Release(
        {
            "megatron": ("core_v0.12.1", ("megatron/training/arguments.py",)),
            "mindspeed": ("57a33053", ("mindspeed/features_manager",)),
            "llm": ("c77308a1", ("mindspeed_llm/features_manager",)),
        },
        (
            "examples/mcore/llama2/pretrain_llama2_13b_ptd.sh",
            "tests/poc/mixtral_8x7b/pretrain_mixtral_8x7b_4k_256die_A3_ptd.sh",
        ),
        "megatron_cp_algo",
        True,
    ),
}
MANUAL = "--auto-tuning --auto-tuning-work-dir ./auto_tuning_dir --auto-tuning-ranks 64 --auto-tuning-log-level debug"
"""MindSpeed v2.1.0_core_r0.8.0 docs/features/auto_tuning.md:55-63; `MACHINES` follow there."""
LATER_MANUAL = (
    "--auto-settings --auto-settings-type mixed --auto-settings-work-dir ./auto_settings_dir --auto-settings-ranks 64 "
    "--auto-settings-log-level debug --target-nnodes 8"
)
"""028de58c docs/zh/features/auto_settings.md:70-79."""
MACHINES = "--nnodes 2 --nproc-per-node 8 --master-addr 10.0.0.1 --master-port 6005 --node-rank 0"
TYPES = {"int": int, "float": float, "str": str, "eval": str}
PLACEHOLDER = re.compile(r"(your|(vocab|merge) file for) [^\"'\n]+")
"""A path that the user fills in."""
PRINTING = '#!/bin/bash\nprintf "%s\\n" "$@" > "$PRINTED"\n'
STARTERS = ("torchrun", "python", "python3")


class Refused(Exception):
    """The launcher's parser refuses a command line."""


class OwnParser(argparse.ArgumentParser):
    """A parser that raises instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        """Refuse."""
        raise Refused(message)


@dataclass(frozen=True)
class Source:
    """A file of a repository at a place."""

    clone: Path
    tag: str
    path: str

    def text(self) -> str:
        """Its text."""
        return self._git("show", f"{self.tag}:{self.path}")

    def modules(self) -> list[Source]:
        """The file itself, or each Python file of a folder."""
        if self.path.endswith(".py"):
            return [self]
        listed = self._git("ls-tree", "-r", "--name-only", self.tag, self.path).split()
        return [Source(self.clone, self.tag, path) for path in listed if path.endswith(".py")]

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.clone), *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout


def definitions(source: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Names and plain settings of every argument that a module adds; of one to which it adds a value, ``more``."""
    for node in ast.walk(ast.parse(source)):
        called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or called not in ("add_argument", "add_parser_argument_choices_value"):
            continue
        names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if called != "add_argument":
            if len(names) == 2:
                yield names[:1], {"more": names[1:]}
            continue
        settings: dict[str, Any] = {}
        for word in node.keywords:
            if word.arg == "type" and isinstance(word.value, ast.Name):
                settings["type"] = TYPES.get(word.value.id, str)
            elif word.arg in ("action", "nargs", "choices", "dest", "default"):
                try:
                    settings[word.arg] = ast.literal_eval(word.value)
                except ValueError:
                    continue
        if names:
            yield names, settings


def own_parser(clones: dict[str, Path], release: Release) -> tuple[OwnParser, int]:
    """A release's parser, a later repository's definition in place of an earlier one's, and its number of flags."""
    parser, count = OwnParser(allow_abbrev=False, add_help=False, conflict_handler="resolve"), 0
    more: dict[str, list[str]] = {}
    for name, (tag, paths) in release.sources.items():
        for path in paths:
            for module in Source(clones[name], tag, path).modules():
                for names, settings in definitions(module.text()):
                    if "more" in settings:
                        more.setdefault(names[0], []).extend(settings["more"])
                        continue
                    parser.add_argument(*names, **settings)
                    count += 1
    for action in parser._actions:
        for name in set(action.option_strings) & more.keys():
            action.choices = None if action.choices is None else [*action.choices, *more[name]]
    return parser, count


def words_of(text: str, folder: Path) -> list[str]:
    """Words of the program behind the script's name, as bash hands them to the program that starts it."""
    (folder / "logs").mkdir(exist_ok=True)
    programs, printed = folder / "bin", folder / "printed"
    programs.mkdir(exist_ok=True)
    for name in STARTERS:
        (programs / name).write_text(PRINTING)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "PRINTED": str(printed), "HOME": str(folder)}
    subprocess.run(["bash", "-c", text, "start.sh"], cwd=folder, env=environment, check=True, capture_output=True)
    words = printed.read_text().split("\n")[:-1]
    # A program of the user's own may start the training's.
    program = max(at for at, word in enumerate(words) if word.endswith(".py"))
    return words[program + 1 :]


def with_manual(text: str, manual: str = MANUAL) -> str:
    """A script as its user has it who follows the manual of MindSpeed's tuner."""
    lines = text.splitlines(keepends=True)
    at = max(number for number, line in enumerate(lines) if "pretrain_gpt.py" in line)
    lines[at] = lines[at].replace("pretrain_gpt.py", f"pretrain_gpt.py {manual}")
    return "".join(lines)


def written(launcher: Launcher, script: Path, commands: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Name and text of each small run that each command writes, and of plans with unequal stages."""
    for number, command in enumerate(commands):
        folder = script.parent / f"{script.stem}_{number}"
        words = ["--shell_path", str(script), "--dry", *command.split(), "--work_dir", str(folder)]
        with redirect_stdout(StringIO()):
            tune.run(words)
        for run in sorted(folder.glob(f"*/{script.name}")):
            yield f"{command.split()[0] if command else 'tune'} {run.parent.name}", run.read_text()
    own = launcher.job_sizes(script).own
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


def judged_script(parser: OwnParser, script: Path, release: Release) -> tuple[int, int, int]:
    """Numbers of files written from a script, of their flags, and of what is refused, which is printed."""
    folder, own = script.parent, script.read_text()
    commands = ["", f"{MANUAL} {MACHINES}", f"{LATER_MANUAL} {MACHINES}"]
    if release.modules:
        commands.append("--search tp,cp,ep,pp,vpp,mbs,modules")
    files = flags = refused = 0
    for manual in (MANUAL, LATER_MANUAL):
        script.write_text(own if "--auto-" in own else with_manual(own, manual))
        for name, text in written(launcher_for(script), script, commands):
            files, flags = files + 1, flags + sum(word.startswith("--") for word in words_of(text, folder))
            found = judged(parser, text, folder)
            refused += len(found)
            if found:
                print(f"  {script.name}, {name}: {json.dumps(found)}")
    return files, flags, refused


def main() -> int:
    """Write, judge, print; the exit code is 1 where anything is refused."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in RELEASES["2.0.0"].sources:
        options.add_argument(f"--{name}", type=Path, required=True, metavar="CLONE")
    options.add_argument("--work_dir", type=Path)
    options.add_argument("scripts", type=Path, nargs="*", metavar="SCRIPT")
    args = options.parse_args()
    clones = {name: getattr(args, name) for name in RELEASES["2.0.0"].sources}
    wrong = 0
    for name, release in RELEASES.items():
        parser, count = own_parser(clones, release)
        stated = parser.get_default(ALGORITHM.replace("-", "_"))
        if stated != release.algorithm:
            print(f"  {name}: --{ALGORITHM} is {stated} by default, not {release.algorithm}")
            wrong += 1
        assumed = "as Taylor assumes" if stated == DEFAULT_ALGORITHM else "which small runs and plans therefore name"
        print(f"{name}: {count} definitions; --{ALGORITHM} is {stated} by default, {assumed}")
        with tempfile.TemporaryDirectory() as temporary:
            folder = (args.work_dir or Path(temporary)) / name
            folder.mkdir(parents=True, exist_ok=True)
            total = [0, 0, 0]
            published = [(Path(path).name, Source(clones["llm"], release.sources["llm"][0], path).text())
                         for path in release.scripts]  # fmt: skip
            for file, text in [*published, *((one.name, one.read_text()) for one in args.scripts)]:
                script, own = folder / file, PLACEHOLDER.sub("/data/mine", text)
                before = [] if "--auto-" in own else judged(parser, own, folder)
                if before:
                    # A parser that refuses what its project publishes judges nothing.
                    raise SystemExit(f"{file}: the published script itself is refused: {json.dumps(before)}")
                script.write_text(own)
                total = [a + b for a, b in zip(total, judged_script(parser, script, release), strict=True)]
        print(f"{name}: {total[0]} files, {total[1]} flags: {total[2]} refused")
        wrong += total[2]
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
