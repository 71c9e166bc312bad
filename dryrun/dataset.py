"""A small token data set for dry-runs in place of the user's data."""

from __future__ import annotations

import subprocess
from pathlib import Path

from taylor.base.console import log
from taylor.base.isolated import NO_WORKING_FOLDER
from taylor.dryrun.launch import Starter

SAMPLES = 64
LARGEST_BYTES = 1 << 30
_LIMIT_S = 300.0
_PROGRAM = """
import sys
import numpy as np
from mindspore.mindrecord import FileWriter
path, length, samples, vocabulary = sys.argv[1], *map(int, sys.argv[2:5])
writer = FileWriter(file_name=path, shard_num=1, overwrite=True)
writer.add_schema({"input_ids": {"type": "int32", "shape": [-1]}}, "tokens")
tokens = np.random.default_rng(0)
writer.write_raw_data([
    {"input_ids": tokens.integers(0, vocabulary, length, dtype=np.int32)} for _ in range(samples)
])
writer.commit()
"""


def ensure_dataset(
    path: Path, seq_length: int, vocabulary: int, starter: Starter, samples: int = SAMPLES
) -> Path | None:
    """The data set at a path, written by MindSpore's own writer where there is none.

    Samples hold one token more than the sequence, for inputs and labels are cut from it.

    Parameters
    ----------
    samples : int
        One step's batch over all ranks at least: a program that drops what does not fill one has no step to
        count with less. `SAMPLES` at least; no more than fit in `LARGEST_BYTES`.

    Returns
    -------
    Path or None
        Absolute; None when it is missing and could not be written (the training file's path is used then).
    """
    samples = max(SAMPLES, min(samples, LARGEST_BYTES // (4 * (seq_length + 1))))
    target = path.resolve()
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [
                starter.tools.interpreter,
                "-c",
                NO_WORKING_FOLDER + _PROGRAM,
                str(target),
                str(seq_length + 1),
                str(samples),
                str(vocabulary),
            ],
            env=starter.full_environment(starter.environment or {}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("the small data set %s could not be written: %s", path, error)
        return None
    if done.returncode or not target.exists():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        log.warning(
            "the small data set %s could not be written (%s); the data set of the file is used", path, reason[:200]
        )
        return None
    log.info("data set for dry-runs: %s written, %d samples of %d tokens", path, samples, seq_length + 1)
    return target
