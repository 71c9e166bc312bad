"""What holds for every launcher, and a further one added by a folder and a line."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers import registry
from taylor.parsers.export import export_plan
from taylor.parsers.launcher import Launcher, Tools
from taylor.parsers.read import read_config
from taylor.parsers.registry import LAUNCHERS, config_suffixes, launcher_of
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import SCHEDULES, ScheduleSpec
from taylor.register.model import MTP
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT, SHARED
from tests.parsers.areal.files import SHARDED as AREAL
from tests.parsers.automodel.files import PIPELINE as AUTOMODEL_PIPELINE
from tests.parsers.automodel.files import RECIPE as AUTOMODEL
from tests.parsers.bridge.files import CONTAINER as BRIDGE
from tests.parsers.flagscale.files import ONE_FILE as FLAGSCALE
from tests.parsers.nanotron.files import LLAMA as NANOTRON
from tests.parsers.nemo_rl.files import MEGATRON as NEMO_RL
from tests.parsers.nemo_rl.files import SHARDED as NEMO_RL_SHARDED
from tests.parsers.primus.files import MERGED as PRIMUS
from tests.parsers.primus.files import TITAN_MERGED as PRIMUS_TITAN
from tests.parsers.roll.files import MEGATRON as ROLL
from tests.parsers.roll.files import SHARDED as ROLL_SHARDED
from tests.parsers.swift.files import SWIFT
from tests.parsers.torchtitan.test_files import BASE as TOML
from tests.parsers.verl.files import MEGATRON as VERL
from tests.parsers.verl.files import SHARDED as VERL_SHARDED
from tests.toy_launcher import Toy

FOLDERS = (ROOT / "config", *(SHARED / "data" / name for name in ("mindformers_yaml", "shells", "torchtitan_toml")))
SAMPLES = sorted(
    path for folder in FOLDERS for path in folder.glob("*") if path.suffix in config_suffixes() and path.is_file()
)
NEEDS_DEVICES = (
    "areal-fsdp",
    "automodel",
    "axolotl",
    "bridge",
    "bridge-script",
    "flagscale",
    "gpt-neox",
    "gpt-neox-script",
    "llamafactory",
    "mlperf",
    "nanotron",
    "nemo_rl",
    "nemo_rl-dtensor",
    "olmo",
    "olmo-config",
    "paddlenlp",
    "pai",
    "primus",
    "primus-bridge",
    "primus-torchtitan",
    "roll",
    "roll-fsdp2",
    "slime",
    "swift",
    "swift-trainer",
    "swift-trainer-yaml",
    "trl-yaml",
    "torchtitan-script",
    "trainer",
    "trl",
    "verl",
    "verl-fsdp",
)
"""Launchers that start nothing without devices."""
ONE_STAGE = ("verl-fsdp", "nemo_rl-dtensor", "roll-fsdp2", "areal-fsdp")
"""Launchers whose files know no pipeline."""
TOY_FILE = """\
# What the toy launcher starts.
toy_job:
  degrees: [2, 1, 4]
  micro_batches: 8
  layers: [4, 4, 4, 4]
  recompute: [0, 0, 0, 0]
"""
MEMORY = {
    "device_limit": 900,
    "static": {"first": 300, "middle": 100, "last": 250},
    "layer": {"dense": 40},
    "activation": {"dense": {"none": 60, "full": 5}},
}


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_every_sample_is_recognised_by_exactly_one_launcher_which_reads_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    [launcher] = [launcher for launcher in LAUNCHERS if launcher.recognises(path, text)]
    if "template" not in path.name:  # templates leave the model's size out
        assert launcher_of(read_config(path)) is launcher


def test_names_and_forms_of_export_belong_to_one_launcher_each() -> None:
    names = [launcher.name for launcher in LAUNCHERS]
    forms = [form for launcher in LAUNCHERS for form in launcher.export_forms]
    assert len(set(names)) == len(names) and len(set(forms)) == len(forms)


FURTHER = {
    "job.toml": TOML,
    "flagscale.yaml": FLAGSCALE,
    "primus.yaml": PRIMUS,
    "primus_titan.yaml": PRIMUS_TITAN,
    "swift.sh": SWIFT,
    "verl.sh": VERL,
    "verl_fsdp.sh": VERL_SHARDED,
    "nemo_rl.yaml": NEMO_RL,
    "nemo_rl_dtensor.yaml": NEMO_RL_SHARDED,
    "roll.yaml": ROLL,
    "roll_fsdp2.yaml": ROLL_SHARDED,
    "areal.yaml": AREAL,
    "bridge.yaml": BRIDGE,
    "nanotron.yaml": NANOTRON,
    "automodel.yaml": AUTOMODEL,
    "automodel_pipeline.yaml": AUTOMODEL_PIPELINE,
}


@pytest.fixture(params=[*(path.name for path in SAMPLES if path.parent == ROOT / "config"), *FURTHER])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of the repository, or one of a launcher without any there, in a folder of its own."""
    path = tmp_path / request.param
    text = FURTHER.get(request.param) or (ROOT / "config" / request.param).read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    return path


def changed_lines(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:] for line in lines if line[:2] in ("- ", "+ ")]


def test_a_written_plan_changes_nothing_but_the_keys_that_the_launcher_owns(sample: Path) -> None:
    config = read_config(sample)
    launcher = launcher_of(config)
    assert config.plan is not None
    body = config.plan.total_layers([kind for kind in config.plan.layers if kind != MTP])
    again = as_grid([[min(1, held) for held in row] for row in body])
    nearest, _ = launcher.nearest_plan(PipelinePlan(config.plan.layers, {FULL: again}))
    before = sample.read_text(encoding="utf-8")
    write_plan(config, nearest, micro_batches=2 * config.strategy.micro_batches)
    changed = changed_lines(before, sample.read_text(encoding="utf-8"))
    assert changed
    for line in changed:
        words = set(re.findall(r"[A-Za-z][\w-]*", line.split("#")[0]))
        assert words & launcher.plan_keys, f"{line!r} holds none of {sorted(launcher.plan_keys)}"
    reread = read_config(sample)
    assert reread.plan is not None and reread.plan.layers == nearest.layers
    assert reread.plan.recompute[FULL] == nearest.recompute[FULL]
    assert reread.strategy == config.strategy.replace(micro_batches=2 * config.strategy.micro_batches)


def test_every_uniform_choice_is_a_plan_that_the_file_can_say_and_gives_back(sample: Path) -> None:
    config = read_config(sample)
    launcher = launcher_of(config)
    assert config.plan is not None
    body = config.plan.total_layers([kind for kind in config.plan.layers if kind != MTP])
    layers = max(max(row) for row in body)
    choices = launcher.uniform_recompute(layers, (FULL, SELECT))
    assert launcher.uniform_recompute(layers, (FULL,)) == tuple(choice for choice in choices if choice[0] == FULL)
    for mode, most in choices:
        grid = as_grid([[min(most, held) for held in row] for row in body])
        none = as_grid([[0] * len(body[0])] * len(body))
        plan = PipelinePlan(config.plan.layers, {FULL: none, mode: grid})
        assert launcher.nearest_plan(plan) == (plan, ())
        write_plan(config, plan)
        reread = read_config(sample).plan
        assert reread is not None and {m: g for m, g in reread.recompute.items() if any(map(any, g))} == {
            m: g for m, g in plan.recompute.items() if any(map(any, g))
        }


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_can_be_written_is_read_again(sample: Path, tmp_path: Path, name: str) -> None:
    config = read_config(sample)
    schedule = ScheduleSpec(name)
    if not launcher_of(config).can_write(config, schedule):
        assert name != config.schedule.name
        return
    if config.launcher in ONE_STAGE:
        with pytest.raises(InputError, match="is stated by no option"):
            emit_variant(config, config.strategy.replace(pp=4), tmp_path / f"other{sample.suffix}", plan=None)
        return
    vpp = ScheduleSpec(name).traits.least_interleaves
    strategy = config.strategy.replace(pp=4, vpp=vpp, micro_batches=8)
    asked = config.replace(schedule=schedule)
    reread = read_config(emit_variant(asked, strategy, tmp_path / f"other{sample.suffix}", plan=None))
    assert (reread.schedule.name, reread.strategy.vpp, reread.strategy.pp) == (name, vpp, 4)


def test_only_mindspeed_scripts_can_say_a_v(tmp_path: Path) -> None:
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")
    can = []
    for name, more in (("plain.sh", ""), ("mindspeed.sh", "    --use-fused-swiglu\n")):
        path = tmp_path / name
        path.write_text(text.replace("    --swiglu\n", "    --swiglu\n" + more), encoding="utf-8")
        config = read_config(path)
        can.append(launcher_of(config).can_write(config, ScheduleSpec("dualpipev")))
    assert can == [False, True]


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_a_file_is_started_by_a_program_of_the_users_or_in_its_own_folder(launcher: Launcher, tmp_path: Path) -> None:
    file, original = tmp_path / f"made{launcher.suffixes[0]}", tmp_path / "home" / f"job{launcher.suffixes[0]}"
    program = tmp_path / launcher.program.file if launcher.program else None
    if launcher.name in NEEDS_DEVICES:
        with pytest.raises(InputError, match="take the estimate"):
            launcher.dryrun_command(file, original, Tools("/usr/bin/python3", program))
        return
    if not launcher.starts_training:
        with pytest.raises(InputError, match="starts no training"):
            launcher.dryrun_command(file, original, Tools("/usr/bin/python3", program))
        return
    command = launcher.dryrun_command(file, original, Tools("/usr/bin/python3", program))
    assert str(file) in command
    assert (str(program) in command) == (program is not None)
    assert launcher.working_folder(original) == (None if program else original.parent)


@pytest.fixture
def toy_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a launcher that is one folder and one line in the table more."""
    monkeypatch.setattr(registry, "LAUNCHERS", (*LAUNCHERS, Toy()))
    path = tmp_path / "job.yaml"
    path.write_text(TOY_FILE)
    return path


def test_a_further_launcher_is_read_solved_written_and_read_again(toy_job: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text(json.dumps(MEMORY))
    solved = solve_file(FileJob(toy_job, memory_file=memory, check=False), outputs=Outputs(folder=tmp_path / "out"))
    assert solved.config.launcher == "toy" and solved.solution.status == "optimal"
    plan = solved.solution.plan
    assert any(plan.recompute[FULL][0])
    config = read_config(toy_job)
    assert config.plan is not None
    assert (config.plan.layers, config.plan.recompute[FULL]) == (plan.layers, plan.recompute[FULL])
    assert toy_job.read_text().startswith("# What the toy launcher starts.\ntoy_job:\n  degrees: [2, 1, 4]\n")
    assert (tmp_path / "job.yaml.orig").read_text() == TOY_FILE


def test_a_further_launcher_emits_variants_and_exports_plans(toy_job: Path, tmp_path: Path) -> None:
    config = read_config(toy_job)
    other = emit_variant(config, config.strategy.replace(dp=4, pp=2), tmp_path / "other.yaml", plan=None)
    reread = read_config(other)
    assert (reread.launcher, reread.strategy.dp, reread.strategy.pp) == ("toy", 4, 2)
    assert reread.plan is not None and reread.plan.total_layers() == ((8, 8),)
    assert export_plan(reread.plan, "toy") == "[8, 8]"
    # The suffix is MindFormers' too: what stands in the file decides.
    assert read_config(ROOT / "config" / "pretrain_llama2_7b.yaml").launcher != "toy"
