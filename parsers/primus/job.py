"""A Primus experiment of the Megatron backend as a launch by Megatron's flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.mindspeed import telltales
from taylor.parsers.megatron.section_adapters import section_adapters
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.primus.experiment import Experiment
from taylor.parsers.primus.hybrid import REPLACED, own_stack, stack_flags
from taylor.parsers.primus.layer_ids import GRANULARITY, IDS, layer_ids
from taylor.parsers.primus.vocabulary import named_vocabulary
from taylor.parsers.text.flag_edit import Setting, has_setting, yaml_value
from taylor.parsers.text.flags import WORLD_FLAGS, Flag, Flags
from taylor.parsers.text.shell_words import Char, Word
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath
from taylor.register.adapters import Adapters

NAME = "primus"
OPTIONS = "options.yaml"
GPUS, NODES = 8, 1
"""Ranks a node and nodes where ``GPUS_PER_NODE`` and ``NNODES`` are not set (fd1eeabb examples/run_pretrain.sh:73, 75,
runner/primus-cli-direct.sh:471, 480)."""
_SWITCHED_OFF = {
    "add_bias_linear": "disable-bias-linear",
    "add_position_embedding": "no-position-embedding",
    "align_grad_reduce": "no-align-grad-reduce",
    "align_param_gather": "no-align-param-gather",
    "apply_rope_fusion": "no-rope-fusion",
    "barrier_with_L1_time": "no-barrier-with-level-1-timing",
    "bert_binary_head": "bert-no-binary-head",
    "bias_dropout_fusion": "no-bias-dropout-fusion",
    "bias_gelu_fusion": "no-bias-gelu-fusion",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion",
    "clone_scatter_output_in_embedding": "no-clone-scatter-output-in-embedding",
    "manual_gc_eval": "no-manual-gc-eval",
    "tp_comm_bulk_dgrad": "no-tp-comm-bulk-dgrad",
    "tp_comm_bulk_wgrad": "no-tp-comm-bulk-wgrad",
    "tp_comm_overlap_ag": "no-tp-comm-overlap-ag",
    "tp_comm_overlap_rs": "no-tp-comm-overlap-rs",
    "tp_comm_split_ag": "no-tp-comm-split-ag",
    "tp_comm_split_rs": "no-tp-comm-split-rs",
    "check_for_nan_in_loss_and_grad": "no-check-for-nan-in-loss-and-grad",
    "ckpt_fully_parallel_save": "no-ckpt-fully-parallel-save",
    "create_attention_mask_in_dataloader": "no-create-attention-mask-in-dataloader",
    "data_sharding": "no-data-sharding",
    "enable_gloo_process_groups": "disable-gloo-process-groups",
    "enable_one_logger": "no-one-logger",
    "fp8_wgrad": "no-fp8-wgrad",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "gradient_reduce_div_fusion": "no-gradient-reduce-div-fusion",
    "log_loss_scale_to_tensorboard": "no-log-loss-scale-to-tensorboard",
    "masked_softmax_fusion": "no-masked-softmax-fusion",
    "mmap_bin_files": "no-mmap-bin-files",
    "muon_split_qkv": "muon-no-split-qkv",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
    "perform_initialization": "no-initialization",
    "pin_cpu_grads": "no-pin-cpu-grads",
    "pin_cpu_params": "no-pin-cpu-params",
    "scatter_gather_tensors_in_pipeline": "no-scatter-gather-tensors-in-pipeline",
    "torch_fsdp2_reshard_after_forward": "torch-fsdp2-no-reshard-after-forward",
    "use_tokenizer_model_from_checkpoint_args": "no-use-tokenizer-model-from-checkpoint-args",
}
"""Options that Megatron's flags switch off, by the flag.

NVIDIA/Megatron-LM d3528a21, which Primus names (third_party/Megatron-LM): megatron/training/arguments.py:1989-2914
(``store_false``), megatron/core/transformer/transformer_config.py:176, 542, 867,
megatron/core/model_parallel_config.py:83, 184-221, megatron/training/config/common_config.py:80, 109,
training_config.py:81, 252, 285, 405, 436.
"""
_RENAMED = {
    "fp8": "fp8-format",
    "fp4": "fp4-format",
    "fp4_param": "fp4-param-gather",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}
"""Options under another name than their flag (d3528a21 megatron/core/transformer/transformer_config.py:498, 579, 589,
megatron/core/model_parallel_config.py:335)."""
_ONE_WORD = ("moe_layer_freq", "linear_attention_freq")
"""Lists that a flag takes as one text."""
_JOINED = ("window_size",)
"""Lists that a flag takes as numbers with commas."""
_IGNORED = ("mamba_expand",)
"""Options whose name no parser of Primus' Megatron has, and MindSpeed's has."""
_ZERO_BUBBLE = "patch_zero_bubble"
_OF_ZERO_BUBBLE = frozenset(
    {
        "enable_zero_bubble", "zero_bubble_v_schedule", "zero_bubble_max_pending_backward", "enable_1f1b_v",
        "zero_bubble_v_schedule_mem_setup", "zero_bubble_pipeline_timers_start_iter", "enable_zb_runtime",
        "zero_bubble_pipeline_timers_end_iter", "zero_bubble_adaptive_memory_limit_percentile", "num_seq_splits",
        "pre_communication_optimization", "enable_optimizer_post_validation", "enable_exactly_numeric_match",
        "allow_padding_num_layers", "profile_memory_iter", "interleave_group_size", "offload_chunk_num", "offload_time",
        "auto_offload_time", "offload_overlap_sr", "cpu_offload",
    }
)  # fmt: skip
"""Options without effect unless `_ZERO_BUBBLE` is on (fd1eeabb primus/configs/modules/megatron/zero_bubble.yaml;
primus/backends/megatron/patches/parallelism)."""
_MODELS = {
    "deepseek_v4": "DeepSeek-V4 of Primus, whose options have names of their own",
    "kimi_k3": "Kimi K3, whose layers are not known here",
}
_REFUSED = {
    "decoder_pipeline_manual_split_list": "a split of layers by Primus' own list",
    "lfm_layer_types": "convolution layers of LFM2",
    "patch_primus_pipeline": "Primus' own pipeline, whose order of tasks is found as training starts",
    "use_turbo_mega_moe": "Primus-Turbo's MegaMoE layers",
}
"""Options that change what a stage contains or runs."""


class PrimusJob(Launch):
    """An experiment of the Megatron backend; see `Launch`.

    Primus hands the options over as Megatron's parsed arguments, by their names there; nothing stands for an absent
    flag (fd1eeabb primus/backends/megatron/argument_builder.py:118-199).

    Raises
    ------
    InputError
        When the job asks for what is not modelled.
    """

    launcher = NAME
    states_ranks = False

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.file, self.text = experiment.file, experiment.source.text
        _refuse(experiment)
        self.ids = layer_ids(experiment)
        self._stack = own_stack(experiment)
        self.adapters = _adapters(experiment)
        self._keys: dict[str, str] = {}
        vocabulary = named_vocabulary(experiment.options)
        starting = usual_ranks()
        flags = [*starting, *self._option_flags()]
        self.notes = (*experiment.unused, *_default_notes(experiment))
        if vocabulary is not None:
            flags.append(_flag("vocab-size", [str(vocabulary[0])]))
            self.notes += (vocabulary[1],)
        self.flags = Flags(self.file, flags, len(starting), self._place)
        if self._stack is not None:
            self.plan_error = self.flags.error(
                "spec", "deals its layers itself: no plan is written into it", self._stack, "solve with -write n"
            )

    def table(self) -> FlagTable:
        """See `Launch.table`: Primus' own options too."""
        own = {_dashed(name): row for name, row in own_table().rows.items() if "." not in name}
        own = {name: replace(row, name=name, needs=tuple(map(_dashed, row.needs))) for name, row in own.items()}
        return FlagTable(own_table().launcher, {**flag_table().rows, **own})

    def named(self, found: UnmodelledFlag) -> UnmodelledFlag:
        """A flag that no figure includes, under the name of its option."""
        name = found.name.removeprefix("--")
        key = self._keys.get(name, name.replace("-", "_"))
        value = "false" if _SWITCHED_OFF.get(key) == name else found.value
        meant = found.meant and found.meant.removeprefix("--").replace("-", "_")
        return UnmodelledFlag(
            key, value, found.memory, found.time, found.placement,
            found.why, found.known, found.most, meant, found.spares_states,
        )  # fmt: skip

    def unread(self) -> tuple[UnmodelledFlag, ...]:
        """Options that reach no flag: sections, and names that Megatron does not know and MindSpeed does."""
        given: list[tuple[str, str | None]] = []
        for key, value in self.experiment.options.items():
            if isinstance(value, Mapping):
                given += [(f"{key}.{name}", _text(item)) for name, item in value.items() if _is_set(item)]
            elif _is_set(value) and _flag_name(key) in telltales():
                given.append((key, _text(value)))
        return own_table().unmodelled(given)

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> PrimusJob:
        """See `Launch.with_flags`; a flag is removed by a null, a switch by false."""
        edits: dict[YamlPath, Any] = {}
        beside: dict[str, tuple[str, ...]] = {}
        options = self.experiment.options
        for name, setting in wanted.items():
            if has_setting(self.flags, name, setting) and name != "sequence-parallel":
                continue
            key, value = self._option(name, setting)
            if key in options and _same(options[key], value) and not (value is None and options[key] is False):
                continue
            if value in (None, False) and not _is_set(options.get(key)) and key not in _SWITCHED_OFF:
                continue
            edits[key,] = value
            beside[key] = tuple(self._key(other) for other in near)
        if edits:
            edits = {**self._without_ids(), **edits}
        changed = PrimusJob(self.experiment.edited(edits, beside)) if edits else self
        for name, setting in wanted.items():
            if not has_setting(changed.flags, name, setting):
                raise changed.flags.error(name, "cannot be set", setting)
        return changed

    def stripped(self) -> PrimusJob:
        """The same without recompute by the numbers of layers."""
        return PrimusJob(self.experiment.edited(self._without_ids(), {})) if self.ids else self

    def _without_ids(self) -> dict[YamlPath, Any]:
        return {(IDS,): None, (GRANULARITY,): None} if self.ids else {}

    def traced(self, folder: Path) -> dict[str, Setting]:
        """See `Launch.traced`: Primus takes options of its own, and a folder below ``workspace`` (`in_workspace`).

        fd1eeabb primus/backends/megatron/patches/torch_profiler_patches.py:32-59.
        """
        return {
            "use-pytorch-profiler": True,
            "torch-profiler-record-shapes": True,
            "torch-profiler-with-stack": False,
            "disable-profiler-activity-cpu": False,
        }

    def in_workspace(self, folder: Path) -> PrimusJob:
        """The same with a folder for all that it writes; its log and traces lie in parts named after the run.

        fd1eeabb primus/core/config/primus_config.py, ``exp_root_path``;
        primus/backends/megatron/patches/args/tensorboard_path_patches.py:33-46.
        """
        source = edit_yaml(self.experiment.source, {("workspace",): str(folder)})
        return PrimusJob(Experiment.of(source))

    def with_ranks(self, world: int) -> tuple[PrimusJob, dict[str, Setting]]:
        """See `Launch.with_ranks`: variables of the command that starts the job state them, no entry of the file."""
        return self, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return bool(value) if isinstance(value, bool) or value is None else str(value)

    # ---- options and flags ----------------------------------------------------------------------

    def _option_flags(self) -> Iterator[Flag]:
        options = self.experiment.options
        no_sequence = options.get("tensor_model_parallel_size") in (None, 1)
        for key, value in options.items():
            if (key in REPLACED and self._stack is not None) or (key in (IDS, GRANULARITY) and self.ids):
                continue
            if key == "sequence_parallel" and no_sequence:
                continue  # fd1eeabb primus/backends/megatron/patches/args/sequence_parallel_tp1_patches.py:18-36
            if key in _OF_ZERO_BUBBLE and options.get(_ZERO_BUBBLE) is not True:
                continue
            flag = self._flag_of(key, value)
            if flag is not None:
                self._keys[flag.name] = key
                yield flag
        if options.get("enable_primus_turbo") is True and options.get("use_turbo_deepep") is True:
            # fd1eeabb primus/backends/megatron/patches/turbo/moe_dispatcher_patches.py:39-62; no other dispatcher then.
            yield _flag("moe-token-dispatcher-type", ["flex"])
            yield _flag("moe-enable-deepep", [])
        if self._stack is not None:
            for name, text in stack_flags(self.experiment, self._stack).items():
                yield _flag(name, [text])
        replicas = options.get("data_parallel_replicate_degree")
        if isinstance(replicas, int) and replicas > 1:
            # fd1eeabb primus/backends/megatron/patches/args/hsdp_args_patches.py:53
            yield _flag("num-distributed-optimizer-instances", [str(replicas)])

    def _flag_of(self, key: str, value: Any) -> Flag | None:
        """The flag that says an option; None where its absence says it."""
        name = _flag_name(key)
        if value is None or isinstance(value, Mapping) or key in _IGNORED or name in (*WORLD_FLAGS, *telltales()):
            return None
        if key in _SWITCHED_OFF:
            return None if value else _flag(_SWITCHED_OFF[key], [])
        row = flag_table().find(name)
        if isinstance(value, bool) or (row is not None and not row.takes_value and isinstance(value, int)):
            return _flag(name, []) if value else None
        if isinstance(value, list) and key in _JOINED:
            value = ",".join(str(_text(each)) for each in value)
        if isinstance(value, list) and key not in _ONE_WORD:
            words = [_text(each) for each in value]
            return _flag(name, [word for word in words if word is not None]) if words else None
        text = _text(value)
        if text is None:
            raise InputError("is too long a number", file=self.file, field=self.experiment.place(key))
        return _flag(name, [text])

    def _key(self, name: str) -> str:
        """The option behind a flag, given or not."""
        if name in self._keys:
            return self._keys[name]
        for names in (_SWITCHED_OFF, _RENAMED):
            for key, flag in names.items():
                if flag == name:
                    return key
        return name.replace("-", "_")

    def _option(self, name: str, setting: Setting) -> tuple[str, Any]:
        """The option that says a flag's setting, and its value."""
        key = self._key(name)
        if isinstance(setting, bool):
            if _SWITCHED_OFF.get(key) == name:
                return key, not setting
            row = flag_table().find(name)
            switch = isinstance(self.experiment.options.get(key), bool) or (row is not None and not row.takes_value)
            return key, setting if setting or switch else None
        return key, yaml_value(setting)

    def _place(self, name: str) -> str:
        """Place where the file states a flag, or would."""
        if name in WORLD_FLAGS:
            return "GPUS_PER_NODE" if "nproc" in name else "NNODES"
        return self.experiment.place(self._key(name))


def usual_ranks() -> list[Flag]:
    """The ranks of a job whose variables are not set."""
    return [_flag("nproc-per-node", [str(GPUS)], assumed=True), _flag("nnodes", [str(NODES)], assumed=True)]


def own_table() -> FlagTable:
    """The table of the options that Primus adds to Megatron's."""
    return load_flag_table("taylor.parsers.primus", OPTIONS)


def _adapters(experiment: Experiment) -> Adapters | None:
    """Adapters of the section ``lora`` (fd1eeabb primus/backends/megatron/megatron_sft_trainer.py:113-128)."""
    lora = experiment.options.get("lora")
    if not isinstance(lora, Mapping) or lora.get("enabled") is not True:
        return None
    return section_adapters(lora, experiment.file, experiment.place("lora"))


def _refuse(experiment: Experiment) -> None:
    """Refuse a job of what is not modelled."""
    options, file = experiment.options, experiment.file
    cure = "give an experiment that trains a language model of attention, Mamba or gated delta net layers"
    kind = options.get("model_type")
    if kind not in (None, "gpt", "mamba"):
        what = _MODELS.get(kind, "a diffusion model") if isinstance(kind, str) else "another kind of model"
        shown = shortened(str(kind), 40)
        raise InputError(f"trains {what}", file=file, field=experiment.place("model_type"), value=shown, cure=cure)
    if options.get("fp4") is not None and options.get("fp4_recipe") == "mxfp4":
        place = experiment.place("fp4_recipe")
        raise InputError("asks for GEMMs in MXFP4, which are not modelled", file=file, field=place, value="mxfp4",
                         cure="set fp4 to null to plan the job without them")  # fmt: skip
    for name, what in _REFUSED.items():
        if _is_set(options.get(name)):
            raise InputError(
                f"asks for what is not modelled: {what}",
                file=file,
                field=experiment.place(name),
                value=shortened(str(options[name]), 80),
                cure="leave it out to plan the job without it",
            )


def _default_notes(experiment: Experiment) -> tuple[str, ...]:
    """A sentence with the variables whose defaults count, where the options take their values from some."""
    shown = [
        f"{name} {value}" for name, value in experiment.defaults.items() if name not in _LABELS and value != "null"
    ]
    if not shown:
        return ()
    return (f"variables have the defaults that the file writes: {shortened(', '.join(shown), 300)}",)


_LABELS = ("PRIMUS_TEAM", "PRIMUS_USER", "PRIMUS_EXP_NAME", "PRIMUS_WORKSPACE")
"""Variables that name the run."""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _flag_name(key: str) -> str:
    return _RENAMED.get(key, key.replace("_", "-"))


def _flag(name: str, values: list[str], assumed: bool = False) -> Flag:
    return Flag(name, _word(f"--{name}"), tuple(_word(value, assumed) for value in values))


def _word(text: str, assumed: bool = False) -> Word:
    """A word that no script contains; unknown where a variable in it has no default."""
    unknown = "${" in text
    return Word(tuple(Char(char, None, unknown=unknown, assumed=assumed) for char in text))


def _text(value: Any) -> str | None:
    """A value as text; None where Python writes out no number of that length."""
    try:
        return str(value).lower() if isinstance(value, bool) else str(value)
    except ValueError:
        return None


def _is_set(value: Any) -> bool:
    return value not in (None, False, "", []) and value != {}


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
