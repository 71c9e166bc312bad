"""Requests of one stage's step to torch's allocator, in order, and what the allocator takes of the card for them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_stage.caching_allocator import CachingAllocator
from taylor.dryrun.torch_stage.counter import LiveCounter, _Storage
from taylor.dryrun.torch_stage.kernels import GradientQueue
from taylor.dryrun.torch_stage.run import settled_plan, stage_chunks
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.step import StageStep, tasks_worth_running
from taylor.dryrun.torch_stage.weights import GRADIENTS, OPTIMIZER, WEIGHTS
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.orders import Task
from taylor.pipeline.schedule import WEIGHT_GRADIENT

MIB = 2**20
STEPS = 3
"""Steps until what is reserved changes no more: the second begins with the moments that the first one's end made."""
_MOMENTS = 2
_HERE = Path(__file__).parent
_COUNTING = ("counter", "requests")
"""Modules whose frames name no tensor."""


@dataclass(frozen=True)
class Request:
    """A tensor that comes (`size` above 0), or goes."""

    key: int
    size: int
    category: str = ""


@dataclass(frozen=True)
class RecordedStage:
    """Requests of a stage.

    Parameters
    ----------
    states : sequence of Request
        Weights, gradients and optimizer states before the first task.
    step : sequence of Request
        The tasks of one step, as far as they can change the peak.
    peak_mib : float
        Most that was live at once.
    at_peak_mib : mapping of str to float
        That moment by category.
    tensors_mib : mapping of (str, str) to float
        That moment by category and by the operator that made a tensor, as ``module.function``.
    moments_share : float
        Part of the optimizer's bytes that only its first update makes: Adam's two moments.
    joined : bool
        Gradients are one buffer, and with a distributed optimizer 16-bit weights another, into which the ones that the
        model was built with are copied (Megatron-LM core_v0.16.0 megatron/core/distributed/param_and_grad_buffer.py,
        ``_ParamAndGradBuffer``).
    """

    states: Sequence[Request]
    step: Sequence[Request]
    peak_mib: float
    at_peak_mib: Mapping[str, float]
    tensors_mib: Mapping[tuple[str, str], float]
    moments_share: float
    joined: bool

    def reserved_mib(self, *, expandable: bool) -> float:
        """Memory that the allocator has taken of the card after some steps, all on one stream, MiB."""
        allocator = CachingAllocator(expandable=expandable)
        keys = self._allocate_states(allocator)
        optimizer = [request.size for request in self.states if request.category == OPTIMIZER and request.size]
        for number in range(STEPS):
            live = self._run_step(allocator, keys)
            gradients = [key for key, category in live.items() if category == GRADIENTS]
            for key, category in live.items():
                if category != GRADIENTS:
                    allocator.free(key)
            if not number:
                for size in optimizer:
                    for _ in range(_MOMENTS):
                        keys += 1
                        allocator.allocate(keys, int(size * self.moments_share / _MOMENTS))
            # Gradients that no buffer has are dropped before the next step.
            for key in gradients:
                allocator.free(key)
            keys += len(self.step) + 1
        return allocator.reserved / MIB

    def _allocate_states(self, allocator: CachingAllocator) -> int:
        """Allocate what is there before the first step; return the last key."""
        by_category: dict[str, list[Request]] = {}
        for request in self.states:
            if request.size:
                by_category.setdefault(request.category, []).append(request)
        weights, gradients = by_category.get(WEIGHTS, []), by_category.get(GRADIENTS, [])
        key = max((request.key for request in self.states), default=0)
        for request in weights:
            allocator.allocate(request.key, request.size)
        if self.joined:
            for requests in (gradients, weights):
                key += 1
                allocator.allocate(key, sum(request.size for request in requests))
            for request in weights:
                allocator.free(request.key)
        else:
            for request in gradients:
                allocator.allocate(request.key, request.size)
        for request in by_category.get(OPTIMIZER, []):
            key += 1
            allocator.allocate(key, int(request.size * (1 - self.moments_share)))
        return key

    def _run_step(self, allocator: CachingAllocator, offset: int) -> dict[int, str]:
        """Run the step's requests; return the keys that are still live, with their categories."""
        live: dict[int, str] = {}
        for request in self.step:
            key = offset + request.key
            if request.size:
                allocator.allocate(key, request.size)
                live[key] = request.category
            elif live.pop(key, None) is not None:
                allocator.free(key)
        return live


class _Recorder(LiveCounter):
    """A counter that writes down what comes and goes, and which operator made what is live at the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self._keys: dict[int, int] = {}
        self._makers: dict[int, str] = {}
        self._peak_tensors: dict[tuple[str, str], int] = {}
        self._last = 0

    @property
    def tensors_at_peak(self) -> dict[tuple[str, str], int]:
        """Bytes at the highest moment so far by category and maker."""
        self._keep_peak()
        return dict(self._peak_tensors)

    def _see(self, tensor: Tensor) -> None:
        key = tensor.untyped_storage()._cdata
        if key not in self._storages:
            self._makers[key] = _maker()
        super()._see(tensor)

    def _keep_peak(self) -> None:
        if self._stale and self.total == self.peak:
            tensors: Counter[tuple[str, str]] = Counter()
            for key, storage in self._storages.items():
                if storage.counted:
                    tensors[storage.category, self._makers[key]] += storage.size
            self._peak_tensors = dict(tensors)
        super()._keep_peak()

    def _count(self, storage: _Storage) -> None:
        super()._count(storage)
        self._last += 1
        self._keys[id(storage)] = self._last
        self.requests.append(Request(self._last, storage.size, storage.category))

    def _free(self, key: int) -> None:
        storage = self._storages[key]
        if storage.counted:
            self.requests.append(Request(self._keys.pop(id(storage)), 0))
        super()._free(key)


def _maker() -> str:
    """The function of this package that runs an operator: the innermost frame outside the counting."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent == _HERE and path.stem not in _COUNTING:
            return f"{path.stem}.{getattr(frame.f_code, 'co_qualname', frame.f_code.co_name)}"
        frame = frame.f_back  # type: ignore[assignment]
    return "autograd"


def recorded_stage(run: DryRun, stage: int) -> RecordedStage:
    """Run one stage's step on fake tensors, as `run.run_stage` does, and write its requests down."""
    strategy, rules = run.strategy, run.config.rules
    spec = run.config.schedule_for(strategy.vpp)
    schedule = build_schedule(spec, strategy.pp, strategy.vpp, strategy.micro_batches)
    order: list[Task] = [(int(d), int(v), int(i), int(q)) for d, v, i, q in schedule.order[stage]]
    postponed = any(direction == WEIGHT_GRADIENT for direction, *_ in order)
    site = Site(run.config.model, strategy, rules, pieces=spec.seq_splits)
    recorder = _Recorder()
    with FakeTensorMode(), recorder:
        queue = GradientQueue(postpone=postponed)
        chunks = stage_chunks(site, queue, schedule, settled_plan(run), stage)
        states = len(recorder.requests)
        step = StageStep(site, recorder, queue, chunks, schedule.micro_batches)
        for task in order[: tasks_worth_running(order, postponed)]:
            step.run(task)
        requests, at_peak, peak = list(recorder.requests), recorder.at_peak, recorder.peak
        tensors = recorder.tensors_at_peak
    moments = rules.moments_bytes / rules.optimizer_bytes if rules.optimizer_bytes else 0.0
    return RecordedStage(
        requests[:states],
        requests[states:],
        peak / MIB,
        {name: size / MIB for name, size in at_peak.items()},
        {key: size / MIB for key, size in tensors.items()},
        min(1.0, moments),
        joined=not rules.parameter_shard and rules.adds_in_products and rules.parallel_optimizer,
    )
