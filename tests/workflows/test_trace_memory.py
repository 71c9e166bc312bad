"""Traces of trainings whose flags ask for shapes alone record memory too, under PyTorch's own profiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from taylor.workflows.tuning.trace_memory import with_memory

TRAINING = """\
import sys, torch
import os
assert os.environ["SITE_OF_THE_USER"] == "ran"
with torch.profiler.profile(record_shapes=True) as taken:
    torch.randn(8, 8) @ torch.randn(8, 8)
taken.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.slow
def test_a_training_that_asks_for_shapes_alone_leaves_memory_and_keeps_its_own_start(tmp_path):
    pytest.importorskip("torch")
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os\nos.environ['SITE_OF_THE_USER'] = 'ran'\n")
    (tmp_path / "train.py").write_text(TRAINING)
    plain = {**os.environ, "PYTHONPATH": str(own)}
    found = {}
    for name, environment in (("plain", plain), ("hooked", with_memory(plain, tmp_path / "tune"))):
        file = tmp_path / f"{name}.json"
        command = [sys.executable, "train.py", str(file)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        found[name] = [one for one in json.loads(file.read_text())["traceEvents"] if one.get("name") == "[memory]"]
    assert not found["plain"] and len(found["hooked"]) >= 3


def test_programs_without_torch_start_as_they_did(tmp_path):
    environment = with_memory({"PATH": os.environ["PATH"]}, tmp_path)
    done = subprocess.run([sys.executable, "-c", "print(1 + 1)"], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("2\n", "")
