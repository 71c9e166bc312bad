"""Takes the pictures at the top of the READMEs: a report page in headless Chromium, and a timeline.

Run from the repository's root: ``make pictures``, or ``python -m benchmarks.pictures [--chromium PROGRAM]``.
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from taylor.base.console import run_command, start_logging
from taylor.base.errors import InputError, OutsideProgramError
from taylor.base.files import write_atomic

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

SOLVED = (
    "-shell",
    str(ROOT / "config" / "pretrain_llama3_70b.sh"),
    "--device",
    "h100-80g",
    "-vpp",
    "2",
    "--risk",
    "5%",
)
"""The second example of the READMEs."""

WIDTH, HEIGHT = 1280, 1000
WIDEST = 1280
COLOURS = 128
"""Enough for a page and a chart, at a third of the size."""

SETTLED_MS = 5000
"""Time that the page has to draw itself."""


def take_report(folder: Path, chromium: str) -> bytes:
    """The first screen of the page of a solve."""
    _taylor(folder, "pipeline_parallel.py", *SOLVED, "-o", "solved.sh", "--html", "report.html")
    _run(
        folder, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--window-size={WIDTH},{HEIGHT}", f"--virtual-time-budget={SETTLED_MS}", "--screenshot=report.png",
        (folder / "report.html").as_uri(),
    )  # fmt: skip
    return small(folder / "report.png")


def take_timeline(folder: Path) -> bytes:
    """The timeline of the worker logs that come with the repository."""
    _taylor(folder, "timeline_tool.py", "--log_dir", str(ROOT / "log"), "--png", "timeline.png")
    return small(folder / "timeline.png")


def small(file: Path) -> bytes:
    """A picture in few colours, no wider than a page shows it."""
    picture = Image.open(file).convert("RGB")
    if picture.width > WIDEST:
        picture = picture.resize((WIDEST, round(picture.height * WIDEST / picture.width)), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.quantize(COLOURS).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _taylor(folder: Path, script: str, *words: str) -> None:
    _run(folder, sys.executable, str(ROOT / script), *words)


def _run(folder: Path, *words: str) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise OutsideProgramError(f"{words[0]} failed: {done.stderr[-500:]}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default=next(filter(shutil.which, PROGRAMS), ""), help="the browser's program")
    args = parser.parse_args()
    start_logging()

    def take() -> None:
        if not args.chromium:
            raise InputError("no Chromium is here", field="--chromium", cure=f"install one of {', '.join(PROGRAMS)}")
        with tempfile.TemporaryDirectory(prefix="pictures-") as own:
            folder = Path(own)
            write_atomic(PICTURES / "timeline.png", take_timeline(folder))
            write_atomic(PICTURES / "report.png", take_report(folder, args.chromium))
        print(f"pictures: {PICTURES}")

    return run_command(take)


if __name__ == "__main__":
    raise SystemExit(main())
