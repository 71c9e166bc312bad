"""Former faults: each put back into a copy of the tree, where the tests that hold it must fail.

The faults are those that reading other people's files and code once showed (planned jobs read wrongly, schedules and
legality not as the frameworks run them). Where a line of today can be made wrong as it was, it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability.campaign import EVERYTHING, ROOT, Figure, Part, Portion, Result, faults_of
from benchmarks.reliability.mutated_code import Mutant
from benchmarks.reliability.mutation import Judge
from benchmarks.reliability.reached_tests import copy_tree


@dataclass(frozen=True)
class Former:
    """A fault, how to make it again, and the tests that hold it.

    Parameters
    ----------
    told : str
        What was wrong.
    file, old, new : str
        What stands there now, and what brings the fault back.
    tests : tuple of str
        As pytest takes them.
    """

    told: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FORMER = (
    Former(
        "--noop-layers does not count among the positions that decide a layer's kind", "parsers/megatron/kinds.py",
        "return frozenset(flags.integers(NOOPS, high=layer_positions(flags) - 1) or [])", "return frozenset()",
        ("tests/parsers/megatron/test_launched.py",),
    ),
    Former(
        "a plan's selective recompute is not charged unless it is searched", "workflows/evaluate_file.py",
        "file.config.plan.uses(SELECT):", "file.config.plan.uses(SELECT) and job.search_select:",
        ("tests/workflows/test_evaluate_file.py::"
         "test_a_plan_is_charged_for_selective_recompute_whether_or_not_it_is_searched",),
    ),
    Former(
        "Megatron's attention keeps its scores where no flag says otherwise", "parsers/megatron/read.py",
        'usual = "local" if is_mindspeed(flags) or _implementation(flags) == "local" else "auto"', 'usual = "local"',
        ("tests/parsers/megatron/test_scripts.py::test_attention_keeps_its_scores_only_where_its_implementation_does",),
    ),
    Former(
        "MindFormers keeps an fp32 master of bf16 parameters", "cost_model/strategy.py",
        "return self.param_bytes >= states.master_bytes or not states.follows_weight_type", "return True",
        ("tests/cost_model/test_memory.py",),
    ),
    Former(
        "only --swiglu makes the MLP a gated one", "parsers/megatron/model.py",
        '_GATES = ("swiglu", "quick-geglu", "geglu", "gelu-tanh")', '_GATES = ("swiglu",)',
        ("tests/parsers/megatron/test_model.py", "tests/parsers/megatron/test_scripts.py"),
    ),
    Former(
        "seqpipe gives the micro-batches left over to its first round", "pipeline/schedule.py",
        "remainder=DEALT", "remainder=TO_FIRST", ("tests/pipeline/test_seqpipe.py",),
    ),
    Former(
        "MindSpore's zero_bubble_v is offered with as many micro-batches as stages", "pipeline/schedule.py",
        '"zero_bubble_v": replace(_V_SHAPE, least_micro_batches=_up_and_down)',
        '"zero_bubble_v": replace(_V_SHAPE, least_micro_batches=lambda stages: stages)',
        ("tests/pipeline/test_published_orders.py::"
         "test_with_too_few_micro_batches_mindspore_fails_and_so_does_the_order",),
    ),
    Former(
        "interleaving's low-memory order is taken unless the file says otherwise", "pipeline/schedule.py",
        "low_memory: bool = False", "low_memory: bool = True",
        ("tests/pipeline/test_schedules.py", "tests/workflows/test_schedules.py"),
    ),
    Former(
        "interleaving on two stages is let through with --no-overlap-p2p-communication", "register/frameworks.py",
        '        "interleaving-without-overlap",\n', "", ("tests/nd_search/test_legality.py",),
    ),
    Former(
        "experts under TP are let through without sequence parallelism", "register/frameworks.py",
        '        "moe-sp-with-tp",\n        "sequence-by-2cp-tp",\n', '        "sequence-by-2cp-tp",\n',
        ("tests/nd_search/test_legality.py",),
    ),
    Former(
        "context parallelism without flash attention is let through under MindFormers", "register/frameworks.py",
        '        "context-needs-flash",\n', "", ("tests/nd_search/test_legality.py",),
    ),
    Former(
        "an environment file of the working folder can name the interpreter", "dryrun/launch.py",
        '    rf"{INTERPRETER}|PATH|PYTHON\\w*|', '    rf"nothing|PATHS|', ("tests/dryrun/test_environment_file.py",),
    ),
    Former(
        "the head of a V shape is counted on the last stage", "pipeline/schedule.py",
        "return 0 if self.v_shape else stages - 1", "return stages - 1",
        ("tests/pipeline/test_schedules.py",),
    ),
)  # fmt: skip


def portions(share: float = 1.0) -> list[Portion]:
    """One portion of all; a small share takes the first ones."""
    return [Portion("put-back", put_back, {"count": max(1, round(len(FORMER) * share))})]


def put_back(count: int) -> Result:
    """Each fault in turn."""
    found: list[str] = []
    caught: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        place = Path(folder) / "tree"
        copy_tree(ROOT, place)
        judge = Judge(place)
        for former in FORMER[:count]:
            path = place / former.file
            source = path.read_bytes()
            at = source.find(former.old.encode())
            if at < 0:
                found.append(f"{former.told}: {former.file} no longer holds `{former.old}`")
                continue
            end = at + len(former.old.encode())
            mutant = Mutant(former.file, source[:at].count(b"\n") + 1, at, end, former.old, former.new, former.told)
            told = judge.with_mutant(mutant, list(former.tests), spent=120.0)
            caught[former.told] = told
            if told != "killed":
                found.append(f"{former.told}: {told} {', '.join(former.tests)}")
        judge.end()
    return {"faults": found, "caught": caught}


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of the table."""
    wrong = faults_of(list(results.values()))
    tried = len(FORMER)
    return [
        Figure(
            "former faults put back", f"{tried} faults, each caught by the tests that hold it",
            f"{tried - len(wrong)} of {tried} caught" + (f"; {'; '.join(wrong)}" if wrong else ""),
            not wrong,
            "a line made wrong again in a copy of the tree, and the tests run on it",
        )
    ]  # fmt: skip


PART = Part("former_faults", portions, figures, at_once=1, sources=(*EVERYTHING, "tests"))
