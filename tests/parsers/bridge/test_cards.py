"""The table of recipes agrees with what people read from the same lines for the verification cards."""

from __future__ import annotations

import pytest

from benchmarks.verification_cards import CARDS, Recipe
from taylor.parsers.bridge.recipes import known_recipe, recipe_names

FIELDS = {
    "seq": "model.seq_length",
    "gbs": "train.global_batch_size",
    "mbs": "train.micro_batch_size",
    "tp": "model.tensor_model_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "ep": "model.expert_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
}
STATED = {recipe.file: recipe for recipe in CARDS.values() if ":" in recipe.file}


@pytest.mark.parametrize("recipe", STATED.values(), ids=lambda recipe: recipe.file)
def test_a_recipe_has_the_sizes_that_its_lines_set(recipe: Recipe) -> None:
    known = [row for row in map(known_recipe, recipe_names()) if row is not None and row.source == recipe.file]
    if not known:
        pytest.skip("the card's line is inside a function, or of another version")
    for name, size in recipe.sizes.items():
        assert known[0].options.get(FIELDS[name], 1) == size, name
