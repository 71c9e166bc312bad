"""`taylor tune` on torchtitan's TOML as a user types it; torchrun starts the stand-in, behind whose flavour is another
network."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.standin_titan import TitanCluster, titan_cluster, toml_text
from benchmarks.standin_titan_run import run_of, stages_of
from benchmarks.titan_campaign import fits, true_ms
from taylor.base.errors import InputError
from taylor.command_lines import tune as command
from taylor.parsers.registry import launchers_for
from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NETWORK = 6
CARDS = ["--nnodes", "2", "--nproc-per-node", "8"]


def job(folder: Path) -> TitanCluster:
    """The user's file, and a torchrun in front of the user's own."""
    cluster = titan_cluster(NETWORK)
    (folder / "job.toml").write_text(toml_text(cluster))
    program = folder / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{ROOT}" exec {sys.executable} -m '
                       f'benchmarks.standin_titan_run {NETWORK} "$@"\n')  # fmt: skip
    program.chmod(0o755)
    return cluster


@pytest.mark.slow
def test_plans_of_a_toml_are_those_of_the_cluster_that_ran_it(tmp_path, monkeypatch, capsys):
    cluster = job(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    before = Path("job.toml").read_text()
    words = [
        "job.toml",
        *CARDS,
        "--search",
        "tp,ep,pp,mbs,replicas",
        "--memory_gib",
        str(cluster.machine.limit / 2**30),
    ]
    with pytest.raises(InputError, match="--master_addr.*--dry"):
        command.run(words)
    words += ["--master_addr", "first", "--html", "tune.html"]
    assert command.run(words) is None
    printed = capsys.readouterr().out
    assert "no plan searched" not in printed and "sharded (FSDP)" in printed and "replicas" in printed
    best = json.loads(Path("tune/best.json").read_text())["best"]
    assert len(best) == 3 and any(one["verified"] for one in best)
    for place, one in enumerate(best, 1):
        file = tmp_path / "tune" / "best" / f"job_{place}.toml"
        config = launchers_for(file)[0].read(file)
        degrees = config.strategy
        names = ("dp", "tp", "pp", "vpp", "cp", "ep", "mbs")
        assert {name: getattr(degrees, name) for name in names} == one["strategy"] and not config.misfits
        assert degrees.dp * degrees.cp // degrees.op == one.get("replicas", 1)
        assert degrees.global_batch == cluster.batch
        # As torchtitan reads the file, apart from the product.
        data = tomllib.loads(file.read_text())
        run, _, _ = run_of(data, cluster.job.ranks)
        run = run.replace(layers=cluster.job.layers, experts=cluster.job.experts)
        stages = stages_of(data, run)
        assert one["step_ms"] == pytest.approx(true_ms(cluster, run, stages), rel=0.05)
        assert fits(cluster, run, stages)
        micro = cluster.batch // (run.dp * run.mbs)
        peaks = [cluster.played_peak(run, stage, min(micro, run.pp - at), micro) for at, stage in enumerate(stages)]
        assert one["peak_memory"] == pytest.approx(peaks, rel=0.03)
    command.run(words)
    started = Counter(Path("started.txt").read_text().split())
    assert set(started.values()) == {1} and "base" in started and "pp2" in started
    assert Path("job.toml").read_text() == before and "job.toml" in Path("tune.html").read_text()


def test_a_torchrun_that_fails_ends_the_command_with_a_code(tmp_path, monkeypatch, capsys):
    job(tmp_path)
    (tmp_path / "bin" / "torchrun").write_text("#!/bin/sh\necho ModuleNotFoundError: torchtitan\nexit 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert command.run(["job.toml", *CARDS, "--master_addr", "first", "--search", "mbs"]) == 5
    captured = capsys.readouterr()
    assert "failed (crashed with exit code 1)" in captured.out and "ModuleNotFoundError" in captured.err


def test_scripts_and_other_files_of_torchtitan_say_what_to_write_instead(tmp_path):
    file = tmp_path / "run.sh"
    file.write_text("torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b\n")
    with pytest.raises(InputError, match=r"TOML file of torchtitan v0\.2\.0"):
        command.run([str(file), *CARDS, "--dry"])
    file = tmp_path / "old.toml"
    file.write_text('# taylor: torchtitan_release 2024-12-26\n[model]\nname = "llama3"\nflavor = "8B"\n[training]\n'
                    "seq_len = 8192\n")  # fmt: skip
    with pytest.raises(InputError, match=r"2024-12-26.*v0\.2\.0 or later"):
        command.run([str(file), *CARDS, "--dry"])
    (tmp_path / "own.toml").write_text('[model]\nname = "llama3"\nflavor = "8b_mine"\n[training]\nseq_len = 8192\n')
    with pytest.raises(InputError, match="flavour"):
        command.run([str(tmp_path / "own.toml"), *CARDS, "--dry"])


def test_a_misspelt_entry_is_named_before_any_run_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n[parallelism]\n'
                                "tensor_parallel_degre = 2\n")  # fmt: skip
    command.run(["job.toml", *CARDS, "--world_size", "64", "--dry"])
    assert "Is parallelism.tensor_parallel_degree meant?" in capsys.readouterr().err
