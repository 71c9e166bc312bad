"""Compare the start rules with what MindSpeed and MindSpeed-LLM do: every rule broken and obeyed, and at random.

Needs three checkouts and torch:

    python -m benchmarks.mindspeed --megatron PATH --mindspeed PATH --mindspeed_llm PATH

Megatron-LM at core_v0.12.1, MindSpeed at 028de58c, MindSpeed-LLM at c77308a1. Writes tests/nd_search/mindspeed.yaml,
and what the programs do of the launches beside these cases (one flag less, one value moved) into neighbours.yaml there.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.mindspeed.cases import BASES, CASES, WORLD, launch, merged, neighbours, of_program, read_cases
from benchmarks.mindspeed.own_checks import Program, Refusal
from taylor.base.errors import InputError
from taylor.nd_search.stated import broken_rules
from taylor.parsers.read import read_config
from taylor.register.registry import Registry

RECORD = Path(__file__).parents[2] / "tests" / "nd_search" / "mindspeed.yaml"
NEIGHBOURS = RECORD.with_name("neighbours.yaml")
CHECKED_LATER = {"moe-sp-with-tp"}
"""Rules that the programs check as they build the model."""
RANDOM, SEED = 3_000, 20_260_728


def main() -> None:
    """Compare the table with the programs' own classes, and sweep their published scripts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("megatron", "mindspeed", "mindspeed_llm"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--count", type=int, default=RANDOM, help="random launches a program")
    parser.add_argument("--program", help="one of the two alone, in this process")
    args = parser.parse_args()
    if args.program is None:
        found = {}
        for program in ("MindSpeed", "MindSpeed-LLM"):
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.mindspeed", *sys.argv[1:], "--program", program],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            found[program] = json.loads(run.stdout.splitlines()[-1])
        _report(found)
        return
    llm = args.mindspeed_llm if args.program == "MindSpeed-LLM" else None
    own = Program(args.megatron, args.mindspeed, llm)
    found = {"cases": _run_cases(own, args.program), "random": _run_random(own, args.program, args.count)}
    print(json.dumps({**found, "neighbours": _run_neighbours(own, args.program)}))


def _shown(refusal: Refusal | None) -> str:
    return "starts" if refusal is None else f"{refusal.stage} {refusal.place} {refusal.message.splitlines()[0]}"[:220]


def _run_cases(own: Program, program: str) -> dict[str, dict[str, str]]:
    return {
        case.rule: {
            how: _shown(own.refusal(of_program(program, case.words(breaking=how == "broken")), WORLD))
            for how in ("broken", "obeyed")
        }
        for case in read_cases()
        if case.program == program
    }


def _run_neighbours(own: Program, program: str) -> dict[str, dict[str, list[str]]]:
    """Launches beside the cases by base and verdict; those that Megatron-LM's own checks refuse are left out.

    So are those that state no whole job. Flags of later releases, for the reader, stand behind ``//``.
    """
    choices = {name: each.choices for each in own.parser._actions for name in each.option_strings if each.choices}
    found: dict[str, dict[str, list[str]]] = {base: {"refused": [], "starts": []} for base in BASES}
    seen: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory() as folder:
        for case in read_cases():
            beside = [*neighbours(case.broken, choices), *neighbours(case.obeyed, choices)]
            for changes in beside if case.program == program else ():
                words = merged(BASES[case.base], changes)
                if tuple(words) in seen:
                    continue
                seen.add(tuple(words))
                refusal = own.refusal(of_program(program, words), WORLD)
                if refusal is not None and refusal.stage in ("megatron", "parser"):
                    continue
                try:
                    read_config(launch(program, [*words, *case.read.split()], Path(folder)))
                except InputError:
                    continue
                text = changes + (f" // {case.read}" if case.read else "")
                found[case.base]["starts" if refusal is None else "refused"].append(text)
    return found


def _run_random(own: Program, program: str, count: int) -> dict[str, list[str]]:
    """Launches whose verdict differs, by what differs; those that Megatron-LM's own checks refuse are left out.

    All cases come first, then `count` launches of up to three cases' flags.
    """
    rng = random.Random(SEED)
    cases = [case for case in read_cases() if case.program == program]
    device = Registry.load(None).device("ascend-910b")
    found: dict[str, list[str]] = {
        "compared": [],
        "refused": [],
        "unread": [],
        "let through": [],
        "refused untruly": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * len(cases) + count):
            if number < 2 * len(cases):
                case = cases[number // 2]
                words = case.words(breaking=number % 2 == 0)
            else:
                drawn = rng.sample(cases, rng.randint(1, 3))
                changes = " ".join(case.broken if rng.random() < 0.4 else case.obeyed for case in drawn)
                words = merged(BASES[drawn[0].base], changes)
            refusal = own.refusal(of_program(program, words), WORLD)
            if refusal is not None and refusal.stage in ("megatron", "parser"):
                continue
            text = " ".join(words)
            found["compared"].append("")
            found["refused"] += [""] * (refusal is not None)
            try:
                rules = [rule.name for rule in broken_rules(read_config(launch(program, words, Path(folder))), device)]
            except InputError as error:
                found["unread"].append(f"{error} || {text}")
                continue
            if refusal is not None and not rules:
                found["let through"].append(f"{_shown(refusal)} || {text}")
            elif refusal is None and set(rules) - CHECKED_LATER:
                found["refused untruly"].append(f"{rules} || {text}")
    return found


def _report(found: dict[str, dict]) -> None:  # type: ignore[type-arg]
    record: dict[str, dict[str, str]] = {}
    untested = {
        rule for rule, entry in yaml.safe_load(CASES.read_text(encoding="utf-8")).items() if "untested" in entry
    }
    wrong = 0
    for program, result in found.items():
        for rule, how in result["cases"].items():
            good = how["obeyed"] == "starts" and how["broken"].split()[0] not in ("starts", "parser", "megatron")
            if not good and rule not in untested and rule != "sequence-by-2cp-tp":
                wrong += 1
                print(f"{program}: {rule}: broken: {how['broken']}; obeyed: {how['obeyed']}")
            record.setdefault(rule, {})[program] = how["broken"]
        lists = result["random"]
        print(
            f"{program}: {len(result['cases'])} rules; {len(lists['compared'])} launches compared, "
            f"{len(lists['refused'])} refused"
        )
        for kind in ("unread", "let through", "refused untruly"):
            print(f"  {kind}: {len(lists[kind])}")
            for line in lists[kind][:12]:
                print(f"    {line[:1500]}")
    text = "# What the programs' own classes say of each case that breaks a rule (python -m benchmarks.mindspeed).\n"
    RECORD.write_text(text + yaml.safe_dump(record, width=300, sort_keys=True), encoding="utf-8")
    text = "# What the programs' own classes do of launches beside the cases (python -m benchmarks.mindspeed).\n"
    beside = {program: result["neighbours"] for program, result in found.items()}
    NEIGHBOURS.write_text(text + yaml.safe_dump(beside, width=300, sort_keys=True), encoding="utf-8")
    number = sum(len(texts) for bases in beside.values() for verdicts in bases.values() for texts in verdicts.values())
    print(f"{wrong} cases differ; {number} launches beside them recorded")


if __name__ == "__main__":
    main()
