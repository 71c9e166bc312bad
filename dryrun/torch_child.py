"""One stage's dry-run in its own process: ``python -m taylor.dryrun.torch_child FOLDER``.

Reads ``job.json`` there (the run, the stage, the module whose `run_stage` does the work) and writes
``memory.json``: the result of `run_stage`, or the reason for none. Only what ends the process itself (a signal, the
time limit) leaves no answer.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from taylor.base.errors import TaylorError
from taylor.base.kept import write_kept
from taylor.base.memory_limit import limit_memory
from taylor.dryrun.interface import DryRun
from taylor.dryrun.stage_memory import StageMemory

JOB, ANSWER = "job.json", "memory.json"
HOST_LIMIT_BYTES = 8 << 30
"""Most memory that one process may take on this machine: five times what the largest known stage needs."""


@dataclass(frozen=True)
class StageTask:
    """Request to the child: one stage of a run, by the `run_stage` of a module."""

    module: str
    run: DryRun
    stage: int


@dataclass(frozen=True)
class StageAnswer:
    """The child's result, or the reason for none."""

    memory: StageMemory | None = None
    failure: str = ""


TASK, FOUND = TypeAdapter(StageTask), TypeAdapter(StageAnswer)


def main(folder: Path) -> None:
    """Run the stage and write the answer."""
    limit_memory(HOST_LIMIT_BYTES)
    task = TASK.validate_json((folder / JOB).read_bytes())
    try:
        memory = importlib.import_module(task.module).run_stage(task.run, task.stage)
        answer = StageAnswer(memory)
    except MemoryError:
        traceback.print_exc()
        answer = StageAnswer(failure=f"needs more than {HOST_LIMIT_BYTES >> 30} GiB of this machine's memory")
    except TaylorError as error:
        answer = StageAnswer(failure=str(error))
    except Exception as error:
        traceback.print_exc()
        answer = StageAnswer(failure=f"{type(error).__name__}: {error}")
    write_kept(folder / ANSWER, FOUND.dump_python(answer, mode="json"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
