"""The known launchers: one line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taylor.base.files import form_of, read_text
from taylor.base.plugins import Loaded
from taylor.parsers.late import Late, Launchers, forms_of
from taylor.parsers.launcher import Launcher
from taylor.parsers.plugged import loaded_launchers, recognises
from taylor.parsers.training_config import TrainingConfig

YAML = (".yaml", ".yml")

LAUNCHERS: Sequence[Launcher] = Launchers(
    Late(
        "mindformers.launcher:MindFormers",
        "mindformers",
        YAML,
        r"(parallel|pretrained_model_dir|config)\s*:",
        ("mindformers",),
    ),
    Late("megatron.launcher:Megatron", "megatron", (".sh",), r"--", ("megatron-layout", "mindspeed-list")),
    Late(
        "swift.launcher:Swift", "swift", (".sh", *YAML), r"megatron|^(micro_batch_size|tensor_model_parallel_size)\s*:"
    ),
    Late("slime.launcher:Slime", "slime", (".sh",), r"--"),
    Late("pai.launcher:Pai", "pai", (".sh",), "MEGATRON_PATCH_PATH="),
    Late(
        "mlperf.launcher:Mlperf",
        "mlperf",
        (".sh",),
        r"(DGX|MLPERF_|NVTE_|FP[48]|CUDA_GRAPH|_MODEL_PARALLEL|MINIBS|MODEL_SIZE|_cont_mounts)\w*=",
    ),
    Late("bridge.launcher:Bridge", "bridge", YAML, "ConfigContainer"),
    Late("bridge.launcher:BridgeRecipe", "bridge-script", (".sh",), r"--recipe|--model_recipe_name|-mr\b|--mode\b"),
    Late("torchtitan.launcher:Torchtitan", "torchtitan", (".toml",), r"\[model\]", ("torchtitan", "torch-actions")),
    Late("torchtitan.script_launcher:TorchtitanScript", "torchtitan-script", (".sh",), r"torchtitan|run_train\.sh"),
    Late("flagscale.launcher:FlagScale", "flagscale", YAML, r"^\ufeff?(experiment|system)\s*:"),
    Late("paddlenlp.launcher:PaddleNLP", "paddlenlp", (".sh",), "_parallel_degree"),
    Late("primus.launcher:Primus", "primus", YAML, r"^\ufeff?modules\s*:"),
    Late("primus.launcher:PrimusRecipe", "primus-bridge", YAML, r"^\ufeff?modules\s*:"),
    Late("primus.launcher:PrimusTorchtitan", "primus-torchtitan", YAML, r"^\ufeff?modules\s*:"),
    Late("verl.launcher:Verl", "verl", (".sh",), r"actor_rollout_ref|\bverl\b"),
    Late("verl.launcher:VerlSharded", "verl-fsdp", (".sh",), r"actor_rollout_ref|\bverl\b"),
    Late("nemo_rl.launcher:NemoRl", "nemo_rl", YAML, r"^(policy|defaults)\s*:"),
    Late("nemo_rl.launcher:NemoRlSharded", "nemo_rl-dtensor", YAML, r"^(policy|defaults)\s*:"),
    Late("roll.launcher:Roll", "roll", YAML, r"^(actor_train|sft_train|student_train|student)\s*:"),
    Late("roll.launcher:RollSharded", "roll-fsdp2", YAML, r"^(actor_train|sft_train|student_train|student)\s*:"),
    Late("areal.launcher:Areal", "areal-fsdp", YAML, r"^actor\s*:"),
    Late("llamafactory.launcher:LlamaFactory", "llamafactory", YAML, r"^(model_name_or_path\s*:|model\s*:[ \t]*\S)"),
    Late("axolotl.launcher:Axolotl", "axolotl", YAML, r"^base_model\s*:"),
    Late("automodel.launcher:Automodel", "automodel", YAML, r"^(recipe|step_scheduler|inference|mining)\s*:"),
    Late(
        "gptneox.launcher:GptNeox",
        "gpt-neox",
        (".yml", ".yaml"),
        r"(pipe|model)[-_]parallel[-_]size|gpt[-_]j[-_]residual|no[-_]weight[-_]tying|checkpoint[-_]activations|pos[-_]emb",
    ),
    Late("gptneox.launcher:GptNeoxScript", "gpt-neox-script", (".sh",), r"deepy\.py"),
    Late("swift.trainer_launcher:SwiftTrainer", "swift-trainer", (".sh",), r"swift"),
    Late("swift.trainer_launcher:SwiftTrainerYaml", "swift-trainer-yaml", YAML, r"^(tuner_type|train_type)\s*:"),
    Late("trainer_script.trl:TrlScript", "trl", (".sh",), r"\btrl\b|scripts/|open_r1/"),
    Late("trainer_script.trl:TrlYaml", "trl-yaml", YAML, r"^per_device_train_batch_size\s*:"),
    Late("trainer_script.launcher:TrainerScript", "trainer", (".sh",), r"per[-_]device[-_]train[-_]batch"),
    Late("nanotron.launcher:Nanotron", "nanotron", YAML, r"(batch_accumulation_per_replica|tp_mode|pp_engine)[ \t]*:"),
    Late("olmo.launcher:OlmoScript", "olmo", (".sh",), "src/scripts/"),
    Late("huggingface.launcher:HuggingFace", "huggingface", (".json",), "model_type"),
    Late("huggingface.registered:RegisteredModel", "registered", (".json",), "registered_model"),
    Late("olmo.launcher:OlmoConfig", "olmo-config", (".json",), "train_module"),
    further=lambda: [each.value for each in plugged_launchers() if each.value is not None],
)
"""A line each; a launcher that is imported anyway may stand for itself, and those of plug-ins do."""


def plugged_launchers() -> tuple[Loaded[Launcher], ...]:
    """The launchers of plug-ins, those included that do not load."""
    shipped = _known().shipped
    return loaded_launchers(tuple(entry.name for entry in shipped), forms_of(shipped))


def _known() -> Launchers:
    """The launchers with what is known of them before they are imported."""
    return LAUNCHERS if isinstance(LAUNCHERS, Launchers) else Launchers(*LAUNCHERS)


def launcher_of(config: TrainingConfig) -> Launcher:
    """The launcher that a configuration's file belongs to.

    Raises
    ------
    KeyError
        When none has its name.
    """
    found = _known().named(config.launcher)
    if found is None:
        raise KeyError(config.launcher)
    return found


def speaking_for(config: TrainingConfig) -> Launcher:
    """The launcher whose files a plan of the configuration has to be said in: that of its framework, where its own file
    describes a training and starts none."""
    own = launcher_of(config)
    if own.starts_training:
        return own
    return _known().named(config.rules.framework.name) or own


def launchers_for(path: Path) -> list[Launcher]:
    """The launchers whose files end as this path does."""
    return _known().for_suffix(form_of(path))


def reading(path: Path) -> list[Launcher]:
    """The launchers to read a file with: those that recognise it or, where none does or one alone has its suffix, those
    whose files end as it does.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    known, suffix = _known(), form_of(path)
    if known.count_of(suffix) > 1 and (found := recognising(path)):
        return found
    return known.for_suffix(suffix)


def recognising(path: Path) -> list[Launcher]:
    """The launchers whose files end as this path does, and that know the text as one of theirs.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    known, suffix = _known(), form_of(path)
    if not known.count_of(suffix):
        return []
    text = read_text(path)
    # A file of a launcher with marks of its own may look like another's too.
    found = [launcher for launcher in known.for_suffix(suffix, text) if recognises(launcher, path, text)]
    found = [launcher for launcher in found if launcher.has_own_marks] or found
    # One that derives from another has its options, and a start of its own.
    return [
        one for one in found if not any(type(each) is not type(one) and isinstance(each, type(one)) for each in found)
    ]


def is_training_file(path: Path) -> bool:
    """Return whether a file is one of a launcher's, by its suffix, and by its text where that is common to other files.

    Raises
    ------
    InputError
        When such a file cannot be read.
    """
    return any(launcher.suffix_decides for launcher in launchers_for(path)) or bool(recognising(path))


def config_suffixes() -> tuple[str, ...]:
    """The suffixes that only training files have, in lower case."""
    deciding = [launcher for launcher in LAUNCHERS if launcher.suffix_decides]
    return tuple(dict.fromkeys(suffix for launcher in deciding for suffix in launcher.suffixes))


def form_names() -> tuple[str, ...]:
    """Names of all launchers' export forms, known without importing any launcher."""
    return _known().form_names()
