"""Operators, collectives and tensors of one rank from a PyTorch (Kineto) trace that was taken with shapes.

A kernel has no shapes of its own. It names the operator that launched it (``External id``), which has those of its
inputs (``record_shapes``). Kernels that follow each other on a stream and that one operator launched are one sample.
Tensors come from ``[memory]`` events (``profile_memory``).
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.json_stream import stream_events
from taylor.parsers.profiles.kernels import MAX_KERNEL_NS
from taylor.parsers.profiles.kineto import DEVICE_WORK, STEP, time_ns
from taylor.parsers.profiles.operators import MOST_DIMENSION, Operator, OperatorSample, OperatorTable, Shape
from taylor.parsers.profiles.transfers import Transfer

MOST_EVENTS = 8_000_000
"""Operators, kernels and memory events of one trace; a profiled step of a small run has some ten thousands."""
MOST_SHAPES = 4096
"""Dimensions of all inputs of one operator: those over lists of tensors have a few hundred."""
MOST_NUMBERS = 32
"""Arguments of an operator that are looked through for sizes."""
GPU, LINKS = "GPU", "COMMUNICATION"
"""`Operator.core` of kernels and of collectives."""
_DTYPES: Mapping[str, str] = MappingProxyType(
    {"float": "FLOAT", "c10::BFloat16": "DT_BF16", "c10::Half": "FLOAT16", "double": "DOUBLE", "long": "INT64",
     "long int": "INT64", "int": "INT32", "short": "INT16", "signed char": "INT8", "unsigned char": "UINT8",
     "bool": "BOOL"}
)  # fmt: skip
"""Names of types as Ascend's tables have them."""
_WIDTHS: Mapping[str, int] = MappingProxyType(
    {"double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2}
)
"""Bytes of an element by a collective's ``dtype``, in lower case; any other (``Byte``, ``Float8_e4m3fn``) has one."""
_PLACEHOLDERS = ("aten::empty", "aten::new_empty", "aten::resize_")
"""Operators that only allocate: the one around them says what a tensor is for."""
_OF_WEIGHTS = re.compile(r"FSDP::(?:all_gather|pre_|post_)")
"""Ranges in which FSDP gathers weights and reduces their gradients: torch 2.13
torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:406, 462, 544, 559, 580, 603-661."""
_COUNT = re.compile(r"\[?(\d{1,15}(?:, \d{1,15}){0,15})\]?")
"""A whole number, or a list of them, as ``Concrete Inputs`` have them."""
_WORD = re.compile(r"[\w:.]{1,200}")


@dataclass(frozen=True)
class ProfileTables:
    """Tables of one rank, whatever profiler wrote them.

    Parameters
    ----------
    operators : OperatorTable
    transfers : mapping of str to Transfer
        By the names of their samples.
    allocations : tuple of Allocation or None
        None where the trace was taken without memory.
    of_weights : tuple of OperatorSample
        Work by which FSDP gathers weights and reduces their gradients, which is none of `operators`.
    """

    operators: OperatorTable
    transfers: Mapping[str, Transfer]
    allocations: tuple[Allocation, ...] | None
    of_weights: tuple[OperatorSample, ...] = ()


def read_kineto_tables(path: str | Path) -> ProfileTables:
    """Read a trace, plain or gzip-compressed.

    Raises
    ------
    InputError
        When it is damaged, or was taken without shapes.
    """
    trace = _Trace(Path(path))
    for event in stream_events(trace.file):
        trace.add(event)
    return trace.tables()


@dataclass(frozen=True)
class _Op:
    """An operator on the host."""

    name: str
    start_ns: int
    end_ns: int
    thread: object
    inputs: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    shown: Mapping[str, Any]


@dataclass(frozen=True)
class _Kernel:
    """A kernel, copy or fill on the device."""

    start_ns: int
    duration_ns: int
    stream: object
    name: str
    op: object
    shown: Mapping[str, Any]


@dataclass
class _Trace:
    """Events of a trace as they come."""

    file: Path
    ops: dict[object, _Op] = field(default_factory=dict)
    kernels: list[_Kernel] = field(default_factory=list)
    memory: list[tuple[int, object, Mapping[str, Any]]] = field(default_factory=list)
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    spans: dict[object, list[tuple[int, int]]] = field(default_factory=dict)
    """By thread of the host: begin and end of what FSDP does there."""
    shaped: bool = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Take an event in.

        Raises
        ------
        InputError
            When a time is no number.
        """
        category = str(event.get("cat", "")).lower()
        arguments = event.get("args")
        shown = arguments if isinstance(arguments, dict) else {}
        if category == "cpu_op" and event.get("ph") == "X":
            self._add_op(event, shown)
        elif category in DEVICE_WORK and event.get("ph") == "X":
            start, took = self._span(event)
            name, op = str(event.get("name", "")), _key(shown.get("External id"))
            self.kernels.append(_Kernel(start, took, _key(shown.get("stream")), name, op, _of_collective(shown)))
        elif event.get("name") == "[memory]" and shown.get("Device Type") != 0:
            self.memory.append((time_ns(event, "ts", self.file), _key(event.get("tid")), shown))
        elif category == "user_annotation" and (step := STEP.match(str(event.get("name", "")))):
            start, took = self._span(event)
            self.steps.append((start, start + took, int(step[1])))
        elif category == "user_annotation" and _OF_WEIGHTS.match(str(event.get("name", ""))):
            start, took = self._span(event)
            self.spans.setdefault(_key(event.get("tid")), []).append((start, start + took))
        if len(self.ops) + len(self.kernels) + len(self.memory) + sum(map(len, self.spans.values())) > MOST_EVENTS:
            cure = "profile two steps of a small run"
            raise InputError(f"contains more than {MOST_EVENTS} operators", file=self.file, cure=cure)

    def _span(self, event: Mapping[str, Any]) -> tuple[int, int]:
        start, took = time_ns(event, "ts", self.file), time_ns(event, "dur", self.file)
        if start < 0 or not 0 <= took <= MAX_KERNEL_NS:
            place = str(event.get("name"))[:60]
            raise InputError("is no time of an operator", file=self.file, field=place, value=(start, took))
        return start, took

    def _add_op(self, event: Mapping[str, Any], shown: Mapping[str, Any]) -> None:
        start, took = self._span(event)
        dims, types = shown.get("Input Dims", shown.get("Input dims")), shown.get("Input type")
        self.shaped = self.shaped or dims is not None
        inputs, dtypes = _tensors(dims, types)
        inputs = (*inputs, *_counts(shown.get("Concrete Inputs")))
        op = _Op(str(event.get("name", "")), start, start + took, _key(event.get("tid")), inputs, dtypes,
                 _of_collective(shown))  # fmt: skip
        self.ops[_key(shown.get("External id"), len(self.ops))] = op

    def tables(self) -> ProfileTables:
        """All that was taken in.

        Raises
        ------
        InputError
            When there is no kernel, or no shapes were recorded.
        """
        if not self.kernels:
            cure = "profile the device, not only the host"
            raise InputError("contains no kernel", file=self.file, cure=cure)
        if not self.shaped:
            cure = "profile with record_shapes (Megatron-LM: --pytorch-profiler-collect-shapes)"
            raise InputError("was taken without shapes", file=self.file, field="Input Dims", cure=cure)
        self.steps.sort()
        for thread, spans in self.spans.items():
            self.spans[thread] = _joined(spans)
        own, of_weights, transfers = self._samples()
        allocations = self._allocations() if self.memory else None
        return ProfileTables(OperatorTable(own), transfers, allocations, of_weights)

    def _is_of_weights(self, moment: int, thread: object) -> bool:
        """Return whether FSDP works at a moment of a thread."""
        spans = self.spans.get(thread, [])
        at = bisect.bisect_right(spans, (moment, math.inf)) - 1
        return at >= 0 and moment <= spans[at][1]

    def _samples(
        self,
    ) -> tuple[tuple[OperatorSample, ...], tuple[OperatorSample, ...], Mapping[str, Transfer]]:
        """The network's operators and collectives, those of FSDP, and the data that collectives send."""
        found, transfers = list[OperatorSample](), dict[str, Transfer]()
        of_weights = set[int]()
        open_on: dict[object, tuple[object, int]] = {}
        for one in sorted(self.kernels, key=lambda each: each.start_ns):
            op = self.ops.get(one.op)
            shown = one.shown or (op.shown if op is not None else {})
            step = self._step(one.start_ns if op is None else op.start_ns)
            apart = op is not None and self._is_of_weights(op.start_ns, op.thread)
            if shown or one.name.lower().startswith("nccl"):
                name = f"{_collective(shown, one.name)}_{len(transfers)}"
                operator = Operator(_collective(shown, one.name), LINKS)
                of_weights |= {len(found)} if apart else set()
                found.append(OperatorSample(operator, one.start_ns, one.duration_ns, step, name))
                sent = _sent(shown)
                if sent is not None:
                    ranks = _whole(shown.get("Group size")) or 0
                    transfers[name] = Transfer(_group(shown), sent, float(one.duration_ns), ranks)
                continue
            before = open_on.get(one.stream)
            if op is not None and before is not None and before[0] == one.op:
                last = found[before[1]]
                took = last.duration_ns + one.duration_ns
                found[before[1]] = OperatorSample(last.operator, last.start_ns, took, last.step, last.name)
                continue
            open_on[one.stream] = one.op, len(found)
            of_weights |= {len(found)} if apart else set()
            found.append(OperatorSample(_operator(op, one.name), one.start_ns, one.duration_ns, step, one.name[:200]))
        own = tuple(one for at, one in enumerate(found) if at not in of_weights)
        return own, tuple(one for at, one in enumerate(found) if at in of_weights), transfers

    def _step(self, moment: int) -> int:
        at = bisect.bisect_right(self.steps, (moment, math.inf, 0)) - 1
        return self.steps[at][2] if at >= 0 and moment < self.steps[at][1] else -1

    def _allocations(self) -> tuple[Allocation, ...]:
        events = sorted(self.memory, key=lambda each: each[0])
        names = self._around([(moment, thread) for moment, thread, _ in events])
        found, alive = list[Allocation](), dict[object, int]()
        for (moment, thread, shown), name in zip(events, names, strict=True):
            size, place = _whole(shown.get("Bytes")), _key(shown.get("Addr"))
            if size is None:
                cure = "is it a trace that torch.profiler wrote?"
                raise InputError("must be a number of bytes", file=self.file, field="Bytes of [memory]", cure=cure)
            if size > 0:
                alive[place] = len(found)
                total = _whole(shown.get("Total Allocated")) or 0
                found.append(Allocation(name, size, moment, None, total, self._is_of_weights(moment, thread)))
            elif place in alive:
                at = alive.pop(place)
                one = found[at]
                found[at] = replace(one, end_ns=moment)
        return tuple(found)

    def _around(self, moments: Sequence[tuple[int, object]]) -> list[str]:
        """Innermost operator around each moment of a thread, but for those that only allocate."""
        ops = sorted(self.ops.values(), key=lambda one: (one.start_ns, -one.end_ns))
        nested: dict[object, list[_Op]] = {}
        found, at = list[str](), 0
        for moment, thread in moments:
            while at < len(ops) and ops[at].start_ns <= moment:
                _within(nested.setdefault(ops[at].thread, []), ops[at].start_ns).append(ops[at])
                at += 1
            around = _within(nested.get(thread, []), moment)
            named = (one.name for one in reversed(around) if not one.name.startswith(_PLACEHOLDERS))
            found.append(next(named, "allocation"))
        return found


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that lie in each other as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _within(nested: list[_Op], moment: int) -> list[_Op]:
    """The operators of a thread that have not ended at a moment."""
    while nested and nested[-1].end_ns < moment:
        nested.pop()
    return nested


def _key(value: object, other: object = None) -> object:
    """A number or a text that events refer to each other by."""
    return value if isinstance(value, (int, str)) else ("", other)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < MOST_DIMENSION else None


def _operator(op: _Op | None, kernel: str) -> Operator:
    if op is None:
        # Launched outside of any operator.
        return Operator(kernel.split("<")[0].split("(")[0][:200], GPU)
    inputs, dtypes = op.inputs, op.dtypes
    name = op.name.removeprefix("aten::")
    if name in ("addmm", "baddbmm") and len(dtypes) == 3:
        # The summand comes first: factors are looked for in the first two inputs.
        inputs, dtypes = (*inputs[1:3], inputs[0], *inputs[3:]), (*dtypes[1:], dtypes[0])
    return Operator(op.name[:200], GPU, dtypes, inputs, _outputs(name, inputs))


def _outputs(name: str, inputs: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Outputs where the kind of operator settles them: of a GEMM, and of attention, as large as its queries."""
    left, right = (*inputs[:2], (), ())[:2]
    if name in ("mm", "addmm", "_scaled_mm", "bmm", "baddbmm") and len(left) == len(right) >= 2:
        return ((*left[:-1], right[-1]),)
    return (left,) if "attention" in name.lower() and len(left) > 2 else ()


def _tensors(dims: object, types: object) -> tuple[tuple[Shape, ...], tuple[str, ...]]:
    """Shapes and types of an operator's tensors; numbers and missing ones have no dimensions and are left out."""
    if not isinstance(dims, list) or not isinstance(types, list):
        return (), ()
    shapes, dtypes = list[Shape](), list[str]()
    for shape, kind in itertools.islice(zip(dims, types, strict=False), MOST_SHAPES):
        if not isinstance(shape, list) or not shape:
            continue
        for each in shape if isinstance(shape[0], list) else [shape]:
            sizes = tuple(map(_whole, each)) if isinstance(each, list) else ()
            if sizes and len(shapes) < MOST_SHAPES and all(size is not None and size >= 0 for size in sizes):
                shapes.append(tuple(size or 0 for size in sizes))
                dtypes.append(_DTYPES.get(str(kind), str(kind)[:40]))
    return tuple(shapes), tuple(dtypes)


def _counts(given: object) -> Iterator[Shape]:
    """Sizes that an operator is given as numbers: rows of an embedding's gradient, the shape that a slice is put into.

    One and zero are indices and flags.
    """
    for text in given[:MOST_NUMBERS] if isinstance(given, list) else ():
        found = _COUNT.fullmatch(text) if isinstance(text, str) else None
        sizes = tuple(map(int, found[1].split(", "))) if found else ()
        if sizes and min(sizes) > 0 and max(sizes) > 1:
            yield sizes


_COLLECTIVE = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
               "Process Group Ranks")  # fmt: skip


def _of_collective(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """Facts of a collective by NCCL; none of other work."""
    return {name: shown.get(name) for name in _COLLECTIVE} if "Collective name" in shown else {}


def _collective(shown: Mapping[str, Any], kernel: str) -> str:
    """``nccl:allgather``: one word for both spellings of each, as ``_allgather_base``."""
    word = str(shown.get("Collective name") or kernel.split("(")[0]).lower().replace("_", "")[:60]
    found = _WORD.match(word)
    plain = found[0] if found else ""
    return "nccl:receive" if plain == "recv" else f"nccl:{plain.removesuffix('base')}"


def _group(shown: Mapping[str, Any]) -> str:
    return str(shown.get("Process Group Name") or shown.get("Process Group Ranks"))[:200]


def _sent(shown: Mapping[str, Any]) -> int | None:
    """Bytes that a rank sends, as Ascend's profiler counts them; None where the trace does not say."""
    given, taken = _whole(shown.get("In msg nelems")), _whole(shown.get("Out msg nelems"))
    ranks = _whole(shown.get("Group size"))
    if given is None or taken is None or not ranks or ranks < 1:
        return None
    width = _WIDTHS.get(str(shown.get("dtype")).lower(), 1)
    name = _collective(shown, "")
    if "send" in name or "broadcast" in name:
        return given * width
    if "receive" in name:
        return 0
    whole = max(given, taken) * (2 if "allreduce" in name else 1)
    return round(whole * width * (ranks - 1) / ranks)
