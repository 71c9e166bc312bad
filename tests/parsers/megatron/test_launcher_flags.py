"""The judge of written scripts refuses what the launcher's own parser does."""

from __future__ import annotations

import argparse
import subprocess

from benchmarks.launcher_flags import MANUAL, OwnParser, Release, definitions, judged, own_parser, with_manual

SOURCE = """
def add(parser):
    group = parser.add_argument_group(title='x')
    group.add_argument('--num-layers', type=int, default=None, help='n')
    group.add_argument('--profile-level', type=str, choices=['level0', 'level1'])
    group.add_argument('--bf16', action='store_true')
"""
FEATURE = """
class OfSomeRelease(Feature):
    def register_args(self, parser):
        self.add_parser_argument_choices_value(parser, '--profile-level', 'level2')
"""
SCRIPT = "torchrun --nnodes 1 pretrain_gpt.py --num-layers {layers} --profile-level {level} --bf16 {more}\n"


def parser() -> OwnParser:
    found = OwnParser(allow_abbrev=False, add_help=False)
    for names, settings in definitions(SOURCE):
        found.add_argument(*names, **settings)
    return found


def test_flags_types_and_values_are_judged(tmp_path):
    good = SCRIPT.format(layers=2, level="level1", more="")
    assert judged(parser(), good, tmp_path) == []
    assert judged(parser(), SCRIPT.format(layers=2, level="level1", more="--num-layer 3"), tmp_path) == ["--num-layer"]
    assert "invalid int value" in judged(parser(), SCRIPT.format(layers="two", level="level1", more=""), tmp_path)[0]
    assert "invalid choice" in judged(parser(), SCRIPT.format(layers=2, level="level9", more=""), tmp_path)[0]
    assert "--auto-tuning" in judged(parser(), with_manual(good), tmp_path)
    assert MANUAL.startswith("--auto-tuning") and isinstance(parser(), argparse.ArgumentParser)


def test_a_value_that_another_module_adds_is_taken_and_programs_of_ones_own_start_the_training(tmp_path):
    clone = tmp_path / "clone"
    (clone / "features").mkdir(parents=True)
    (clone / "features" / "a.py").write_text(FEATURE)
    (clone / "arguments.py").write_text(SOURCE)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", str(clone), *words], check=True, capture_output=True)
    release = Release({"megatron": ("HEAD", ("features", "arguments.py"))}, (), "", modules=False)
    found, count = own_parser({"megatron": clone}, release)
    own = "python3 mine/start.py --nnodes 1 pretrain_gpt.py --num-layers 2 --profile-level {level} --bf16\n"
    assert count == 3 and judged(found, own.format(level="level2"), tmp_path) == []
    assert "invalid choice" in judged(found, own.format(level="level9"), tmp_path)[0]
