"""The kernels of one rank, whatever profiler wrote them: when each ran, and what it was."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError

COMPUTE, COLLECTIVE, SEND, RECEIVE, TRANSFER = 0, 1, 2, 3, 4
"""Purpose of a kernel. `TRANSFER` is a send and a receive in one (batched point-to-point)."""
NO_MARKER, FORWARD_MARKER, BACKWARD_MARKER = 0, 1, 2
"""Attention kernels: one of each a layer and micro-batch."""

MOST_US = 9 * 10**15
"""A time in us beyond which nanoseconds would not fit into 64 bits: 285 years (the clocks of 2024 show 1.7e15)."""

MAX_KERNEL_NS = 3_600_000_000_000
"""An hour: no kernel runs that long, so a longer time comes from another column."""

_ASCEND = re.compile(r"FlashAttention(?:Unpadding|VarLen)?Score(?P<grad>Grad)?(?:V\d+)?$")
_TAIL = re.compile(r"(?:[-_](?:op)?\d+)+$")
_GPU_AUXILIARY = re.compile(r"dot_do_o|convert_d|combine|pre_?process|post_?process|reduce", re.IGNORECASE)
_GPU = re.compile(
    r"flash_(?:fwd|bwd)|flashattn(?:fwd|bwd)|fmha|attention_kernel_(?:backward_)?batched|cudnn\w*sdpa"
    r"|_scaled_dot_product_\w*attention|_attn_(?:fwd|bwd)\b",
    re.IGNORECASE,
)
_NORM = re.compile(r"(?:layer|rms)_?norm|(?<![a-z])ln_(?:fwd|bwd)|GammaBeta|cuComputeGradInput", re.IGNORECASE)
_NORM_BACKWARD = re.compile(r"grad|bwd|backward|backprop|GammaBeta", re.IGNORECASE)
_GPU_BACKWARD = re.compile(r"bwd|backward|bprop|cutlassB|fmha_b|dgrad", re.IGNORECASE)


@lru_cache(maxsize=65536)
def classify(name: str, kind: str = "") -> tuple[int, int]:
    """(what it does, marker) of a kernel, from its name and, where the profiler gives one, its type.

    Ascend's attention kernels are known by type, or by the end of the name where there is no type;
    those of GPUs by name, the helpers that run around the main backward kernel left out.
    """
    if kind in ("", "N/A"):
        kind = _TAIL.sub("", name)
    found = _ASCEND.search(kind)
    if found:
        return COMPUTE, BACKWARD_MARKER if found["grad"] else FORWARD_MARKER
    low, text = kind.lower(), name.lower()
    if low.startswith("hcom_") or text.startswith(("hcom_", "nccl")):
        if "batchsendrecv" in low or "sendrecv" in text:
            return TRANSFER, NO_MARKER
        if "receive" in low or "recv" in text:
            return RECEIVE, NO_MARKER
        return (SEND, NO_MARKER) if "send" in low or "send" in text else (COLLECTIVE, NO_MARKER)
    head = name.split("<")[0] if not text.startswith("void cutlass") else name
    if _GPU.search(head) and not _GPU_AUXILIARY.search(head):
        return COMPUTE, BACKWARD_MARKER if _GPU_BACKWARD.search(head) else FORWARD_MARKER
    return COMPUTE, NO_MARKER


def norm_marker(label: str) -> int:
    """`FORWARD_MARKER` or `BACKWARD_MARKER` of a norm kernel (layer norm, RMS norm), `NO_MARKER` of any other.

    Ascend: ``RmsNorm``, ``AddRmsNorm``, ``LayerNormV3``, ``RmsNormGrad``, ``LayerNormXBackpropV3``; GPUs:
    ``vectorized_layer_norm_kernel``, ``rmsnorm_fwd_tuned_kernel``, ``cuApplyRMSNorm``,
    ``layer_norm_grad_input_kernel``, ``GammaBetaBackward…``. A kernel that a compiler fused of several
    operators is none, nor are norms over all gradients (``LpNorm…``, ``l2norm``) and batches.

    Parameters
    ----------
    label : str
        As in `RankProfile.names`.
    """
    head = label.split("<")[0].rsplit("/", 1)[-1]
    if "_fused_" in head or not _NORM.search(head):
        return NO_MARKER
    return BACKWARD_MARKER if _NORM_BACKWARD.search(head) else FORWARD_MARKER


@dataclass(frozen=True)
class RankProfile:
    """Kernels of one rank in the order of their starts.

    Parameters
    ----------
    path : Path
        The file they come from.
    rank : int or None
        Rank in the job; None when neither file nor name tells.
    start_ns, duration_ns : int64 [n]
        On the profiler's own clock.
    role, marker : int8 [n]
        See `classify`.
    name : int32 [n]
        Index into `names`: the kernel's type where there is one, else its name without a number.
    step : int32 [n]
        The profiler's step number; −1 where it gives none.
    task_start_ns, task_end_ns : int64 [k]
        Ranges on the device that name a task (``## forward ##``), by start.
    task_marker : int8 [k]
        `FORWARD_MARKER` or `BACKWARD_MARKER` of each range.
    """

    path: Path
    rank: int | None
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    role: NDArray[np.int8]
    marker: NDArray[np.int8]
    name: NDArray[np.int32]
    step: NDArray[np.int32]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    task_start_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    task_end_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    task_marker: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, dtype=np.int8))

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """End of every kernel, int64 [n]."""
        ends: NDArray[np.int64] = self.start_ns + self.duration_ns
        return ends

    def commonest(self, count: int = 5) -> list[tuple[str, int]]:
        """The names that occur most often, for a message about a kernel that was not found."""
        number = np.bincount(self.name, minlength=len(self.names))
        return [(self.names[i], int(number[i])) for i in np.argsort(-number, kind="stable")[:count] if number[i]]


class KernelBuilder:
    """Collects kernels one by one in little memory, and checks what no profiler would write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start, self._duration = array("q"), array("q")
        self._role, self._marker = array("b"), array("b")
        self._name, self._step, self._stream = array("i"), array("i"), array("q")
        self._group = array("i")
        self._index: dict[str, int] = {}

    def add(
        self,
        name: str,
        kind: str,
        start_ns: int,
        duration_ns: int,
        *,
        step: int = -1,
        stream: int = -1,
        where: str = "",
        role: int | None = None,
        group: int = 0,
    ) -> None:
        """Take one kernel; `group` marks its origin, for `build` to keep or drop.

        Raises
        ------
        InputError
            When the times are negative or a duration is over an hour.
        """
        if start_ns < 0 or not 0 <= duration_ns <= MAX_KERNEL_NS:
            raise InputError(
                "is no time of a kernel",
                file=self._path,
                field=where or name,
                value=f"start {start_ns / 1e3} us, duration {duration_ns / 1e3} us",
                cure="are two columns swapped?",
            )
        found, marker = classify(name, kind)
        label = kind if kind not in ("", "N/A") else _TAIL.sub("", name)
        self._start.append(start_ns)
        self._duration.append(duration_ns)
        self._role.append(found if role is None else role)
        self._marker.append(marker)
        self._name.append(self._index.setdefault(label, len(self._index)))
        self._step.append(step)
        self._stream.append(stream)
        self._group.append(group)

    def build(
        self,
        rank: int | None,
        *,
        groups: Iterable[int] | None = None,
        communication_groups: Iterable[int] = (),
        notes: tuple[str, ...] = (),
    ) -> RankProfile:
        """The kernels, sorted by start: of all groups, or of `groups`; of `communication_groups` only communication.

        Raises
        ------
        InputError
            When there is none, or kernels of one stream run at once by much.
        """
        keep = np.ones(len(self._start), dtype=np.bool_)
        if groups is not None:
            group, role = np.frombuffer(self._group, dtype=np.int32), np.frombuffer(self._role, dtype=np.int8)
            keep = np.isin(group, list(groups)) | (np.isin(group, list(communication_groups)) & (role != COMPUTE))
        if not keep.any():
            raise InputError("contains no kernel", file=self._path, cure="profile the device, not only the host")
        start = np.frombuffer(self._start, dtype=np.int64)
        chosen = np.flatnonzero(keep)
        order = chosen[np.argsort(start[chosen], kind="stable")]
        profile = RankProfile(
            self._path,
            rank,
            start[order],
            np.frombuffer(self._duration, dtype=np.int64)[order],
            np.frombuffer(self._role, dtype=np.int8)[order],
            np.frombuffer(self._marker, dtype=np.int8)[order],
            np.frombuffer(self._name, dtype=np.int32)[order],
            np.frombuffer(self._step, dtype=np.int32)[order],
            names=tuple(self._index),
            notes=notes,
        )
        self._check_streams(profile, np.frombuffer(self._stream, dtype=np.int64)[order])
        return profile

    def _check_streams(self, profile: RankProfile, stream: NDArray[np.int64]) -> None:
        """A stream runs one kernel after the other: long overlaps mean that a column is not what it says."""
        attention = profile.marker != NO_MARKER
        if not attention.any():
            return
        if not profile.duration_ns[attention].all():
            raise InputError("gives attention kernels no duration", file=self._path, cure="are two columns swapped?")
        computes = profile.role == COMPUTE
        for number in np.unique(stream[attention]):
            # Where no stream is given, attention kernels alone are known to share one.
            mine = computes & (stream == number) if number >= 0 else attention
            start, duration = profile.start_ns[mine], profile.duration_ns[mine]
            over = np.minimum(start[:-1] + duration[:-1] - start[1:], duration[1:])
            total, shared = int(duration.sum()), int(over[over > 0].sum())
            if shared > 0.02 * total:
                raise InputError(
                    "has kernels of one stream that run at once",
                    file=self._path,
                    field=f"stream {number}",
                    value=f"{shared / 1e3:.0f} us of {total / 1e3:.0f} us",
                    cure="are two columns swapped, or two profiles mixed?",
                )


def parse_us(text: str) -> int:
    """Microseconds as a profiler writes them (trailing tab, decimals) to whole nanoseconds, exactly.

    Raises
    ------
    ValueError
        When the text is not a number, or beyond what 64 bits of nanoseconds hold (285 years).
    """
    text = text.strip()
    whole, point, part = text.partition(".")
    if whole.isdigit() and len(whole) <= 16 and (part.isdigit() or not point) and whole.isascii():
        if int(whole) >= MOST_US:
            raise ValueError(text)
        return int(whole) * 1000 + (int((part + "000")[:3]) if part else 0)
    value = float(text)
    if not abs(value) < MOST_US or "_" in text:
        raise ValueError(text)
    return round(value * 1000)
