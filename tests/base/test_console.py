"""How a command ends: Ctrl-C waits for what is being written, a path that the system refuses is named."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from taylor.base.console import log, run_command, start_logging, wrapped
from taylor.base.errors import EXIT_INTERRUPTED
from taylor.base.interrupts import delay_interrupts
from tests.conftest import ROOT


def test_ctrl_c_inside_is_raised_when_the_block_has_ended():
    done = []
    with pytest.raises(KeyboardInterrupt), delay_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("written")
    assert done == ["written"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_inside_goes_before_ctrl_c():
    with pytest.raises(ValueError, match="disk"), delay_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("disk")


def test_outside_the_main_thread_it_changes_nothing():
    done = []

    def work():
        with delay_interrupts():
            done.append("written")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["written"]


def test_a_path_that_the_system_refuses_is_named_without_a_traceback(monkeypatch, caplog):
    monkeypatch.setattr(log, "propagate", True)
    assert run_command(lambda: Path("x" * 5000).read_text() and None) == 2
    said = caplog.messages[0]
    assert "File name too long" in said and "check the path" in said and len(said) < 600
    with pytest.raises(OSError, match="of no file"):
        run_command(_fail)


def _fail():
    raise OSError("of no file")


PRINTING = "from taylor.base.console import run_command; import sys; sys.exit(run_command(lambda: print('x' * {})))"


@pytest.mark.parametrize("length", [10, 10**6])
def test_an_output_on_a_full_disk_is_an_error_in_words(length):
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-c", PRINTING.format(length)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert "the system refuses: No space left on device" in done.stderr


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_closed_stream_is_no_place_for_the_next_file(closed, tmp_path):
    work = "open('kept', 'w').write('data'), print('text'), print('error', file=sys.stderr), sys.stdin.read(0)"
    code = f"from taylor.base.console import run_command; import sys; sys.exit(run_command(lambda: ({work}) and None))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        preexec_fn=lambda: [os.close(number) for number in closed],
    )  # fmt: skip
    assert done.returncode == 0 and (tmp_path / "kept").read_text() == "data"
    assert (done.stdout, done.stderr) == (b"" if 1 in closed else b"text\n", b"" if 2 in closed else b"error\n")


@pytest.mark.parametrize("length", [10, 10**6])
def test_a_reader_that_left_ends_a_command_in_silence(length):
    code = (
        f"from taylor.base.console import run_command; import sys; sys.exit(run_command(lambda: print('x' * {length})))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as pipe:
        done = subprocess.run([sys.executable, "-c", code], stdout=pipe, stderr=subprocess.PIPE, cwd=ROOT, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_signs_that_the_terminal_cannot_show_become_plain_letters():
    script = "from taylor.base.console import run_command; run_command(lambda: print('20×1 … « −é »'))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert done.stdout == b'20x1 ... " -\\xe9 "\n'


def test_a_log_line_on_a_terminal_is_broken_at_blanks_and_whole_in_a_pipe(monkeypatch, capsys):
    message = "batch 1,024 = DP 16 x 64 micro-batches: " + " ".join(f"{n:,}" for n in range(100_000, 100_030))
    before = (log.handlers[:], log.propagate, log.level)
    try:
        start_logging()
        log.info("%s", message)
        assert capsys.readouterr().err == f"INFO    {message}\n"
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", "60")
        log.info("%s", message)
    finally:
        log.handlers[:], log.propagate = before[0], before[1]
        log.setLevel(before[2])
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("INFO    batch") and all(line.startswith(" " * 8) for line in rest) and rest
    assert all(len(line) <= 60 for line in (first, *rest))
    assert " ".join(line.strip() for line in (first[8:], *rest)) == message


def test_a_terminal_that_is_narrower_than_the_indent_still_gets_twenty_columns_of_text():
    lines = wrapped("one two three four five six seven", 6, 8)
    assert lines == ["one two three four five six", "        seven"]


LIVE = """
import time
from taylor.base.console import log, progress, start_logging
from taylor.report.terminal import live_line
start_logging()
with live_line("solving"):
    for number in range(3):
        log.info("line %d begins and ends", number)
        time.sleep(0.3)
    with progress("dry-runs", 2) as advance:
        advance(1, "stage 0")
        log.info("line 3 begins and ends")
        time.sleep(0.3)
"""


def test_log_lines_stand_whole_above_a_live_line_and_a_bar():
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", LIVE], cwd=ROOT, stderr=child, env=environment)
    os.close(child)
    shown = b""
    try:
        while piece := os.read(parent, 65536):
            shown += piece
    except OSError:  # how a terminal whose program has ended says so
        pass
    os.close(parent)
    assert process.wait(timeout=60) == 0
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()))
    assert any(line.startswith("solving") for line in lines) and any("dry-runs" in line for line in lines)
    told = [line.rstrip() for line in lines if "begins" in line]
    assert told == [f"INFO    line {number} begins and ends" for number in range(4)]


def test_a_module_that_ctrl_c_broke_as_it_was_loaded_ends_with_130(caplog):
    def load():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("could not import module datetime") from None

    assert run_command(load) == EXIT_INTERRUPTED
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_module_that_is_missing_keeps_its_traceback():
    def load():
        raise ImportError("no module of that name")

    with pytest.raises(ImportError, match="of that name"):
        run_command(load)
