"""The order of a stage's tasks as a word of blocks: ``F0 F0 B0 W0``.

Tasks of one block, a direction of a virtual stage, differ in their micro-batch alone. No order gains by running
micro-batches out of sequence: relabelling the n-th task of every block as that of micro-batch n keeps all times. A word
therefore says the whole order of a stage.
"""

from __future__ import annotations

from collections import Counter
from typing import Sequence

from taylor.pipeline.orders import Task
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT

LETTERS = {FORWARD: "F", BACKWARD: "B", WEIGHT_GRADIENT: "W"}
_DIRECTIONS = {letter: direction for direction, letter in LETTERS.items()}


def word_of(tasks: Sequence[Sequence[int]]) -> str:
    """The word of a stage's tasks (direction, virtual stage, micro-batch, split), with micro-batches in sequence."""
    return " ".join(f"{LETTERS[task[0]]}{task[1]}" for task in tasks)


def tasks_of(word: str) -> list[Task]:
    """The tasks that a word names.

    Raises
    ------
    ValueError
        When a part of it is no block.
    """
    done: Counter[str] = Counter()
    tasks = []
    for part in word.split():
        direction, interleave = _DIRECTIONS.get(part[:1]), part[1:]
        if direction is None or not (interleave.isascii() and interleave.isdigit()) or len(interleave) > 4:
            raise ValueError(f"{part[:20]!r} names no task: F, B or W and the virtual stage, as in F0")
        tasks.append((direction, int(interleave), done[part], 0))
        done[part] += 1
    return tasks
