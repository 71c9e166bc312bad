"""torchtitan's own flavours by their published sizes, and its one recompute choice for all layers."""

from __future__ import annotations

import itertools
from math import prod
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.gptneox.launcher import GptNeox
from taylor.parsers.megatron.recompute import uniform_choices as megatron_choices
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.toml_edit import TomlSource, edit_toml, value_end
from taylor.parsers.torchtitan.flavours import OWN_FLAVOURS
from taylor.parsers.torchtitan.launcher import Torchtitan
from taylor.parsers.torchtitan.recompute import checkpoint_entries, read_recompute
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan

PUBLISHED = {
    ("deepseek_v3", "16b"): 15_706_484_224,
    ("deepseek_v3", "236b"): 235_741_434_880,
    ("qwen3", "0.6b"): 596_049_920,
    ("qwen3", "1.7b"): 1_720_574_976,
    ("qwen3", "4b"): 4_022_468_096,
    ("qwen3", "14b"): 14_768_307_200,
}
"""Parameters of the weights that are published under these names; a tied table once."""


def test_flavours_have_the_parameters_of_the_published_weights() -> None:
    assert {name: total_parameters(OWN_FLAVOURS[name]) for name in PUBLISHED} == PUBLISHED
    heads = {name: (model.n_heads, model.n_kv_heads, model.qk_norm) for name, model in OWN_FLAVOURS.items()}
    assert heads["qwen3", "0.6b"] == heads["qwen3", "1.7b"] == (16, 8, True)
    assert heads["qwen3", "4b"] == (32, 8, True) and heads["qwen3", "14b"] == (40, 8, True)
    for name in ("16b", "236b"):
        model = OWN_FLAVOURS["deepseek_v3", name]
        assert model.moe is not None and (model.moe.top_k, model.moe.first_dense, model.head_dim) == (6, 1, 192)


def test_llama_4_scout_has_experts_in_every_layer_and_one_that_all_tokens_share() -> None:
    """v0.2.2 torchtitan/models/llama4/__init__.py:38-50; heads of 128, 8 of them of keys."""
    layer = [(5120, 5120), (5120, 1024), (5120, 1024), (5120, 5120), (5120, 16), (5120,), (5120,)]
    layer += [(5120, 8192), (5120, 8192), (8192, 5120)] * (16 + 1)
    ends = [(202048, 5120), (202048, 5120), (5120,)]
    model = OWN_FLAVOURS["llama4", "17bx16e"]
    assert total_parameters(model) == 48 * sum(map(prod, layer)) + sum(map(prod, ends))
    assert model.moe is not None and (model.moe.top_k, model.moe.first_dense) == (1, 0)


def test_uniform_choices_are_those_that_the_launcher_can_say() -> None:
    modes = (NONE, SELECT, FULL)
    for count in range(4):
        for some in itertools.combinations(modes, count):
            for layers in (1, 2, 5):
                full = [(FULL, 0), (FULL, layers)] if FULL in some else []
                select = [(SELECT, layers)] if SELECT in some else []
                assert list(Torchtitan().uniform_recompute(layers, some)) == full + select
                every = [(FULL, number) for number in (0, 1, 2, 3, 4, 5) if number <= layers] if FULL in some else []
                assert list(megatron_choices(layers, some)) == every + select


def test_the_nearest_plan_recomputes_everywhere_what_it_recomputes_anywhere() -> None:
    for held in ((2, 1), (2, 2)):
        for full in itertools.product(*(range(n + 1) for n in held)):
            for select in itertools.product(*(range(n - f + 1) for n, f in zip(held, full, strict=True))):
                plan = PipelinePlan({"dense": (held,)}, {FULL: (full,), SELECT: (select,)})
                near, notes = Torchtitan().nearest_plan(plan)
                whole, said = GptNeox().nearest_plan(plan)
                assert whole.recomputed(FULL) == ((held,) if any(full + select) else (full,))
                assert not whole.uses(SELECT) and bool(said) == (any(full + select) and full != held)
                if any(full):
                    wanted, entries = {FULL: (held,)}, {"mode": "full"}
                elif any(select):
                    wanted, entries = {SELECT: (held,)}, {"mode": "selective", "selective_ac_option": "op"}
                else:
                    wanted, entries = {}, {"mode": "none"}
                again = {mode: near.recomputed(mode) for mode in (FULL, SELECT) if near.uses(mode)}
                assert again == wanted and near.layers == plan.layers
                same = full in ((0,) * 2, held) and (any(full) or select in ((0,) * 2, held))
                assert (near is plan) == (not notes) == same
                assert checkpoint_entries(near) == {("activation_checkpoint", key): v for key, v in entries.items()}


def test_the_recompute_section_says_a_mode_and_each_which_layer_it_takes() -> None:
    def found(text: str) -> tuple[object, int, int]:
        notes: list[str] = []
        source = TomlSource(text, Path("job.toml"))
        mode, every = read_recompute(Fields(source.data, source.file), notes)
        return mode, every, len(notes)

    section = "[activation_checkpoint]\n"
    assert found("[model]\n") == found(section) == found(f'{section}mode = "selective"\n') == (FULL, 2, 1)
    assert found(f'{section}mode = "none"\n') == (None, 1, 0) and found(f'{section}mode = "full"\n') == (FULL, 1, 0)
    options = {"'op'": (SELECT, 1, 0), "'1'": (FULL, 1, 0), "1": (FULL, 1, 0), "'3'": (FULL, 3, 1), "12": (FULL, 12, 1)}
    for option, wanted in options.items():
        assert found(f'{section}mode = "selective"\nselective_ac_option = {option}\n') == wanted
    for option in ("'0'", "'x'", "'-1'", "123456", "'2.5'"):
        with pytest.raises(InputError, match="must be op or a whole number"):
            found(f"{section}selective_ac_option = {option}\n")
    with pytest.raises(InputError, match="must be none, selective or full"):
        found(f'{section}mode = "some"\n')


VALUES = (
    "1", "-2.5e3", "true", '"a"', "'a'", '"a\\"b"', "'a\\'", '"a # b"', "'it\\n'", '"\\\\"', '""', '"""a\n"b" # c"""',
    "'''a\n'b' '''", "[1, 2]", '["]", \'[\']', "[\n 1, # ]\n [2]\n]", "{ a = 1, b = [2] }", '{ "}" = "{" }', "[]",
    "1979-05-27T07:32:00Z", '["a\\"]", 2]',
)  # fmt: skip


def test_a_value_ends_where_toml_ends_it() -> None:
    for value in VALUES:
        for after in ("", "\n", "  # note\n", " \r\nb = 2\n"):
            text = f"a = {value}{after}"
            assert value_end(text, 4) == 4 + len(value), text
            TomlSource(text if text.endswith("\n") else f"{text}\n", Path("x.toml"))


def test_a_changed_entry_leaves_everything_else_as_it_was() -> None:
    for value, newline, last in itertools.product(VALUES, ("\n", "\r\n"), (True, False)):
        body = f"# top{newline}[a]{newline}x = {value.replace(chr(10), newline)} # kept{newline}[b.c]{newline}y = 2"
        source = TomlSource(body + (newline if last else ""), Path("x.toml"))
        for table, key in (("a", "x"), ("b.c", "y"), ("a", "new"), ("b.c", "new"), ("d", "new")):
            if key == "x" and value.startswith("{"):
                with pytest.raises(InputError, match="without changing others"):
                    edit_toml(source, {(table, key): 7})
                continue
            changed = edit_toml(source, {(table, key): 7})
            assert changed.values.keys() == source.values.keys() | {(table, key)}
            assert _at(changed.data, table)[key] == 7
            kept = {name: changed.text[slice(*place)] for name, place in changed.values.items() if name != (table, key)}
            before = {name: source.text[slice(*place)] for name, place in source.values.items() if name != (table, key)}
            assert kept == before and ("# kept" in changed.text)
            assert ("\r" in changed.text) == (newline == "\r\n") and changed.text.startswith("# top")
            assert f"{newline}{newline}{newline}" not in changed.text
            if table == "d":
                assert changed.text == f"{body}{newline}{newline}[d]{newline}new = 7{newline}"
        removed = edit_toml(source, {("b.c", "y"): None})
        assert removed.text == body[: -len("y = 2")]


def _at(data, table):
    for part in table.split("."):
        data = data[part]
    return data
