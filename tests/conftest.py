"""What the tests share: the reference case of the contract and the command lines run as a user runs them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from taylor.base import documents
from taylor.base.console import log
from taylor.pipeline_solver.solving.kernel_wait import kernels_by
from taylor.pipeline_solver.solving.result import Result
from taylor.schemas import writing
from taylor.schemas.registry import MEMORY
from tests.schemas.documents import check

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"

REFERENCE_MEMORY = """\
{"device_limit": 55296,
 "static": {"first": 3383, "middle": 2382, "last": 8675},
 "layer": {"dense": 866, "moe": 10691},
 "activation": {"dense": {"none": 479, "select": 400, "full": 30},
                "moe":   {"none": 765, "select": 765, "full": 30}}}
"""
"""The memory profile printed in the user contract: DeepSeek-V3 at DP16 TP4 PP16 EP8, MiB."""

# The suite draws the same examples each time, so that a change is judged by what it changed;
# `HYPOTHESIS_PROFILE=drawn` draws new ones. No example is timed: a busy machine is no fault of the code.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("drawn", derandomize=False, print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# A shell starts background jobs with Ctrl-C ignored, which children inherit; tests that press it need it back.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the solver's kernels before the workers of a whole run begin, so that no test's time limit counts it."""
    if getattr(session.config.option, "numprocesses", None):
        kernels_by(math.inf)


@pytest.fixture(autouse=True, scope="session")
def every_document_is_valid():
    """Check each JSON document and each result that a test of this process prints or writes against its schema."""
    text_of, check_of, result_of = documents.document_text, writing.check_text, Result.to_json

    def checked_text(schema, data, **options):
        text = text_of(schema, data, **options)
        check(text)
        return text

    def checked_twice(schema, text):
        check_of(schema, text)
        if schema != MEMORY:
            check(text)

    def checked_result(result):
        text = result_of(result)
        if "schema" in result.job:
            check(text)
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "document_text", checked_text)
        patch.setattr(writing, "check_text", checked_twice)
        patch.setattr(Result, "to_json", checked_result)
        yield


@pytest.fixture(autouse=True)
def log_as_it_was():
    """Begin with the log of a new process, and undo what a command that a test calls in this one does to it.

    A module's fixture may have called one before: pytest records each line twice where a logger that passed nothing on
    when the test was set up does so later.
    """
    level = log.level
    log.handlers[:], log.propagate = [], True
    yield
    log.handlers[:], log.propagate = [], True
    log.setLevel(level)


@pytest.fixture
def run_tool(tmp_path):
    """Run a command line in an empty folder; returns the finished process with its text output."""

    def run(script, *words, timeout=120, **environment):
        return subprocess.run(
            [sys.executable, str(ROOT / script), *map(str, words)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )

    return run


@pytest.fixture
def reference_yaml(tmp_path):
    """The DeepSeek-V3 example with 64 micro-batches and the reference memory profile beside it."""
    text = (ROOT / "config" / "pretrain_deepseek3_671b_1024p.yaml").read_text(encoding="utf-8")
    import re

    text, found = re.subn(r"(micro_batch_num:\s*(?:&\w+\s+)?)\d+", r"\g<1>64", text, count=1)
    assert found == 1
    path = tmp_path / "deepseek3.yaml"
    path.write_text(text, encoding="utf-8")
    (tmp_path / "memory.json").write_text(REFERENCE_MEMORY)
    return path
