"""slime's scripts: the training half, with the model of a file that they take in."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.register.model import DENSE, MOE
from tests.parsers.swift.files import SLIME, SLIME_MODEL


@pytest.fixture
def script(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text(SLIME_MODEL, encoding="utf-8")
    path = tmp_path / "run-small.sh"
    path.write_text(SLIME, encoding="utf-8")
    return path


def changed(script, old, new):
    text = script.read_text(encoding="utf-8")
    assert old in text
    script.write_text(text.replace(old, new), encoding="utf-8")
    return script


def test_the_training_half_is_read_with_the_model_that_it_takes_in(script):
    config = read_config(script)
    strategy = config.strategy
    assert (config.launcher, strategy.world_size, strategy.dp, strategy.op) == ("slime", 16, 4, 4)
    assert config.plan.layers == {DENSE: ((2, 0),), MOE: ((2, 4),)}
    assert config.rules.parallel_optimizer and config.rules.param_bytes == 2 and not config.rules.gathers_tokens


def test_a_step_has_the_samples_of_a_roll_out_over_its_steps(script):
    config = read_config(script)
    assert config.strategy.global_batch == 32 * 8 // 4 and config.rules.seq_length == 8192


def test_micro_batches_by_tokens_are_named_and_not_guessed(script):
    unmodelled = {flag.name: flag.why for flag in read_config(script).unmodelled}
    assert "one sample of the longest length" in unmodelled["--max-tokens-per-gpu"]
    assert "roll-outs share the devices" in unmodelled["--colocate"]
    assert "--rollout-batch-size" not in unmodelled


def test_a_given_variable_changes_the_loop_that_lists_the_layers(script):
    with started(ShellStart(None, {"MODEL_ARGS_NUM_LAYERS": "6"})):
        config = read_config(script)
    assert config.plan.layers == {DENSE: ((2, 0),), MOE: ((1, 3),)}


def test_the_file_of_a_model_alone_starts_nothing(script):
    with pytest.raises(InputError, match="sets a model's flags for another script.*starts none itself"):
        read_config(script.parent / "models" / "small.sh")


def test_a_command_that_a_missing_backslash_cuts_is_no_training(script):
    with pytest.raises(InputError, match=r"no command has train\.py and a model's flags"):
        read_config(changed(script, "   --colocate \\\n", "   --colocate\n"))


def test_layers_of_a_specification_come_from_the_checkpoints_name(script):
    changed(script, "--prompt-data", "--hf-checkpoint ${BASE}/Qwen3-Next-80B-A3B-Thinking --prompt-data")
    model = script.parent / "models" / "small.sh"
    text = SLIME_MODEL.replace("--swiglu", '--swiglu --spec "slime_plugins.models.qwen3_next" "get_qwen3_next_spec"')
    model.write_text(text.replace("$NLAYERS\n", "48\n").replace("hidden-size 1024", "hidden-size 2048"))
    config = read_config(script)
    assert config.model.name == "qwen3-next-80b-a3b"
    with pytest.raises(InputError, match="--num-layers: is 48 in qwen3-next-80b-a3b"):
        model.write_text(text.replace("hidden-size 1024", "hidden-size 2048"))
        read_config(script)


def test_a_plan_is_written_into_the_script_and_not_into_the_model(script):
    config = read_config(script)
    plan = PipelinePlan(config.plan.layers, {FULL: as_grid([[2, 2]])})
    write_plan(config, plan)
    assert (script.parent / "models" / "small.sh").read_text(encoding="utf-8") == SLIME_MODEL
    text = script.read_text(encoding="utf-8")
    assert text.replace("method block", "method uniform").replace("num-layers 2\n", "num-layers 1\n") == SLIME
    assert read_config(script).plan.recompute[FULL] == ((2, 2),)
