"""The time of a transfer between stages, from the durations of its send and its receive: only one of them waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.profiles.kernels import RECEIVE, SEND, TRANSFER, RankProfile
from taylor.pipeline.schedule import FORWARD, WEIGHT_GRADIENT, Schedule

TaskKey = tuple[int, int, int, int]
"""(direction, position of the chunk, micro-batch, sequence split) of the task whose output is sent."""


@dataclass(frozen=True)
class Transfers:
    """Durations (ms) of one rank's sends and receives, float64 [steps, transfers], in task order."""

    sends: NDArray[np.float64] | None
    receives: NDArray[np.float64] | None
    batched: bool = False


def expected_transfers(schedule: Schedule, stage: int) -> tuple[list[TaskKey], list[TaskKey]]:
    """Sends and receives of a stage in one step, each in the order of its tasks."""
    sends: list[TaskKey] = []
    receives: list[TaskKey] = []
    for direction, v, micro_batch, split in schedule.order[stage].tolist():
        if direction == WEIGHT_GRADIENT:
            continue
        position = schedule.position(v, stage)
        ahead = 1 if direction == FORWARD else -1
        for place, keys, owner in ((position + ahead, sends, position), (position - ahead, receives, position - ahead)):
            if 0 <= place < schedule.chunks and schedule.chunk_at(place)[1] != stage:
                keys.append((direction, owner, micro_batch, split))
    return sends, receives


def transfers_of(profile: RankProfile, schedule: Schedule, stage: int, steps: int) -> Transfers:
    """Sends and receives of a rank; None where their number is not the schedule's."""
    sends, receives = expected_transfers(schedule, stage)
    return Transfers(
        _durations(profile, SEND, len(sends), steps),
        _durations(profile, RECEIVE, len(receives), steps),
        bool((profile.role == TRANSFER).any()),
    )


def _durations(profile: RankProfile, role: int, expected: int, steps: int) -> NDArray[np.float64] | None:
    found = profile.duration_ns[profile.role == role]
    return found.reshape(steps, expected) / 1e6 if expected and len(found) == expected * steps else None


def transfer_time(
    schedule: Schedule, strategy: Strategy, ranks: Mapping[int, Transfers]
) -> tuple[float | None, list[str]]:
    """Median transfer time, ms, and the reason where it is not known.

    A send and its receive end together once both are there, so the shorter of the two is the transfer
    and the longer one has waited. Clocks of different ranks are never compared.
    """
    if schedule.stages == 1:
        return None, []
    per_stage = strategy.world_size // strategy.pp
    times: list[NDArray[np.float64]] = []
    keys = {stage: expected_transfers(schedule, stage) for stage in {rank // per_stage for rank in ranks}}
    for rank, mine in ranks.items():
        stage, lane = divmod(rank, per_stage)
        if mine.sends is None:
            continue
        for other_stage in keys:
            other = ranks.get(other_stage * per_stage + lane)
            if other is None or other.receives is None or other_stage == stage:
                continue
            place = {key: i for i, key in enumerate(keys[other_stage][1])}
            pairs = [
                (i, place[key])
                for i, key in enumerate(keys[stage][0])
                if key in place and schedule.chunk_at(key[1] + (1 if key[0] == FORWARD else -1))[1] == other_stage
            ]
            steps = min(len(mine.sends), len(other.receives))
            if pairs and steps:
                here, there = (list(column) for column in zip(*pairs, strict=True))
                times.append(np.minimum(mine.sends[:steps, here], other.receives[:steps, there]).reshape(-1))
    if times:
        return float(np.median(np.concatenate(times))), []
    reason = (
        "sends and receives are batched"
        if any(each.batched for each in ranks.values())
        else "no two neighbouring stages show matching sends and receives"
    )
    return None, [f"the transfer time between stages is not measured: {reason}"]
