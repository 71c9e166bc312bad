"""The device that a job is planned for: the one the user names, else the usual one of such jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import STACK_SIGN, DeviceSpec
from taylor.register.registry import Registry


@dataclass(frozen=True)
class ChosenDevice:
    """A device and the reason for its choice.

    Parameters
    ----------
    spec : DeviceSpec
    reason : str
        Reason for the choice where nobody named a device, see `UsualDevice.reason`; else empty.
    """

    spec: DeviceSpec
    reason: str = ""

    @property
    def assumption(self) -> str | None:
        """Sentence with the reason where nobody named the device."""
        if not self.reason:
            return None
        lead = "no device named" if self.is_default else "device"
        return f"{lead}: {self.described}, {self.reason}; --device names another"

    @property
    def is_default(self) -> bool:
        """Return whether neither the user nor the file names the device."""
        return self.reason.startswith("the default")

    @property
    def described(self) -> str:
        """Name and memory: ``h100-80g (80 GiB)``."""
        return f"{self.spec.name} ({self.spec.memory_mib / 1024:.0f} GiB)"


def choose_device(
    config: TrainingConfig, named: str | DeviceSpec | None = None, register_path: Path | None = None
) -> ChosenDevice:
    """The device of a job.

    Parameters
    ----------
    named : str or DeviceSpec, optional
        Name of a registered device, or a device itself; ``@`` and the name of a stack alone ask for the usual device.
    register_path : Path, optional
        The user's folder of registrations.

    Raises
    ------
    InputError
        When there is no such device, or the register cannot be read.
    """
    if isinstance(named, DeviceSpec):
        return ChosenDevice(named)
    register = Registry.load(register_path)
    if named is not None and not named.startswith(STACK_SIGN):
        return ChosenDevice(register.device(named))
    usual = launcher_of(config).usual_device_of(config)
    return ChosenDevice(register.device(usual.name + (named or "")), usual.reason)
