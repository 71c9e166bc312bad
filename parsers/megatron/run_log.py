"""Figures of a small run in Megatron-LM's log: parameters by name, peaks of memory, the time of a step."""

from __future__ import annotations

import re
from itertools import zip_longest
from statistics import median

from taylor.parsers.small_run import RunLog

_BUCKET = re.compile(r"Params for bucket \d+ \((\d{1,18}) elements")
_NAME = re.compile(r"^\s*(module\.[\w.]+)", re.MULTILINE)
_PEAK = re.compile(r"max allocated: ([0-9]{1,12}(?:\.[0-9]+)?)")
_STEP = re.compile(r"elapsed time per iteration \(ms\): ([0-9]{1,12}(?:\.[0-9]+)?)")
_LAYER = re.compile(r"\.layers\.(\d{1,9})\.")
_MIB = 1 << 20


def read_log(text: str, dense: int = 0) -> RunLog:
    """Parameters, peaks and steps of a log.

    With one parameter a bucket each bucket's elements are that parameter's: Megatron-LM main,
    megatron/core/distributed/param_and_grad_buffer.py, ``Params for bucket``; buckets are split only where gradients
    are reduced beside the backward pass (distributed_data_parallel.py, ``bucket_size``). Peaks: megatron/training/
    utils.py, ``report_memory``. Of layers the first of each kind is returned, of steps the median of the later half.

    Parameters
    ----------
    dense : int
        Layers in front that are of another kind than the others.
    """
    parameters: dict[str, dict[str, int]] = {}
    buckets = list(_BUCKET.finditer(text))
    for bucket, after in zip_longest(buckets, buckets[1:]):
        names = _NAME.findall(text, bucket.end(), after.start() if after else min(len(text), bucket.end() + 4096))
        if len(names) != 1:
            continue
        layer = _LAYER.search(names[0])
        if layer is None:
            block = "embedding" if "embedding" in names[0] else "head"
            parameters.setdefault(block, {})[names[0]] = int(bucket[1])
        elif int(layer[1]) in (0, dense):
            block = "layer" if int(layer[1]) == dense else "dense"
            parameters.setdefault(block, {})[names[0]] = int(bucket[1])
    steps = [float(each) for each in _STEP.findall(text)]
    peak = max((round(float(each) * _MIB) for each in _PEAK.findall(text)), default=None)
    return RunLog(parameters, peak, float(median(steps[len(steps) // 2 :])) if steps else None)
