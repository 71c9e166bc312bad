"""gpt-neox's files: their model, their batch, the stages that DeepSpeed makes, and what a plan writes."""

from __future__ import annotations

import math
import re

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.gptneox.partition import stage_layers
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid, zero_grid
from taylor.register.registry import Registry
from tests.parsers.trainer.files import NEOX

PYTHIA = {
    # Biderman et al. 2023, arXiv:2304.01373: layers, hidden size, heads, and the parameters of the model card.
    "pythia-1b": (16, 2048, 8, 1, 1_011_781_632),
    "pythia-2.8b": (32, 2560, 32, 1, 2_775_208_960),
    "pythia-6.9b": (32, 4096, 32, 2, 6_857_302_016),
    "pythia-12b": (36, 5120, 40, 4, 11_846_072_320),
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "pythia.yml"
    file.write_text(NEOX, encoding="utf-8")
    return file


def changed(path, *pairs):
    text = path.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return read_config(path)


@pytest.mark.parametrize("name", PYTHIA)
def test_a_file_has_as_many_parameters_as_its_published_model(path, name):
    layers, hidden, heads, tp, parameters = PYTHIA[name]
    config = changed(
        path,
        ('"num-layers": 36', f'"num-layers": {layers}'),
        ('"hidden-size": 5120', f'"hidden-size": {hidden}'),
        ('"num-attention-heads": 40', f'"num-attention-heads": {heads}'),
        ('"model-parallel-size": 4', f'"model-parallel-size": {tp}'),
    )
    assert total_parameters(config.model) == parameters


MAMBA = {
    # Gu & Dao 2023, arXiv:2312.00752: layers, hidden size, and the parameters that state-spaces published.
    "mamba-130m": (24, 768, 129_135_360),
    "mamba-1.4b": (48, 2048, 1_372_178_432),
    "mamba-2.8b": (64, 2560, 2_768_345_600),
}


def mamba(path, layers, hidden, *pairs):
    kinds = f'"attention_config": [[["mamba"], {layers}]],\n  "mamba_inner_func_fusion": true,\n  "norm": "rmsnorm",\n'
    return changed(
        path,
        ('"num-layers": 36', f'{kinds}  "num-layers": {layers}'),
        ('"hidden-size": 5120', f'"hidden-size": {hidden}'),
        ('"num-attention-heads": 40', '"num-attention-heads": 7'),  # Ignored: arguments.py:1245.
        ('"pipe-parallel-size": 4', '"pipe-parallel-size": 0'),
        ('"model-parallel-size": 4', '"model-parallel-size": 1'),
        *pairs,
    )


@pytest.mark.parametrize("name", MAMBA)
def test_mamba_layers_have_as_many_parameters_as_the_published_models(path, name):
    layers, hidden, parameters = MAMBA[name]
    config = mamba(path, layers, hidden, ('"no-weight-tying": true', '"no-weight-tying": false'))
    rows = config.model.vocab - 50_280  # Published with the tokenizer's rows, padded to 8.
    assert total_parameters(config.model) - rows * hidden == parameters
    assert config.plan.layers == {"mamba": ((layers,),)}


def test_mamba_layers_are_refused_where_their_places_or_states_are_not_those_of_the_program(path):
    config = mamba(path, 24, 768, ('"stage": 1', '"stage": 3'))
    assert any(misfit.rule == "mamba-below-zero-3" for misfit in config.misfits)
    with pytest.raises(InputError, match="attention_config: mixes Mamba with attention"):
        changed(path, ('[["mamba"], 24]', '[["mamba", "flash"], 12]'))


def test_a_pipeline_of_mamba_layers_is_split_by_the_methods_that_find_them():
    """«transformer» is in the names of the two helpers around the layers, not in ParallelMambaResidualLayerPipe."""
    model = Registry.load().model("jamba-v0.1")
    assert sorted(stage_layers("type:transformer|mlp", model, 2)) == [0, 32]
    assert stage_layers("type:mamba", model, 2) == [16, 16]
    assert stage_layers("uniform", model, 2) == [17, 15]


def test_separate_kernels_of_mamba_are_reported(path):
    config = mamba(path, 24, 768, ('"mamba_inner_func_fusion": true', '"mamba_inner_func_fusion": false'))
    assert any("mamba_inner_func_fusion is off" in note for note in config.notes)


def test_a_gated_mlp_has_two_thirds_of_the_stated_width(path):
    config = changed(
        path,
        ('"pos-emb"', '"activation": "swiglu",\n  "intermediate_size": 32768,\n  "mlp_multiple_of": 256,\n  "pos-emb"'),
    )
    assert config.model.gated_mlp and config.model.ffn_hidden == 11008  # Llama-7B's, by configs/llama/7B.yml.


def test_degrees_batch_and_states_are_those_of_the_file(path):
    config = read_config(path)
    strategy, rules = config.strategy, config.rules
    assert (strategy.pp, strategy.tp, strategy.mbs, strategy.micro_batches, strategy.sp) == (4, 4, 4, 8, False)
    assert config.open_ranks.unit == 16 and config.batch_follows_ranks
    assert rules.parallel_optimizer and not rules.gradient_shard and rules.param_bytes == 2
    assert not rules.flash_attention and config.plan.uses(FULL)


def test_a_batch_of_all_ranks_settles_their_number(path):
    config = changed(path, ('"train_micro', '"train_batch_size": 256,\n  "train_micro'))
    assert config.open_ranks is None and config.strategy.dp == 8 and config.strategy.world_size == 128


def slow_split(weights, stages):
    """The same programme with plain loops."""
    items = len(weights)
    sums = [sum(weights[:end]) for end in range(items + 1)]
    table = {(0, 0): (0, 0, math.inf, None)}
    for part in range(1, stages + 1):
        for end in range(part, items + 1):
            for start in range(end):
                if (start, part - 1) not in table:
                    continue
                _, most, least, _ = table[start, part - 1]
                high, low = max(most, sums[end] - sums[start]), min(least, sums[end] - sums[start])
                if (end, part) not in table or high - low <= table[end, part][0]:
                    table[end, part] = (high - low, high, low, start)
    ends = [items]
    for part in range(stages, 0, -1):
        ends.append(table[ends[-1], part][3])
    return ends[::-1]


@pytest.mark.parametrize("layers", [8, 13, 44])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_stages_are_those_of_deepspeeds_programme_with_the_functions_around_the_layers(layers, stages):
    model = Registry.load().model("pythia-12b").replace(n_layers=layers)
    ends = slow_split([0, 1, *[1] * layers, 1, 0, 0], stages)
    expected = [sum(2 <= at < layers + 2 for at in range(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    split = stage_layers("type:transformer|mlp", model, stages)
    assert split == expected and sum(split) == layers


def test_a_partition_by_parameters_gives_the_end_stages_fewer_layers():
    model = Registry.load().model("redpajama-incite-3b")  # Its embedding has as many parameters as 1.6 layers.
    split = stage_layers("parameters", model, 4)
    assert sum(split) == 32 and max(split[1:3]) > min(split[0], split[3])


def test_a_method_that_is_no_pattern_of_names_settles_no_plan(path):
    config = changed(path, ('"pos-emb"', '"pipe-partition-method": "type:(a+)+$",\n  "pos-emb"'))
    assert config.plan is None and any("settles no plan" in note for note in config.notes)


def test_recompute_and_accumulation_are_written_and_nothing_else(path):
    config = read_config(path)
    write_plan(config, PipelinePlan(config.plan.layers, {FULL: zero_grid(4, 1)}), micro_batches=16)
    after = path.read_text(encoding="utf-8")
    expected = NEOX.replace('"checkpoint-activations": true', '"checkpoint-activations": False')
    assert after == expected.replace('"gradient_accumulation_steps": 8', '"gradient_accumulation_steps": 16')


def test_layers_that_no_method_places_are_refused(path):
    config = read_config(path)
    [row] = config.plan.total_layers()
    other = (row[0] + 3, row[1] - 3, *row[2:])
    layers = {next(iter(config.plan.layers)): as_grid([other])}
    with pytest.raises(InputError, match="pipe_partition_method"):
        write_plan(config, PipelinePlan(layers, {FULL: as_grid([other])}))


def test_an_even_plan_is_written_by_a_method_that_counts_the_layers_alone(path):
    config = changed(path, ('"num-layers": 36', '"num-layers": 44'))
    assert config.plan.total_layers() == ((11, 12, 11, 10),)
    layers = {next(iter(config.plan.layers)): as_grid([[11] * 4])}
    write_plan(config, PipelinePlan(layers, {FULL: as_grid([[11] * 4])}))
    assert "type:transformerlayer" in path.read_text(encoding="utf-8")
    assert read_config(path).plan.total_layers() == ((11, 11, 11, 11),)


def test_other_degrees_are_written_and_read_again(path, tmp_path):
    config = read_config(path)
    strategy = config.strategy.replace(pp=2, tp=2, dp=4, op=4, mbs=2, micro_batches=16)
    other = tmp_path / "other.yml"
    other.write_text(launcher_of(config).with_strategy(config, strategy, None, {}), encoding="utf-8")
    again = read_config(other).on_ranks(16).strategy
    assert (again.pp, again.tp, again.mbs, again.micro_batches) == (2, 2, 2, 16)


def test_a_script_runs_deepy_with_files_that_are_merged(path, tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    body = re.sub(r'  "tokenizer_type".*\n', "", NEOX)
    (folder / "model.yml").write_text(body, encoding="utf-8")
    (folder / "setup.yml").write_text('{"tokenizer-type": "HFTokenizer", "save": "out"}\n', encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("python ./deepy.py train.py -d configs model.yml setup.yml\n", encoding="utf-8")
    assert read_config(script).model.vocab == read_config(path).model.vocab == 50688
    (folder / "setup.yml").write_text('{"num_layers": 8}\n', encoding="utf-8")
    with pytest.raises(InputError, match="earlier file"):
        read_config(script)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"num-layers": 36,', "", "without a model"),
        ('"train_micro_batch_size_per_gpu": 4,', "", "no batch"),
        ('"pos-emb"', '"attention-config": [[["rwkv"], 36]],\n  "pos-emb"', "not modelled"),
        ('"pipe-parallel-size": 4', '"pipe-parallel-size": 64', "36 layers"),
        ('"hidden-size": 5120', '"hidden-size": 5121', "multiple"),
    ],
)
def test_a_part_or_another_kind_of_layer_is_refused_by_its_reason(path, old, new, told):
    with pytest.raises(InputError, match=told):
        changed(path, (old, new))
