"""Plug-ins come from installed distributions alone; one that fails is named, and the others and the command go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from taylor.base import plugins
from taylor.base.console import run_command
from tests.conftest import ROOT

DEVICE = """\
memory_mib: 65536
usable_memory_mib: 60000
peak_tflops: {bf16: 300}
memory_gb_s: 2000
links: [{name: node, cards: 8, gb_s: 200}, {name: fabric, gb_s: 25}]
"""
MODEL = "n_layers: 4\nhidden: 512\nn_heads: 8\nn_kv_heads: 8\nhead_dim: 64\nffn_hidden: 2048\nvocab: 32000\n"
RULE = """\
from taylor.nd_search.rules import Rule
RULES = [Rule("{name}", "pp is even", lambda t, c: {keep})]
"""
SCHEDULE = """\
from taylor.pipeline.plugged import OwnSchedule
from taylor.pipeline.schedule import ScheduleTraits
def order(stages, interleaves, micro_batches):
    {body}
ORDER = OwnSchedule(order, {traits})
"""
GPIPE = "return [[(d, 0, i, 0) for d in (0, 1) for i in range(micro_batches)]] * stages"


def distribution(site: Path, name: str, entries: dict[str, str], files: dict[str, str]) -> None:
    """Lay a distribution into a folder as pip does: its modules, and `entry_points.txt` of the groups."""
    for place, text in files.items():
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        (site / place).write_text(text)
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = "".join(f"[taylor.{group}]\n{line}\n" for group, line in entries.items())
    (info / "entry_points.txt").write_text(groups)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment beside this one's packages, for distributions of plug-ins."""
    place = tmp_path_factory.mktemp("plugins") / "env"
    venv.create(place, with_pip=False, symlinks=True)
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site_of(place) / "dependencies.pth").write_text("\n".join([str(ROOT), *dependencies]))
    return place


def site_of(environment: Path) -> Path:
    [site] = (environment / "lib").glob("python*/site-packages")
    return site


@pytest.fixture
def site(environment: Path):
    """The folder of an environment's packages, emptied afterwards."""
    folder = site_of(environment)
    before = set(folder.iterdir())
    yield folder
    for path in set(folder.iterdir()) - before:
        subprocess.run(["rm", "-r", path], check=True)


def taylor(environment: Path, *words: str, code: int = 0, **how) -> subprocess.CompletedProcess[str]:
    command = [
        environment / "bin" / "python",
        "-c",
        "import taylor.command_lines.main as m; raise SystemExit(m.main())",
    ]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, **how)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done


def problems(environment: Path, **how) -> dict[str, str]:
    """Problem of every plug-in by the name of its entry point; empty where it works."""
    found = json.loads(taylor(environment, "doctor", "--json", **how).stdout)
    return {plugin["name"]: plugin["problem"] for plugin in found["plugins"]}


@pytest.mark.slow
def test_devices_models_and_rules_of_a_plug_in_are_found_by_name(environment: Path, site: Path, tmp_path: Path) -> None:
    files = {
        "own/__init__.py": "",
        "own/cards/__init__.py": "",
        "own/cards/own-card.yaml": DEVICE,
        "own/nets/__init__.py": "",
        "own/nets/own-net.yaml": MODEL,
        "own/rules.py": RULE.format(name="even-pp", keep="t.pp % 2 == 0"),
    }
    entries = {"devices": "cards = own.cards", "models": "nets = own.nets", "rules": "rules = own.rules:RULES"}
    distribution(site, "own-things", entries, files)
    assert problems(environment) == {"cards": "", "nets": "", "rules": ""}
    words = ("--model", "own-net", "--device", "own-card", "--world_size", "8", "--output_path", str(tmp_path / "o"))
    taylor(environment, "search", *words, cwd=tmp_path)
    pruned = (tmp_path / "pruned.csv", tmp_path / "o" / "pruned.csv")
    assert any("even-pp" in path.read_text() for path in pruned if path.exists())
    assert "pp is even" in taylor(environment, "rules", "even-pp").stdout


@pytest.mark.slow
def test_a_bad_plug_in_is_named_with_its_reason_and_the_others_work(environment: Path, site: Path) -> None:
    """Each kind of failure, beside a plug-in that works."""
    files = {
        "bad/__init__.py": "",
        "bad/raises.py": "raise RuntimeError('half\\nbaked')\n",
        "bad/leaves.py": "raise SystemExit(0)\n",
        "bad/cards/__init__.py": "",
        "bad/cards/wrong.yaml": DEVICE.replace("65536", "-1"),
        "bad/stolen/__init__.py": "",
        "bad/stolen/h100-80g.yaml": DEVICE,
        "bad/rules.py": RULE.format(name="tp-within-node", keep="t.pp > 0"),
        "bad/traits.py": SCHEDULE.format(body=GPIPE, traits="ScheduleTraits(put_off=1)"),
        "bad/good.py": SCHEDULE.format(body=GPIPE, traits="ScheduleTraits(keeps_all=True)"),
        "bad/launcher.py": "from taylor.parsers.launcher import Launcher\nclass Half(Launcher):\n    name = 'half'\n",
    }
    entries = {
        "launchers": "half = bad.launcher:Half\nabsent = bad.absent:Launcher",
        "devices": "cards = bad.cards\nstolen = bad.stolen\nleaves = bad.leaves",
        "models": "raises = bad.raises",
        "rules": "rules = bad.rules:RULES",
        "schedules": "traits = bad.traits:ORDER\n1f1b = bad.good:ORDER\nall-first = bad.good:ORDER",
    }
    distribution(site, "bad-things", entries, files)
    found = problems(environment)
    reasons = {
        "half": "abstract", "absent": "No module named 'bad.absent'", "raises": "RuntimeError: half baked",
        "leaves": "SystemExit", "cards": "memory_mib", "stolen": "no plug-in replaces it",
        "rules": "no plug-in replaces it", "traits": "put_off", "1f1b": "no plug-in replaces it",
    }  # fmt: skip
    assert {name: reason in found.pop(name) for name, reason in reasons.items()} == dict.fromkeys(reasons, True)
    assert found == {"all-first": ""}
    done = taylor(environment, "devices", "h100-80g")
    assert "plug-in bad-things 1.0 (taylor.devices: cards = bad.cards) is left out: " in done.stderr
    assert "pip uninstall bad-things" in done.stderr and "81,559" in done.stdout.replace(" ", "")


@pytest.mark.slow
def test_nothing_beside_the_installed_packages_is_a_plug_in(environment: Path, site: Path, tmp_path: Path) -> None:
    """A distribution's folders in the working folder and in PYTHONPATH."""
    mark = tmp_path / "mark"
    files = {"evil.py": f"open({str(mark)!r}, 'w').write('run')\nRULES = []\n"}
    distribution(tmp_path, "evil", {"rules": "evil = evil:RULES"}, files)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert problems(environment, cwd=tmp_path, env=variables) == {}
    assert not mark.exists()


@pytest.mark.slow
def test_a_schedule_that_deadlocks_or_raises_is_refused_with_its_name(environment: Path, site: Path) -> None:
    backwards = "return [[(d, 0, i, 0) for d in (1, 0) for i in range(micro_batches)]] * stages"
    bodies = {"stuck": backwards, "raises": "return 1 / 0", "short": "return []", "fine": GPIPE}
    files = {
        f"{name}_order.py": SCHEDULE.format(body=body, traits="ScheduleTraits(fixed_interleaves=1)")
        for name, body in bodies.items()
    }
    lines = "\n".join(f"{name} = {name}_order:ORDER" for name in bodies)
    distribution(site, "orders", {"schedules": lines}, files)
    reasons = {"stuck": "deadlocks", "raises": "ZeroDivisionError", "short": "must give 2 stages of 8 tasks"}
    words = ("solve", "--model", "llama2-7b", "--world_size", "8", "--fix", "pp=2,tp=1,vpp=1", "--gbs", "16")
    for name, reason in reasons.items():
        text = (
            "from taylor.pipeline.generators import build_schedule as build\n"
            "from taylor.pipeline.schedule import ScheduleSpec\n"
            f"try:\n    build(ScheduleSpec({name!r}), 2, 1, 4)\nexcept ValueError as error:\n    print(error)\n"
        )
        done = subprocess.run([environment / "bin" / "python", "-c", text], capture_output=True, text=True, check=True)
        assert reason in done.stdout
    assert "the plug-in orders 1.0 " in taylor(environment, *words, "-schedule", "short", code=2).stderr
    # Megatron-LM runs none but its own.
    assert "cannot be written" in taylor(environment, *words, "-schedule", "fine", code=2).stderr


def test_a_fault_in_a_plug_ins_code_names_the_plug_in_and_ends_with_5(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of Taylor's own keeps its traceback."""
    own: dict[str, object] = {"__name__": "faulty.part"}
    exec("def fails():\n    raise KeyError('column')\n", own)
    plugin = plugins.PlugIn(plugins.Group.RULES, "faulty", "faulty.part:RULES", "faulty-things", "1.0", list)
    with pytest.raises(KeyError):
        run_command(own["fails"])
    monkeypatch.setattr(plugins, "installed", lambda group: (plugin,) if group is plugin.group else ())
    assert run_command(own["fails"]) == 5
    assert "faulty-things 1.0" in caplog.text and "KeyError: 'column'" in caplog.text


def test_an_installation_without_plug_ins_imports_no_metadata() -> None:
    """Reading metadata takes longer than the start of a short command."""
    text = (
        "import sys; from taylor.base.plugins import Group, installed; sys.path[:] = []; "
        "print([installed(group) for group in Group], 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[(),", "(),", "(),", "(),", "()]", "False"]
