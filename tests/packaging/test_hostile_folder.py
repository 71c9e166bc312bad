"""Nothing in the folder in which a command is run is imported, by the command or by a process that it starts."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from taylor.base.isolated import isolate_path, module_command
from taylor.dryrun.launch import Starter
from taylor.parsers.mindformers.launcher import MindFormers
from tests.conftest import ROOT
from tests.packaging import hostile

COMMANDS = {
    "evaluate": ("pipeline_parallel", "-yaml", "{config}/pretrain_llama2_7b.yaml", "-evaluate", "y"),
    "solve": (
        "pipeline_parallel", "-yaml", "{config}/pretrain_llama2_7b.yaml", "-layer_ratio", "0.4", "-b_ratio", "1.84",
        "-head_loss", "1.5", "-ra_ratio", "1", "-o", "solved.yaml", "--result_json", "result.json", "-check", "n",
        "-dryrun", "n", "--html", "report.html", "--png", "plan.png",
    ),
    "model": ("pipeline_parallel", "--model", "llama2-7b", "--device", "h100-80g", "--world_size", "8", "-t", "5",
              "--fix", "tp=2,pp=2"),
    "search": ("parallel_tool", "--yaml_path", "{config}/pretrain_llama2_7b.yaml"),
    "rank": ("pipeline_tool", "--yaml_path", "files", "--time_limit", "5", "--topn", "1"),
    "size": ("taylor", "size", "--model", "llama3-8b", "--device", "h100-80g", "--max_devices", "8", "--picture",
             "size.png"),
    "timeline": ("timeline_tool", "--log_dir", "{root}/log", "--trace", "timeline.json"),
    "layerwise": ("taylor", "layerwise", "--costs", "estimate", "--model", "llama2-7b", "--device", "h100-80g",
                  "--world_size", "8", "--seq", "4096", "--gbs", "16", "--micro_batches", "4"),
    "full": ("taylor", "search", "--model", "llama3-8b", "--device", "h100-80g", "--world_size", "8", "--seq", "4096",
             "--gbs", "16", "--fix", "pp=2", "--profile_num", "1", "--full", "--layerwise"),
    "cluster": ("taylor", "rank", "--yaml_path", "files", "--time_limit", "5", "--topn", "1", "--cluster", "local:1"),
    "lengths": ("taylor", "lengths", "{config}/finetune_llama3_70b_lora.sh", "--lengths",
                "{config}/sample_lengths.csv"),
    "rl": ("taylor", "rl", "{config}/rl_qwen3_8b_verl.sh", "--generation", "tokens_per_s=6000,alone=80",
           "--mean_prompt", "200", "--mean_answer", "1500"),
    "calibrate": ("taylor", "calibrate", "{config}/measured_runs.csv", "--device", "h100-80g", "-o", "mine.yaml"),
    "tune": ("taylor", "tune", "--shell_path", "{config}/pretrain_llama3_70b.sh", "--dry"),
    "doctor": ("taylor", "doctor"),
}  # fmt: skip
"""The commands of the README, and others that start processes or load what is optional, on small files."""


@pytest.fixture
def folder(tmp_path: Path):
    """A hostile folder, in which no file may have been executed at the end."""
    place = tmp_path / "user"
    mark = hostile.fill(place, ROOT)
    yield place
    assert not mark.exists(), mark.read_text()


def run(folder: Path, *command: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    environment |= hostile.surroundings(pictures=any(word.endswith(".png") for word in words))
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("form, name", [*(("script", name) for name in COMMANDS), ("taylor", "evaluate")])
def test_a_command_of_the_readme_imports_nothing_from_its_folder(folder, form, name):
    script, *words = (word.format(config=ROOT / "config", root=ROOT) for word in COMMANDS[name])
    if "files" in words:
        (folder / "files").mkdir()
        shutil.copy(ROOT / "config" / "pretrain_llama2_7b.yaml", folder / "files")
    installed = Path(sys.executable).with_name(script.replace("_", "-"))
    as_installed = form == "taylor" or script == "taylor"  # which is no script of the checkout
    if as_installed and not installed.exists():
        pytest.skip("taylor is not installed in this environment")
    run(folder, *((installed,) if as_installed else (sys.executable, ROOT / f"{script}.py")), *words)


@pytest.mark.parametrize("solver", ["CBC", "glpk", "gurobi", "nonsense"])
def test_no_program_of_the_folder_is_taken_for_a_solver(folder, solver):
    """Pyomo itself looks for a solver's program in the working folder first."""
    find = "from pyomo.common.fileutils import Executable; print(Executable('glpsol').available())"
    assert program(folder, find).split() == ["True"]
    (folder / hostile.EXECUTED).unlink(missing_ok=True)
    words = ("-yaml", ROOT / "config" / "pretrain_llama2_7b.yaml", "-write", "n", "-solver_name", solver, "-t", "0.01")
    command = [sys.executable, ROOT / "pipeline_parallel.py", *words]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 2, 4), done.stderr


@pytest.mark.slow
def test_neither_pyomo_s_finder_nor_the_path_lets_the_doctor_run_a_program_of_the_folder(folder):
    found = json.loads(run(folder, *module_command("taylor", "doctor", "--json")).stdout)
    assert {each["name"] for each in found["solvers"]} >= {"HiGHS", "CBC", "scip"}
    assert not any(each["detail"].startswith(".") for each in found["solvers"])


@pytest.mark.parametrize(
    ("path", "kept"), [(":.:a/b:/bin::/usr/bin:", "/bin:/usr/bin"), ("", os.defpath), (".:..", os.defpath)]
)
def test_entries_of_the_path_that_mean_the_working_folder_are_left_out(monkeypatch, path, kept):
    monkeypatch.setenv("PATH", path)
    isolate_path()
    assert os.environ["PATH"] == kept


def test_the_settings_of_the_folder_set_nothing(folder):
    read = "from numba.core import config; print([config.CACHE_DIR, config.DISABLE_JIT])"
    assert program(folder, f"from taylor.base import compiled; {read}").strip() == "['', 0]"
    assert program(folder, "from numba.core import config; print(config.CACHE_DIR)").strip() == f"{folder}/cache"


def test_a_script_of_the_checkout_imports_nothing_but_taylor_from_the_checkout(tmp_path):
    """A user's file beside the scripts, which Python would look for first."""
    checkout = tmp_path / "clone"
    checkout.mkdir()
    for file in ROOT.iterdir():
        if file.name in {"pyproject.toml", "config", "taylor"} or (file / "__init__.py").is_file():
            (checkout / file.name).symlink_to(file)
    for file in ROOT.glob("*_*.py"):
        shutil.copy(file, checkout)
    mark = hostile.fill(tmp_path / "files", ROOT)
    for file in (tmp_path / "files").glob("*.py"):
        if not (checkout / file.stem).exists() and not (checkout / file.name).exists():
            shutil.copy(file, checkout)
    run(checkout, sys.executable, "pipeline_parallel.py", "-yaml", "config/pretrain_llama2_7b.yaml", "-evaluate", "y")
    assert not mark.exists(), mark.read_text()


def test_python_m_taylor_imports_nothing_else_from_its_folder(folder):
    """Python itself looks there for `taylor`, and before 3.11 for what finds it."""
    for name in ("taylor", *(() if sys.version_info >= (3, 11) else ("runpy", "pkgutil", "importlib", "typing"))):
        (folder / f"{name}.py").unlink()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "taylor", "devices"], cwd=folder, env=environment, check=True, timeout=100)


def test_a_module_runs_in_a_process_that_imports_nothing_from_its_folder(folder):
    done = run(folder, *module_command("taylor.command_lines.devices"))
    assert done.returncode == 0


PAGE = """
import asyncio, sys
from pathlib import Path
from taylor.serve.jobs import Jobs
from taylor.serve.question import Question

async def work():
    jobs = Jobs(Path("jobs"), 1)
    name = jobs.start("solve", Question(model="llama2-7b", device="h100-80g", ranks=8, tp=2, pp=4, seconds=5))
    while jobs.state(name)["state"] != "done":
        await asyncio.sleep(0.1)
    print(jobs.state(name)["answer"].get("status"), jobs.state(name)["answer"].get("error"))
    await jobs.close()

asyncio.run(work())
"""


def program(folder: Path, text: str) -> str:
    """Run a program of ours, that lies elsewhere, in the folder; its output."""
    file = folder.parent / "program.py"
    file.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, file], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_job_of_the_page_imports_nothing_from_the_folder_of_the_server(folder):
    pytest.importorskip("starlette")
    assert program(folder, PAGE).split() == ["optimal", "None"]


CLUSTER = """
from taylor.workflows.running.cluster import open_cluster
if __name__ == "__main__":
    with open_cluster("local:1") as executor:
        print(executor.submit(len, "four").result())
"""


@pytest.mark.slow
def test_a_worker_of_a_local_cluster_imports_nothing_from_the_folder(folder):
    pytest.importorskip("distributed")
    assert program(folder, CLUSTER).split() == ["4"]


POOLS = """
import multiprocessing, sys
from taylor.base.isolated import isolate_processes
if __name__ == "__main__":
    isolate_processes()
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(len, ["four"]))
"""


def test_a_process_that_multiprocessing_starts_anew_imports_nothing_from_the_folder(folder):
    assert program(folder, POOLS).split() == ["[4]", "[4]"]


@pytest.mark.slow
def test_a_dry_run_by_torch_imports_nothing_from_the_folder(folder):
    pytest.importorskip("torch")
    words = ("-shell", ROOT / "config" / "pretrain_llama3_70b.sh", "--device", "h100-80g", "--dryrun_backend", "torch")
    done = run(folder, sys.executable, ROOT / "pipeline_parallel.py", *words, "-evaluate", "y", "-check", "n")
    assert "verdict" in done.stderr + done.stdout


def test_the_search_for_mindspore_imports_nothing_from_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Starter(MindFormers()).mindspore_version()


def test_the_users_own_program_still_finds_its_own_modules(folder, tmp_path):
    """A `run_mindformer.py` imports from its folder as Python has it."""
    own = tmp_path / "mindformers"
    own.mkdir()
    (own / "helper.py").write_text("NAME = 'found'\n")
    (own / "run_mindformer.py").write_text("import helper\nprint(helper.NAME)\n")
    tools = Starter.find(MindFormers(), own, None, None).tools
    command = MindFormers().dryrun_command(Path("a.yaml"), Path("a.yaml"), tools)
    assert run(folder, *command).stdout.split() == ["found"]


def test_every_python_that_is_started_is_isolated():
    """`sys.executable` stands where arguments keep the working folder out, the user's program runs, or it is shown."""
    allowed = {
        "base/isolated.py",
        "dryrun/processes.py",
        "dryrun/launch.py",
        "workflows/running/cluster.py",
        "workflows/showing/doctor.py",
        "workflows/tuning/tune.py",  # prints it
    }
    found = set()
    for name in hostile.own_names(ROOT) - {"tests", "benchmarks"}:
        for file in (ROOT / name).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and node.attr == "executable":
                    found.add(file.relative_to(ROOT).as_posix())
    assert found <= allowed, json.dumps(sorted(found - allowed))


def test_a_clone_named_taylor_is_no_empty_package_in_its_parent(tmp_path):
    (tmp_path / "taylor").symlink_to(ROOT)
    found = run(tmp_path, sys.executable, "-c", "import taylor; print(taylor.solve.__name__, taylor.base.__file__)")
    assert found.stdout.split()[0] == "solve"
