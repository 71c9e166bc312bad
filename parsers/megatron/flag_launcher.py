"""A launcher whose files become Megatron's flags: what it can say and how is the same whatever the file's form."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from taylor.base.errors import TaylorError
from taylor.cost_model.choices.module_choices import ModuleWords
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.ascend import stated_device
from taylor.parsers.launcher import Launcher, NarrowStates, UsualDevice
from taylor.parsers.megatron import recompute, small_run, write
from taylor.parsers.megatron.expert_overlap import EXPERT_OVERLAP, FB_OVERLAP
from taylor.parsers.megatron.kinds import layer_positions
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.mindspeed import is_mindspeed, sign_of_mindspeed
from taylor.parsers.megatron.optimizer import BESIDE_OPTIMIZER, host_optimizer_flags, narrow_state_flags
from taylor.parsers.megatron.own_plan import V_SCHEDULE, ZERO_BUBBLE
from taylor.parsers.megatron.ranks import ranks_of_a_node
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.run_log import read_log
from taylor.parsers.megatron.swap import SWAP_PARTS
from taylor.parsers.megatron.switches import switches
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledRun, RunLog, RunSetting, Switch
from taylor.parsers.text.flag_edit import Setting as Flag
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.register.frameworks import MEGATRON

ON_ASCEND = UsualDevice("ascend-910b", "MindSpeed files")
"""MindSpeed is Megatron on Ascend devices."""


class FlagLauncher(Launcher):
    """A launcher whose files state Megatron's or MindSpeed's flags.

    A subclass defines `launch`, and `recognises`' attributes as for any `Launcher`.
    """

    degree_words = {
        "tp": "--tensor-model-parallel-size",
        "pp": "--pipeline-model-parallel-size",
        "ep": "--expert-model-parallel-size",
        "cp": "--context-parallel-size",
        "op": "--use-distributed-optimizer",
        "sp": "--sequence-parallel",
        "vpp": "--num-layers-per-virtual-pipeline-stage",
        "mbs": "--micro-batch-size",
        "gbs": "--global-batch-size",
        "seq": "--seq-length",
    }
    knows_parameters = True

    @abstractmethod
    def launch(self, path: Path) -> Launch:
        """A file as a launch by its flags.

        Raises
        ------
        InputError
            When it is missing, or starts no training.
        """

    def launch_of(self, config: TrainingConfig) -> Launch:
        """The launch that a configuration was read from."""
        return self.launch(config.path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_launch(self.launch(path))

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """An Ascend device where MindSpeed runs the file: the one that it states, else the usual one."""
        launch = self.launch_of(config)
        sign = sign_of_mindspeed(launch.flags)
        if sign is None:
            return self.usual_device
        usual = replace(ON_ASCEND, known_by=sign)
        stated = stated_device(config.path, launch.text, ranks_of_a_node(launch.flags))
        return usual if stated is None else replace(usual, name=stated[0], why=stated[1])

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        launch = self.launch_of(config)
        plan, modules = recompute.by_module(plan)
        written = write.with_plan(launch, config, plan, micro_batches)
        if config.added:
            written = written.with_flags(cast("dict[str, Flag]", dict(config.added)), BESIDE_OPTIMIZER)
        return launch.text, (written.with_flags(modules, recompute.RECOMPUTE_FLAGS) if modules else written).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are flags."""
        return write.with_strategy(self.launch_of(config), config, strategy, plan, extra).text

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """The flags know 1F1B, plain and interleaved; MindSpeed's the V, zero bubble's own its two orders.

        Raises
        ------
        InputError
            When the file holds no plan at all, for its layers stand in another one.
        """
        if (error := self.launch_of(config).plan_error) is not None:
            raise error
        if schedule.name in ("zb-h1", "zb-h2"):
            return self.launch_of(config).flags.has(ZERO_BUBBLE)
        if schedule.name == V_SCHEDULE.name:
            return is_mindspeed(self.launch_of(config).flags)
        return schedule.name in (PLAIN, MEGATRON.interleaved_schedule)

    def nearest_plan(self, plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
        """One recompute choice for all chunks."""
        return recompute.nearest_plan(plan)

    def barred_recompute(self, config: TrainingConfig) -> tuple[str, ...]:
        """Full recompute where the experts' exchange is overlapped (`misfit_expert_overlap`) or attention swapped."""
        return (FULL,) if config.schedule.one_ahead or config.by_module is not None else ()

    def chunk_positions(self, config: TrainingConfig, least: int) -> int | None:
        """Under MindSpeed's overlap of a forward with a backward, as many as the launch has where those suffice.

        Of positions without a layer there may be any number, but each takes a layer from beside another.
        """
        flags, chunks = self.launch_of(config).flags, config.strategy.pp * config.strategy.vpp
        if not flags.has(FB_OVERLAP):
            return None
        now = layer_positions(flags)
        return now // chunks if now % chunks == 0 and now // chunks > least else least

    def mtp_places(self, config: TrainingConfig) -> tuple[int, ...] | None:
        """In a layout, which runs all virtual stages forwards, any last chunk of a stage.

        Source: Megatron-LM d98e8a64 megatron/core/transformer/pipeline_parallel_layer_layout.py
        (``validate_layer_layout``): the embedding comes first and the loss last, MTP layers together behind all
        others, on the last virtual stage of a rank; a stage may be empty.
        """
        stages, interleaves = config.strategy.pp, config.strategy.vpp
        if not config.names_chunks or config.schedule_for(interleaves).v_shape:
            return None
        return tuple(range((interleaves - 1) * stages, interleaves * stages))

    def module_words(self, config: TrainingConfig) -> ModuleWords:
        """Megatron's modules, without the experts' whole block where their exchange is overlapped.

        MindSpeed has no fine-grained offload.
        """
        words, flags = recompute.MODULE_WORDS, self.launch_of(config).flags
        if flags.has(EXPERT_OVERLAP):
            words = ModuleWords({word: part for word, part in words.recompute.items() if word != "moe"}, words.offload)
        return ModuleWords(words.recompute) if is_mindspeed(flags) else words

    @property
    def swap_parts(self) -> Mapping[str, str]:
        """See `Launcher.swap_parts`; MindSpeed's."""
        return SWAP_PARTS

    def with_optimizer_on_host(self, config: TrainingConfig) -> TrainingConfig:
        """See `Launcher.with_optimizer_on_host`."""
        launch = self.launch_of(config)
        wanted = host_optimizer_flags(launch.flags, mindspeed=is_mindspeed(launch.flags))
        changed = config_from_launch(launch.with_flags(wanted, BESIDE_OPTIMIZER))
        return config.replace(
            rules=changed.rules,
            notes=changed.notes,
            unmodelled=changed.unmodelled,
            linked=changed.linked,
            added=tuple(wanted.items()),
        )

    def narrow_states(self, config: TrainingConfig) -> tuple[NarrowStates, ...]:
        """See `Launcher.narrow_states`; each as it is read from the file with the flags."""
        try:
            launch = self.launch_of(config)
            offered = narrow_state_flags(launch.flags, mindspeed=is_mindspeed(launch.flags))
            read = {
                name: config_from_launch(launch.with_flags(wanted, BESIDE_OPTIMIZER)).rules.optimizer
                for name, wanted in offered.items()
            }
        except TaylorError:  # the file states the flags where none can be added
            return ()
        return tuple(
            NarrowStates(name, " ".join(self.written(flag, offered[name][flag]) for flag in offered[name]), states)
            for name, states in read.items()
        )

    def written(self, flag: str, setting: Flag) -> str:
        """A flag with its setting, as the launcher's files write it."""
        return f"--{flag}" if setting is True else f"--{flag} {setting}"

    def uniform_recompute(self, layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """The first N layers of every chunk, or all selectively."""
        return recompute.uniform_choices(layers, modes)

    def job_sizes(self, path: Path) -> JobSizes:
        """See `Launcher.job_sizes`; nothing but a few flags is read, so that any network will do."""
        return small_run.job_sizes(self.launch(path))

    def small_run(self, path: Path, run: ProfiledRun) -> str:
        """See `Launcher.small_run`."""
        return small_run.small_run(self.launch(path), run).text

    def traces_by_torch(self, path: Path) -> bool:
        """See `Launcher.traces_by_torch`; MindSpeed has its own."""
        return not is_mindspeed(self.launch(path).flags)

    def planned_job(self, path: Path, setting: RunSetting, job: PlannedJob) -> str:
        """See `Launcher.planned_job`."""
        return small_run.planned_job(self.launch(path), setting, job).text

    def whole_run(self, path: Path, setting: RunSetting, job: PlannedJob, machines: Machines, iterations: int) -> str:
        """See `Launcher.whole_run`."""
        return small_run.whole_run(self.launch(path), setting, job, machines, iterations).text

    def switches(self, path: Path) -> tuple[Switch, ...]:
        """MC2, fused token rearrangement and overlapped exchanges of experts, where a MindSpeed launch has them."""
        return switches(self.launch(path).flags)

    def recompute_modules(self, path: Path) -> tuple[str, ...]:
        """See `Launcher.recompute_modules`; Megatron's, which MindSpeed takes too."""
        return recompute.stated_modules(self.launch(path).flags)

    def run_log(self, text: str, dense: int = 0) -> RunLog:
        """See `Launcher.run_log`."""
        return read_log(text, dense)
