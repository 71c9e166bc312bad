"""Former faults: each put back into a copy of the tree, where the tests that hold it must fail.

The faults are those that reading other people's files and code once showed (planned jobs read wrongly, schedules and
legality not as the frameworks run them). Where a line of today can be made wrong as it was, it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability.campaign import PACKAGES, ROOT, Figure, Part, Portion, Result, faults_of
from benchmarks.reliability.mutated_code import Mutant
from benchmarks.reliability.mutation import PlainJudge
from benchmarks.reliability.switches import copy_tree


@dataclass(frozen=True)
class Former:
    """A fault, its code, and the tests that cover it.

    Parameters
    ----------
    told : str
        The fault.
    file, old, new : str
        The present code, and the code with the fault.
    tests : tuple of str
        As pytest takes them.
    """

    told: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PORTIONS = 6
_LEGAL = "tests/nd_search/test_legality.py"
_FORMULAS = "tests/cost_model/test_outside_formulas.py"
FORMER = (
    Former(
        "--noop-layers does not count among the positions that decide a layer's kind", "parsers/megatron/kinds.py",
        "return frozenset(flags.integers(NOOPS, high=layer_positions(flags) - 1) or [])", "return frozenset()",
        ("tests/parsers/megatron/test_launched.py",),
    ),
    Former(
        "a plan's selective recompute is not charged unless it is searched", "workflows/statement/problem.py",
        "unsearched = (SELECT,) if own and not searched else ()", "unsearched = ()",
        ("tests/workflows/test_evaluate_file.py::"
         "test_a_plan_is_charged_for_selective_recompute_whether_or_not_it_is_searched",),
    ),
    Former(
        "Megatron's attention keeps its scores where no flag says otherwise", "parsers/megatron/read.py",
        'usual = "local" if is_mindspeed(flags) or _implementation(flags) == "local" else "auto"', 'usual = "local"',
        ("tests/parsers/megatron/test_scripts.py::test_attention_keeps_its_scores_only_where_its_implementation_does",),
    ),
    Former(
        "MindFormers keeps an fp32 master of bf16 parameters", "cost_model/job/strategy.py",
        "return self.param_bytes >= states.master_bytes or not states.follows_weight_type", "return True",
        ("tests/cost_model/test_memory.py",),
    ),
    Former(
        "only --swiglu makes the MLP a gated one", "parsers/megatron/model.py",
        '_GATES = ("swiglu", "quick-geglu", "geglu", "gelu-tanh")', '_GATES = ("swiglu",)',
        ("tests/parsers/megatron/test_model.py", "tests/parsers/megatron/test_scripts.py"),
    ),
    Former(
        "seqpipe gives the micro-batches left over to its first round", "pipeline/traits.py",
        "remainder=DEALT", "remainder=TO_FIRST", ("tests/pipeline/test_seqpipe.py",),
    ),
    Former(
        "MindSpore's zero_bubble_v is offered with as many micro-batches as stages", "pipeline/traits.py",
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
        "interleaving on two stages is let through with --no-overlap-p2p-communication", "nd_search/legality.py",
        "lambda t, c: (t.vpp == 1) | (t.pp > 2)", "lambda t, c: (t.vpp == 1) | (t.pp > 1)", (_LEGAL,),
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
    # Step 12, one after another: what its list names and a line of today can bring back.
    Former(
        "MindFormers' experts are never split over model_parallel", "parsers/mindformers/read.py",
        'return moe.integer("expert_model_parallel", default=None) != 1', "return False",
        ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "EP that does not divide DP x CP is let through under MindFormers", "register/frameworks.py",
        '        "ep-in-dp-tp-cp",\n        "ep-in-dp-cp",\n        "moe-sp',
        '        "ep-in-dp-tp-cp",\n        "moe-sp', (_LEGAL,),
    ),
    Former(
        "keys that a MindFormers class fills from its defaults are missing", "parsers/mindformers/model_section.py",
        "    return dict(found)", "    return {}", ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "8.0 is no whole number", "parsers/text/fields.py",
        "if isinstance(value, float) and value.is_integer():", "if False:", ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "--first-k-dense-replace -1 is refused", "parsers/megatron/kinds.py",
        "default=0, low=-1, high=MAX_LAYERS))", "default=0, low=0, high=MAX_LAYERS))",
        ("tests/parsers/megatron/test_launched.py",),
    ),
    Former(
        'quotes in ${NAME:-"1"} stay', "parsers/text/shell_expansion.py",
        'words = self._word(split=False, stop="")', "pass", ("tests/parsers/text/test_shell_branches.py",),
    ),
    Former(
        "branches of an if that agree settle nothing", "parsers/text/shell_conditions.py",
        "if len(given) == len(after) and all(value.texts() == last.texts() for value in given):", "if False:",
        ("tests/parsers/text/test_shell_branches.py",),
    ),
    Former(
        "a GPU launcher's file is judged on an Ascend 910B", "parsers/megatron/launcher.py",
        'UsualDevice("h100-80g", "Megatron files")', 'UsualDevice("ascend-910b", "Megatron files")',
        ("tests/workflows/test_devices.py",),
    ),
    Former(
        "ratios are the older tool's unless asked for", "workflows/statement/options.py",
        "    fixed: bool = False", "    fixed: bool = True", ("tests/workflows/test_time_ratios.py",),
    ),
    Former(
        "registered models do not reach TOML files", "parsers/torchtitan/read.py",
        "    if key in known:", "    if False:", ("tests/parsers/torchtitan/test_files.py",),
    ),
    Former(
        "a counted embedding takes no layer's place", "parsers/megatron/own_plan.py",
        "    slots[0] -= extra_first\n", "",
        ("tests/parsers/megatron/test_scripts.py", "tests/parsers/megatron/test_model.py"),
    ),
    Former(
        "what the launcher would not start is planned all the same", "workflows/statement/schedules.py",
        "for misfit in config.misfits:", "for misfit in ():",
        ("tests/parsers/megatron/test_layouts.py",),
    ),
    Former(
        "EP beyond DP x CP is pruned although experts are whole", "nd_search/legality.py",
        "lambda t, c: (t.dp * t.tp * t.cp) % t.ep == 0", "lambda t, c: (t.dp * t.cp) % t.ep == 0", (_LEGAL,),
    ),
    Former(
        "fewer micro-batches than stages are pruned under 1F1B", "pipeline/traits.py",
        "least_micro_batches: Callable[[Any], Any] = lambda stages: 1",
        "least_micro_batches: Callable[[Any], Any] = lambda stages: stages",
        (_LEGAL, "tests/pipeline/test_schedules.py"),
    ),
    Former(
        "Ulysses over more ranks than key-value heads is let through under MindFormers", "register/frameworks.py",
        '        "context-needs-flash",\n        "heads-by-ulysses",\n        "kv-groups-by-ulysses",\n',
        '        "context-needs-flash",\n        "heads-by-ulysses",\n',
        (_LEGAL,),
    ),
    Former(
        "expert meshes of no rank are let through under torchtitan", "register/frameworks.py",
        '        "ep-in-shards",\n', "", (_LEGAL,),
    ),
    Former(
        "torch's interleaving is let through with any number of micro-batches", "register/frameworks.py",
        '        "micro-batches-in-even-rounds",\n', "", (_LEGAL,),
    ),
    Former(
        "flags without effect are taken in silence", "taylor/command_lines/arguments.py",
        "    if idle:\n", "    if idle and not flags:\n", ("tests/command_lines/test_without_effect.py",),
    ),
    Former(
        "a small packed trace is unpacked without measure", "parsers/profiles/json_stream.py",
        "min(MAX_TRACE_BYTES, FREE_BYTES + MAX_EXPANSION * file.stat().st_size)", "MAX_TRACE_BYTES",
        ("tests/parsers/profiles/test_streams.py",),
    ),
    Former(
        "Ctrl-C writes the plan so far into the user's file", "workflows/solving/interrupted.py",
        "planned.plan, output=copy)", "planned.plan, output=config.path)", ("tests/workflows/test_interrupted.py",),
    ),
    Former(
        "Ctrl-C in a solve exits with 0", "base/errors.py",
        "EXIT_INTERRUPTED = 130", "EXIT_INTERRUPTED = 0", ("tests/workflows/test_interrupted.py", "tests/base"),
    ),
    Former(
        "a killed tool's workers stay for good", "pipeline_solver/tree/worker_pool.py",
        "    end_with_parent(coordinator)\n", "",
        ("tests/base/test_orphans.py",),
    ),
    Former(
        "--explain leaves layers of a chunk without a stage", "cost_model/memory/best_case.py",
        "while capacity.sum() < search.layers:", "while capacity.sum() < 0:", ("tests/cost_model/test_best_case.py",),
    ),
    Former(
        "data_parallel_shard_degree -1 on unknown ranks turns FSDP off", "parsers/torchtitan/read.py",
        "return strategy, written == -1 or strategy.op > 1", "return strategy, strategy.op > 1",
        ("tests/parsers/torchtitan/test_files.py",),
    ),
    Former(
        "micro_batch_interleave_num changes nothing", "parsers/mindformers/read.py",
        ' * _micro_batch_interleave(top)', "", ("tests/parsers/mindformers/test_read.py",),
    ),
    Former(
        "--gbs leaves the old micro_batch_num in the file that is written", "parsers/mindformers/write.py",
        "_want_micro_batches(wanted, source, current, plan.stages, micro_batches)", "pass",
        ("tests/parsers/mindformers/test_write.py",),
    ),
    Former(
        "a check of which every dry-run crashed passes", "workflows/solving/memory_check.py",
        "    if result.says_nothing:\n        raise _unchecked(result)\n", "",
        ("tests/dryrun/test_check.py::"
         "test_a_check_whose_every_dry_run_crashed_passes_nothing_and_ends_with_code_5",),
    ),
    # What the second campaign itself found.
    Former(
        "the last clause of a case holds, whatever its subject", "parsers/text/shell_conditions.py",
        "if subject.unknown or pattern.unknown or", "if True or", ("tests/parsers/text/test_shell_branches.py",),
    ),
    Former(
        "torchtitan's every N-th layer is counted through the whole model", "parsers/torchtitan/read.py",
        "ends = [list(accumulate(column)) for column in zip(*chunk_sizes, strict=True)]",
        "ends = [[sum(map(sum, chunk_sizes[:v])) + sum(chunk_sizes[v][: s + 1]) for v in range(len(chunk_sizes))] "
        "for s in range(len(chunk_sizes[0]))]",
        ("tests/parsers/torchtitan/test_files.py",),
    ),
    Former(
        "a layout beside another number of chunks ends with a traceback", "parsers/megatron/own_plan.py",
        "    if len(counts) != chunks:\n", "    if False:\n", ("tests/parsers/megatron/test_layouts.py",),
    ),
    # Mutants that once survived, by the tests written for them.
    Former(
        "a rank's experts read the weights of all", "cost_model/time/expert_products.py",
        "local = moe.n_experts / degrees.ep", "local = moe.n_experts * degrees.ep", (_FORMULAS,),
    ),
    Former(
        "context ranks get latent attention's keys alone", "cost_model/time/step.py",
        "(attention.qk_width + attention.v_width) / ways",
        "(attention.qk_width - attention.v_width) / ways", (_FORMULAS,),
    ),
    Former(
        "learned positions are split over TP", "cost_model/memory/statics.py",
        "replicated=table - split + positions", "replicated=table - split - positions", (_FORMULAS,),
    ),
    Former(
        "what the last LP leaves out may be the plan that reaches its bound", "pipeline_solver/bounds/generation.py",
        "self.last.bound + 1e-6 * abs(step_time)", "self.last.bound - 1e-6 * abs(step_time)",
        ("tests/pipeline_solver/test_stage_pricing.py",),
    ),
    Former(
        "lower bounds are missing from the model's file", "pipeline_solver/milp/linear_form.py",
        "elif lower or form.integer[index]:", "elif lower and form.integer[index]:",
        ("tests/pipeline_solver/test_model_files.py::test_bounds_of_columns_and_rows_are_those_that_another_reader_finds",),
    ),
    Former(
        "two machine folders of one number are one machine", "parsers/tables/worker_log.py",
        "if times > 1 or number is None", "if times > 2 or number is None",
        ("tests/parsers/tables/test_worker_log.py",),
    ),
)  # fmt: skip


def portions(share: float = 1.0) -> list[Portion]:
    """Portions of nearly equal size; a small share takes faults spread over the list."""
    count = max(1, round(len(FORMER) * share))
    taken = [at * len(FORMER) // count for at in range(count)]
    return [Portion(f"put-back-{k}", put_back, {"places": taken[k::PORTIONS]}) for k in range(min(PORTIONS, count))]


def put_back(places: Sequence[int]) -> Result:
    """Each of some faults by its place in the list, one after the other."""
    found: list[str] = []
    caught: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        place = Path(folder) / "tree"
        copy_tree(ROOT, place)
        judge = PlainJudge(place)
        for former in (FORMER[place] for place in places):
            path = place / former.file
            source = path.read_bytes()
            at = source.find(former.old.encode())
            if at < 0:
                found.append(f"{former.told}: {former.file} no longer contains `{former.old}`")
                caught[former.told] = "absent"
                continue
            end = at + len(former.old.encode())
            mutant = Mutant(former.file, source[:at].count(b"\n") + 1, at, end, former.old, former.new, former.told)
            told = judge.with_mutant(mutant, list(former.tests), spent=120.0).told
            caught[former.told] = told
            if told != "killed":
                found.append(f"{former.told}: {told} {', '.join(former.tests)}")
        judge.end()
    return {"faults": found, "caught": caught}


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of the table."""
    wrong = faults_of(list(results.values()))
    tried = sum(len(result["caught"]) for result in results.values())
    return [
        Figure(
            "former faults put back", f"{len(FORMER)} faults, each caught by the tests that cover it",
            f"{tried - len(wrong)} of {tried} caught" + (f"; {'; '.join(wrong)}" if wrong else ""),
            not wrong,
            "a line made wrong again in a copy of the tree, and the tests run on it",
        )
    ]  # fmt: skip


PART = Part(
    "former_faults", portions, figures, at_once=1, nightly=0.2,
    sources=(*PACKAGES, "benchmarks/reliability/former_faults.py", "tests"),
)  # fmt: skip
