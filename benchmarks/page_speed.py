"""Speed of the page of `taylor serve` in a headless Chromium, and its questions at their limits.

    python -m benchmarks.page_speed [--inputs 40] [--solves 3]

Prints three figures: milliseconds from an input to the answer shown (median, 90th percentile), after a rest and while a
slider moves on; seconds from «Solve» to the first plan shown, its process being started in that time; and for questions
with as many ranks, stages, micro-batches and tokens as fields and limits allow, the longest time and the server's most
memory.
Run it on a quiet machine: the load is printed with the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taylor.base.console import run_command, start_logging
from taylor.base.errors import InputError
from taylor.serve.question import Question

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

PORT = "18765"

MOVED_MS = 120
"""Time between two inputs of a slider that moves on."""

BIG = {"model": "llama3-405b", "device": "h100-80g", "seq": 8192}
LIMITS: list[dict[str, Any]] = [
    # Forward passes up to the limit of a schedule, on many stages, few, and with virtual stages.
    BIG | {"ranks": 336, "tp": 8, "pp": 42, "gbs": 24_960},
    BIG | {"ranks": 1008, "tp": 8, "pp": 126, "gbs": 8_320},
    BIG | {"ranks": 144, "tp": 8, "pp": 18, "vpp": 7, "gbs": 8_316},
    BIG | {"ranks": 16, "tp": 8, "pp": 2, "gbs": 524_288},
    # Every field at its upper end, alone and together.
    *(BIG | {"ranks": 512, "tp": 8, "pp": 2, "gbs": 512} | one for one in (
        {"ranks": 10**6, "gbs": 10**7}, {"seq": 10**7}, {"gbs": 10**7}, {"tp": 4096, "ranks": 10**6},
        {"pp": 1024, "ranks": 8192}, {"vpp": 64}, {"mbs": 4096},
        {"ep": 4096}, {"cp": 4096, "ranks": 65_536}, {"limit_mib": 1e8}, {"risk": 50.0},
        {"stage_limit": {str(stage): 1.0 for stage in range(1024)}}, {"software": ["x" * 60] * 16},
        {"ranks": 10**6, "tp": 4096, "pp": 1024, "ep": 4096, "cp": 4096, "vpp": 64, "mbs": 4096, "gbs": 10**7,
         "seq": 10**7},
    )),
]  # fmt: skip
"""Questions at the limits; most are refused, in words."""

INPUT = """([name, value]) => new Promise((resolve) => {
  const slider = document.getElementById(name), began = performance.now();
  new MutationObserver((_, watch) => {
    if (document.body.dataset.answered !== String(asked)) return;
    watch.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - began));
  }).observe(document.body, { attributes: true });
  slider.value = value;
  slider.dispatchEvent(new Event("input"));
})"""

FIRST_PLAN = """() => jobState && (jobState.state === "done" || Boolean(jobState.progress && jobState.progress.step))"""


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """Link of a page and the id of its server."""
    with tempfile.TemporaryDirectory(prefix="page-speed-") as folder:
        log = Path(folder) / "log"
        words = [sys.executable, str(ROOT / "taylor" / "__main__.py"), "serve", "--port", PORT, "--workers", "1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as stream:
            server = subprocess.Popen(words, cwd=folder, stderr=stream, env=environment)
        try:
            while not (found := re.search(r"http://\S+", log.read_text())):
                if server.poll() is not None:
                    raise InputError(f"taylor serve did not start: {log.read_text()[-300:]}")
                time.sleep(0.1)
            yield found[0], server.pid
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)


def inputs_ms(page: Page, count: int, rest: bool) -> list[float]:
    """Milliseconds from each of some inputs to its answer."""
    found: list[float] = []
    for turn in range(count):
        found.append(page.evaluate(INPUT, ["recompute", str(turn % 21)]))
        if rest:
            page.wait_for_function("() => document.body.dataset.changes === String(asked)", timeout=60_000)
        else:
            page.wait_for_timeout(MOVED_MS)
    return found


def first_plan_seconds(page: Page) -> float:
    """Seconds from «Solve» to the first plan shown; the solve is stopped then."""
    page.wait_for_function("() => document.body.dataset.changes === String(asked)", timeout=60_000)
    began = time.perf_counter()
    page.click("#solve")
    page.wait_for_function(FIRST_PLAN, timeout=120_000, polling=20)
    took = time.perf_counter() - began
    if page.is_visible("#stop"):
        page.click("#stop")
    page.wait_for_function("() => jobState.state === 'done'", timeout=120_000)
    return took


def limit_seconds(link: str, ask: dict[str, Any]) -> tuple[float, str]:
    """Seconds of an answer, and its words where it is refused."""
    address, _, token = link.partition("?token=")
    request = urllib.request.Request(f"{address}api/estimate", json.dumps(ask).encode(), {"X-Token": token})
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            said = f"{json.loads(reply.read())['step_ms']:,.0f} ms"
    except urllib.error.HTTPError as error:
        said = json.loads(error.read())["error"]
    return time.perf_counter() - began, said


def peak_mib(process: int) -> float:
    """Most memory that a process has had, MiB."""
    [line] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(line) / 1024


def measure(inputs: int, solves: int) -> None:
    """Print all figures."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError("needs Playwright", cure="pip install playwright") from None
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with served() as (link, server), sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(link)
        page.wait_for_function("() => document.body.dataset.ready", timeout=120_000)
        for rest, name in ((True, "after a rest"), (False, "of a moving slider")):
            took = sorted(inputs_ms(page, inputs, rest))
            most = took[int(0.9 * len(took))]
            print(f"input to answer {name}: median {statistics.median(took):.0f} ms, 90 % {most:.0f} ms")
        plans = sorted(first_plan_seconds(page) for _ in range(solves))
        print(f"first plan: median {statistics.median(plans):.2f} s of {', '.join(f'{one:.2f}' for one in plans)}")
        browser.close()
        slowest = (0.0, "", "")
        for ask in LIMITS:
            seconds, said = limit_seconds(link, ask)
            changed = ", ".join(
                f"{name} {str(value)[:20]}" for name, value in ask.items() if name in Question.model_fields
            )
            slowest = max(slowest, (seconds, changed, said))
        print(f"limits: {len(LIMITS)} questions, {slowest[0]:.2f} s at most ({slowest[1]}: {slowest[2]})")
        print(f"server: {peak_mib(server):,.0f} MiB at most")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=40, help="inputs of each kind (default: %(default)s)")
    parser.add_argument("--solves", type=int, default=3, help="solves (default: %(default)s)")
    args = parser.parse_args()
    start_logging()
    return run_command(lambda: measure(args.inputs, args.solves))


if __name__ == "__main__":
    raise SystemExit(main())
