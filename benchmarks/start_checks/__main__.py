"""Run the programs' own start-up checks on every case and record what they say.

Run from the repository's root, by a Python with torch, transformers 4.57.1, accelerate, peft, trl, datasets, omegaconf
and DeepSpeed's small requirements, with a folder of the checkouts DeepSpeed (edaa7221), LLaMA-Factory (ff6d4d12),
axolotl (067b021c), gpt-neox (ea7aefd8), verl (b178a3cd), NeMo-RL (7ea279ab) and OLMo-core (fa6c5014); the last three
need no package::

    python -m benchmarks.start_checks FOLDER

Writes tests/parsers/start_checks/record.yaml: a line a case, ``starts`` or the place and message of the refusal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import yaml

from benchmarks.start_checks.cases import read_cases
from benchmarks.start_checks.programs import PROGRAMS, refusal

RECORD = Path(__file__).parents[2] / "tests" / "parsers" / "start_checks" / "record.yaml"


def main(folder: Path, program: str | None = None) -> int:
    """Record all programs, each in a process of its own; 1 where a case is not what it says."""
    if program is not None:
        name, load = PROGRAMS[program]
        check = load(folder / name)
        said = {
            f"{case.rule} {case.how}": refusal(check, case.settings, folder / name)
            for case in read_cases()
            if case.program == program
        }
        print(json.dumps(said))
        return 0
    record, wrong = yaml.safe_load(RECORD.read_text(encoding="utf-8")), 0
    for name in PROGRAMS:
        command = [sys.executable, "-m", "benchmarks.start_checks", str(folder), name]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if run.returncode:
            print(f"{name}: its checks do not run here; its record stays")
            wrong += 1
            continue
        record[name] = json.loads(run.stdout.splitlines()[-1])
        for case, said in record[name].items():
            if (said == "starts") != case.endswith(" obeyed"):
                wrong += 1
                print(f"{name}: {case}: {said}")
    text = "# What the programs' own checks say of each case (python -m benchmarks.start_checks).\n"
    RECORD.write_text(text + yaml.safe_dump(record, width=300, sort_keys=False), encoding="utf-8")
    print(f"{sum(map(len, record.values()))} cases of {len(record)} programs; {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), *sys.argv[2:3]))
