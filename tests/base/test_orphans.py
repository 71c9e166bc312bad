"""A worker ends with its parent, whatever it is at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

BUILDING_SHARES = """
import multiprocessing, os, time
from taylor.pipeline_solver.tree import worker_pool

class Endless:
    def __init__(self, *_):
        while True:
            sum(range(10**6))

worker_pool._Share = Endless
context = multiprocessing.get_context("fork")
pipes = [context.Pipe() for _ in range(2)]
for _, there in pipes:
    worker = context.Process(target=worker_pool._work, args=(there, None, None, [1], None, None, os.getpid()))
    worker.start()
    print(worker.pid, end=" ")
print(flush=True)
time.sleep(60)
"""

WAITING = """
import os, time
from taylor.workflows.running import process_pool

def tell():
    print(os.getpid(), flush=True)
    time.sleep(60)

process_pool.run_in_processes({1: lambda: tell}, 1, print)
"""


def lives(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("script", [BUILDING_SHARES, WAITING], ids=["solver shares being built", "ranking"])
def test_workers_are_gone_a_second_after_their_parent_was_killed(script):
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    try:
        assert workers and all(map(lives, workers))
        parent.kill()
        parent.wait()
        until = time.monotonic() + 1.0
        while any(map(lives, workers)) and time.monotonic() < until:
            time.sleep(0.02)
        assert not any(map(lives, workers))
    finally:
        parent.kill()
        parent.stdout.close()
        for worker in filter(lives, workers):
            os.kill(worker, signal.SIGKILL)
