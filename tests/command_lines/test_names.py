"""Whatever a file is called and whatever the terminal speaks, a command does its work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.conftest import ROOT

NAMES = {
    "chinese": "模型 a.yaml".encode(), "gbk": "模型".encode("gbk") + b".yaml", "line end": b"a\nROWS.yaml",
    "quotes": b"a'b\"$(touch z)<b>.yaml",
}  # fmt: skip


def run(folder, *words, encoding):
    program, *rest = words
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, str(ROOT / program), *rest]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Warning" not in done.stderr and not (folder / "z").exists()
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, encoding",
    [
        ("chinese", "ascii"),
        ("gbk", "utf-8"),
        ("line end", "utf-8"),
        ("quotes", "gbk"),
    ],
)
def test_a_file_of_any_name_is_solved_and_drawn_and_ranked(tmp_path, name, encoding):
    file = NAMES[name]
    (tmp_path / "files").mkdir()
    shutil.copy(ROOT / "config" / "pretrain_llama2_7b.yaml", os.fsencode(tmp_path / "files") + b"/" + file)
    solve = ("-dryrun", "n", "-check", "n", "-o", "solved.yaml", "--html", "page.html", "--png", "picture.png",
             "--result_json", "result.json", "--trace", "trace.json")  # fmt: skip
    run(tmp_path, "pipeline_parallel.py", "-yaml", b"files/" + file, *solve, encoding=encoding)
    shown = run(tmp_path, "pipeline_parallel.py", "-extract", "y", "-solution", "result.json", encoding=encoding)
    assert b"layers dense" in shown
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "$(touch z)<b>" not in page
    if encoding == "ascii" or name == "gbk":
        run(tmp_path, "pipeline_tool.py", "--yaml_path", "files", encoding=encoding)
        [table] = (tmp_path / "pipeline_output").glob("test_result_*.csv")
        assert "optimal" in table.read_text(encoding="utf-8")
