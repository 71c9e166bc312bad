"""Damaged files of Galvatron are refused by name, or mean something: nothing ends in a traceback."""

from __future__ import annotations

import copy
import json
import random

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostSetting
from taylor.parsers.galvatron.folder import read_folders
from taylor.workflows.layerwise.measured_costs import PROVIDERS, CostRequest, answer_costs
from tests import galvatron_cases as cases
from tests.conftest import SHARED

MUTANTS = 300
PUBLISHED = [SHARED / "data/galvatron_profiles", SHARED / "data/paddle_galvatron/configs"]
STRANGE = (None, -1, 0, 1e400, "", "8", "many", [], {}, [1], {"1": 2}, True, 10**40, 0.1, "1,2,3", "-1", "0" * 5000)
KEYS = ("", "x", "layertype_9", "layernum[]_bsz1_seq1", "allreduce_size_0", "pp_size_999999999", "9" * 400, "é\u2028")


def places(tree, at=()):
    """The path of every entry of a tree."""
    found = []
    for key, value in tree.items():
        found.append((*at, key))
        if isinstance(value, dict):
            found += places(value, (*at, key))
    return found


def mutated(data, draw):
    """A copy with one entry strange, gone, doubled under another key, or its neighbour's."""
    tree = copy.deepcopy(data)
    paths = places(tree)
    *above, last = draw.choice(paths)
    parent = tree
    for key in above:
        parent = parent[key]
    act = draw.randrange(5)
    if act == 0:
        parent[last] = draw.choice(STRANGE)
    elif act == 1:
        del parent[last]
    elif act == 2:
        parent[draw.choice(KEYS)] = parent[last]
    elif act == 3:
        parent[last] = copy.deepcopy(parent[draw.choice(list(parent))])
    elif isinstance(parent[last], (int, float)):
        parent[last] = parent[last] * draw.choice((-1, 0, 1e-9, 1e9))
    return tree


def damaged(text, draw):
    """Text with some characters lost, changed or repeated."""
    at = draw.randrange(len(text))
    length = draw.randrange(1, 40)
    middle = draw.choice(("", text[at : at + length] * 2, "{" * 2000, "\x00", "\ud7ff", '"', "NaN"))
    return text[:at] + middle + text[at + length :]


def folders(tmp_path):
    hetu, paddle = (cases.write_folder(tmp_path / name, paddle=name == "paddle") for name in ("hetu", "paddle"))
    (hetu / "galvatron_config_toy.json").write_text(json.dumps(cases.STRATEGY))
    return [hetu, paddle, *(each for each in PUBLISHED if each.is_dir())]


@pytest.mark.parametrize("seed", range(6))
def test_mutants_are_named_or_mean_something(tmp_path, seed):
    draw = random.Random(seed)
    sources = [file for folder in folders(tmp_path / "good") for file in sorted(folder.glob("*.json"))]
    refused = 0
    for number in range(MUTANTS // 6):
        source = draw.choice(sources)
        folder = tmp_path / str(number)
        folder.mkdir()
        for file in source.parent.glob("*.json"):
            (folder / file.name).write_bytes(file.read_bytes())
        text = source.read_text()
        text = json.dumps(mutated(json.loads(text), draw)) if draw.random() < 0.7 else damaged(text, draw)
        (folder / source.name).write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            found = read_folders([folder])
            for provider in PROVIDERS:
                setting = CostSetting(2, 64, 4, 4096, 1024)
                world = max((cluster.ranks for cluster in found.hardware), default=8)
                answer_costs(found, CostRequest(world, setting, 12, None, provider))
        except InputError as error:
            refused += 1
            assert "; " in str(error) or ": " in str(error)
    assert refused > 10


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "", "{", "null", "{}"])
@pytest.mark.parametrize("name", ["overlap_coefficient", "sp_time_1nodes_8gpus_per_node", "memory_profiling_bf16_x",
                                  "computation_profiling_bf16_x_all", "galvatron_config_x"])  # fmt: skip
def test_a_file_that_is_no_profile_is_refused_by_name(tmp_path, name, text):
    cases.write_folder(tmp_path)
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(InputError, match=f"{name}.json"):
        read_folders([tmp_path])
