"""Damaged scripts, strategy files and tuner files are refused by name, or mean something: no traceback."""

from __future__ import annotations

import json
import random

import pytest

from taylor.base.errors import InputError
from taylor.parsers.galvatron.strategy_file import read_strategy, strategy_text, write_strategy
from taylor.parsers.paddlenlp.auto_tuner import read_tuner_file
from taylor.parsers.read import read_config
from taylor.workflows.layerwise.layerwise_script import layerwise_script
from tests import galvatron_cases as cases
from tests.parsers.galvatron.test_hostile import damaged, mutated
from tests.parsers.paddlenlp.test_auto_tuner import ARGUMENTS, HISTORY, JOB
from tests.parsers.paddlenlp.test_scripts import SCRIPT

WORDS = ("0", "-1", "1e9", "999999999999", "$UNSET", "''", '"', "true", "(", "\\", "2,2", "x" * 500, "\x00", "é")


def worded(text, draw):
    """Text with one of its words another, or gone."""
    words = text.split(" ")
    words[draw.randrange(len(words))] = draw.choice((*WORDS, ""))
    return " ".join(words)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_mutants_are_named_or_mean_something(tmp_path, seed):
    draw = random.Random(seed)
    hetu, paddle, script = (tmp_path / name for name in ("hetu.json", "fine_grained_config.json", "train.sh"))
    hetu.write_text(json.dumps(cases.STRATEGY))
    write_strategy(read_strategy(hetu).plan, "paddle", paddle)
    script.write_text(SCRIPT)
    fine = layerwise_script(paddle, script, script)
    good = {
        "hetu.json": json.dumps(cases.STRATEGY), "fine_grained_config.json": paddle.read_text(), "train.sh": SCRIPT,
        "fine.sh": fine, "job.json": json.dumps(JOB), "arguments.json": json.dumps(ARGUMENTS), "history.csv": HISTORY,
    }  # fmt: skip
    refused = 0
    for _ in range(50):
        for name, text in good.items():
            (tmp_path / name).write_text(text)
        name = draw.choice(list(good))
        if name.endswith(".json") and draw.random() < 0.7:
            text = json.dumps(mutated(json.loads(good[name]), draw))
        else:
            text = draw.choice((damaged, worded))(good[name], draw)
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            if name in ("hetu.json", "fine_grained_config.json"):
                plan = read_strategy(path).plan
                strategy_text(plan, "hetu"), strategy_text(plan, "paddle")
                layerwise_script(path, tmp_path / "train.sh", tmp_path / "train.sh")
                read_config(tmp_path / "fine.sh")
            elif path.suffix == ".sh":
                read_config(path)
                layerwise_script(paddle, path, path)
            else:
                read_tuner_file(path)
        except InputError as error:
            refused += 1
            assert ": " in str(error)
    assert refused > 10
