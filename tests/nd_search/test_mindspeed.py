"""Start rules of MindSpeed and MindSpeed-LLM: each broken once and refused by name, each obeyed once and accepted.

What the programs themselves do with the same flags is recorded in mindspeed.yaml, which
`python -m benchmarks.mindspeed` writes by running their classes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from benchmarks.mindspeed.cases import BASES, Case, launch, merged, read_cases
from taylor.base.errors import InputError
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.mindspeed.table import START_RULES
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.nd_search.stated import broken_rules
from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from taylor.workflows.statement.legality import require_legal

DEVICE = Registry.load(None).device("ascend-910b")
RECORD = yaml.safe_load(Path(__file__).with_name("mindspeed.yaml").read_text(encoding="utf-8"))
BESIDE = yaml.safe_load(Path(__file__).with_name("neighbours.yaml").read_text(encoding="utf-8"))
NAMES = {rule.name for rule in START_RULES}
CHECKED_LATER = {"moe-sp-with-tp"}
"""Rules that the programs check as they build the model, which the recorded runs do not."""

CHECKED_FIRST = {
    "layout-without-recompute-in-bubble": "recompute-in-bubble-needs-virtual-stages",
    "layout-without-recompute-in-advance": "recompute-in-advance-needs-virtual-stages",
    "balanced-moe-experts-needs-moe-grouped-gemm": "moe-fb-overlap-needs-moe-grouped-gemm",
    "balanced-moe-experts-dispatcher": "moe-fb-overlap-dispatcher",
}
"""Rules that no launch breaks alone: another, which the programs come upon before, is broken with them."""


def by_rule() -> list[Case]:
    """One case a rule, of either program in turn where both check it."""
    found: dict[str, list[Case]] = {}
    for case in read_cases():
        found.setdefault(case.rule, []).append(case)
    return [of_rule[number % len(of_rule)] for number, of_rule in enumerate(found.values())]


def broken(folder: Path, program: str, words: list[str]) -> set[str]:
    config = read_config(launch(program, words, folder))
    assert config.flags.programs == {program}
    return {rule.name for rule in broken_rules(config, DEVICE)} - CHECKED_LATER


def test_every_start_rule_has_a_case() -> None:
    assert {case.rule for case in by_rule()} >= NAMES


@pytest.mark.parametrize("case", by_rule(), ids=lambda case: case.rule)
def test_a_start_rule_is_broken_once_and_refused_by_name_and_obeyed_once_and_accepted(
    case: Case, tmp_path: Path
) -> None:
    assert case.rule in broken(tmp_path, case.program, [*case.words(breaking=True), *case.read.split()])
    assert broken(tmp_path, case.program, [*case.words(breaking=False), *case.read.split()]) == set()


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "starts"])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("program", BESIDE)
def test_launches_beside_the_cases_start_here_where_they_start_there(
    program: str, base: str, refused: bool, tmp_path: Path
) -> None:
    wrong = []
    for launched in BESIDE[program][base]["refused" if refused else "starts"]:
        changes, _, read = launched.partition(" // ")
        rules = broken(tmp_path, program, [*merged(BASES[base], changes), *read.split()])
        if bool(rules) != refused:
            wrong.append((changes, rules))
    assert not wrong


def test_the_programs_refuse_each_case_in_the_file_that_its_rule_names() -> None:
    sources = {rule.name: rule.source for rule in LEGALITY_RULES}
    untested = set()
    for rule in NAMES:
        for said in RECORD[rule].values():
            stage, place, *_ = said.split()
            if stage in ("pre", "post", "validate"):
                assert Path(place.rpartition(":")[0]).name in sources[CHECKED_FIRST.get(rule, rule)], (rule, said)
            else:
                untested.add(rule)
    assert untested == {
        "dualpipev-without-custom-fsdp", "muon-without-fsdp", "enable-elastic-training-without-use-custom-fsdp",
        "reuse-fp32-param-of-core-models",
    }  # fmt: skip


def test_a_refusal_names_flag_source_and_cure_and_may_be_waived(tmp_path: Path) -> None:
    words = merged(BASES["dense"], "--schedules-method dualpipev --context-parallel-size 2")
    config = read_config(launch("MindSpeed", words, tmp_path))
    with pytest.raises(InputError) as refused:
        require_legal(config, DEVICE)
    for part in (
        "--context-parallel-size: breaks the rule dualpipev-without-context-parallel", "(found 2)",
        "nearest legal: --context-parallel-size 1", "dualpipev_feature.py:34",
        "--allow_illegal dualpipev-without-context-parallel plans the job anyway",
    ):  # fmt: skip
        assert part in str(refused.value)
    noted = require_legal(config, DEVICE, ["dualpipev-without-context-parallel"]).notes
    assert any("does not start this job" in note for note in noted)


def test_a_flag_at_fault_is_named_before_a_layout_that_is_wrong_too(tmp_path: Path) -> None:
    words = merged(BASES["dense"], "--schedules-method dualpipev --pipeline-model-parallel-layout Et*4")
    with pytest.raises(InputError, match="breaks the rule dualpipev-without-layout"):
        require_legal(read_config(launch("MindSpeed", words, tmp_path)), DEVICE)


@pytest.mark.parametrize(
    ("base", "more", "kept"),
    [
        ("dense", "--schedules-method dualpipev", lambda row: row.cp == 1),
        ("experts", "--moe-fb-overlap --expert-tensor-parallel-size 1 --schedules-method dualpipev",
         lambda row: row.ep > 1),
        ("dense", "--tp-2d --tp-x 2 --tp-y 2 --tensor-model-parallel-size 4 !sequence-parallel",
         lambda row: row.tp == 4),
    ],
)  # fmt: skip
def test_a_search_asks_the_rules_that_degrees_decide_of_every_strategy(
    tmp_path: Path, base: str, more: str, kept: Callable[[object], bool]
) -> None:
    config = read_config(launch("MindSpeed", merged(BASES[base], more), tmp_path))
    options = SearchOptions(search=("dp", "tp", "pp", "ep", "cp"), disabled_rules=("sp-with-tp",), fix={"sp": 0})
    if base == "experts":
        options = SearchOptions(search=("dp", "tp", "pp", "ep", "cp"))
    table = search(config, DEVICE, options).candidates
    assert len(table) and all(kept(table.row(number)) for number in range(len(table)))


def test_a_search_refuses_what_no_strategy_mends_by_the_name_of_its_rule(tmp_path: Path) -> None:
    config = read_config(launch("MindSpeed", merged(BASES["dense"], "--reuse-fp32-param --fp16 !bf16"), tmp_path))
    with pytest.raises(InputError, match="reuse-fp32-param-needs-bf16"):
        search(config, DEVICE, SearchOptions())


@pytest.mark.parametrize(("micro_batches", "legal"), [(13, True), (12, False)])
def test_dualpipev_starts_with_the_micro_batches_that_its_way_there_and_back_needs(
    tmp_path: Path, micro_batches: int, legal: bool
) -> None:
    more = f"--schedules-method dualpipev --global-batch-size {micro_batches} --pipeline-model-parallel-size 7 "
    words = merged(BASES["dense"], f"{more} --num-layers 28 --tensor-model-parallel-size 1")
    config = read_config(launch("MindSpeed", words, tmp_path, world=7))
    assert (broken_rules(config, DEVICE) == ()) == legal


def test_a_launch_without_mindspeeds_flags_is_asked_none_of_its_rules(tmp_path: Path) -> None:
    path = tmp_path / "plain.sh"
    words = [word for word in merged(BASES["dense"], "--defer-embedding-wgrad-compute") if word != "--use-fused-swiglu"]
    path.write_text(f"torchrun --nproc_per_node 16 pretrain_gpt.py {' '.join(words)}\n", encoding="utf-8")
    config = read_config(path)
    assert not config.flags.programs and not NAMES & {rule.name for rule in broken_rules(config, DEVICE)}


@pytest.mark.parametrize(
    ("comment", "words", "refused"),
    [
        ("", "--schedules-method dualpipev --context-parallel-size 2", True),
        ("# MindSpeed core_r0.12.1", "--schedules-method dualpipev --context-parallel-size 2", True),
        ("# checkout MindSpeed core_r0.8.0", "--schedules-method dualpipev --context-parallel-size 2", False),
        ("# checkout MindSpeed core_r0.8.0", "--sparse-mode 4", True),  # checked since 1.0.0
        ("# MindSpeed core_r0.12.1", "--qad-enable --qad-teacher-load teacher", True),
        ("# checkout MindSpeed core_r0.8.0", "--qad-enable --qad-teacher-load teacher", False),
    ],
)
def test_checks_that_came_later_refuse_no_script_of_an_earlier_branch(
    comment: str, words: str, refused: bool, tmp_path: Path
) -> None:
    path = launch("MindSpeed", merged(BASES["dense"], words), tmp_path)
    path.write_text(f"{comment}\n{path.read_text()}")
    assert bool(broken_rules(read_config(path), DEVICE)) == refused
