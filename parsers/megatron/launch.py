"""Interface of a file that starts a training by Megatron's flags, for Megatron's reader and writer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.tower import TowerRun
from taylor.parsers.flag_table import FlagTable
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.register.model import ModelSpec


class Launch(ABC):
    """A file that starts a training by Megatron's flags; a change gives another one.

    A subclass defines the attributes below.
    """

    launcher: str
    """Name of the launcher whose file it is."""
    file: Path
    """Its path in a `TrainingConfig`."""
    text: str
    """The text that a plan is written into."""
    flags: Flags
    notes: Sequence[str]
    """Assumptions and oddities, one line each."""
    model: ModelSpec | None = None
    """The model where the file names it and its flags do not describe it."""
    tower: TowerRun | None = None
    """The encoder of images beside the language model, where the file describes it."""
    frozen: tuple[str, ...] = ()
    """Parts of the model whose weights are frozen though others train whole (`TrainingRules.frozen`)."""
    one_copy: bool = False
    """A narrow GEMM reads one copy of its weight in both directions, as Blackwell's do where a recipe allows it."""
    states_ranks: bool = True
    """The file may say how many ranks it starts; False where the command that starts it does."""
    plan_error: InputError | None = None
    """Reason why no plan is written into it, where its layers stand in another file."""

    @property
    def environment(self) -> str:
        """The text that sets variables of the training."""
        return self.text

    def table(self) -> FlagTable:
        """Meaning of each of its flags for a plan."""
        return flag_table()

    def traced(self, folder: Path) -> dict[str, Setting]:
        """The flags with which a run leaves traces of `torch.profiler` with shapes below a folder.

        Megatron-LM d98e8a64 megatron/training/training.py:4479-4508 (beside the folder of TensorBoard).
        """
        return {
            "use-pytorch-profiler": True,
            "pytorch-profiler-collect-shapes": True,
            "tensorboard-dir": self.setting("tensorboard-dir", str(folder)),
        }

    @abstractmethod
    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> Launch:
        """The same with some flags set, given without a value, or removed; what already holds stays untouched.

        Parameters
        ----------
        near : tuple of str
            Flags beside which a new one may go, best first.

        Raises
        ------
        InputError
            When a value cannot be set without changing another.
        """

    @abstractmethod
    def with_ranks(self, world: int) -> tuple[Launch, dict[str, Setting]]:
        """The same launch on `world` ranks, and the flags that are still to be set for it.

        Nothing changes where it starts them already, or does not say how many it starts.
        """

    @abstractmethod
    def setting(self, name: str, value: object) -> Setting:
        """Plain data as the value of a flag.

        Raises
        ------
        InputError
            When the file cannot hold it.
        """
