"""Fits a device to the measured runs of a store of results, or to any other source of them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.database import is_database, shown
from taylor.base.errors import InputError
from taylor.register.device import CALIBRATED_TO
from taylor.register.registry import Registry
from taylor.workflows.measuring.calibrate import Calibrated, CalibrateOptions, calibrate_device
from taylor.workflows.measuring.history import Store


def calibrate_from(source: str, options: CalibrateOptions) -> Calibrated:
    """Fit a device to a source of measured runs.

    Parameters
    ----------
    source : str
        A store, or a source for `calibrate_device`.

    Raises
    ------
    InputError
        When it has no measured run.
    """
    if not is_database(source):
        return calibrate_device(options)
    named = None if options.device is None else Registry.load(options.register_path).device(options.device).name
    with tempfile.TemporaryDirectory(prefix="taylor-") as folder:
        found = Store(source, "SOURCE").write_measured(Path(folder), device=named)
        if not found:
            cure = "taylor history ID --measured MS stores what a plan took"
            raise InputError("has no measured run", field="SOURCE", value=shown(source), cure=cure)
        log.info("%d measured runs of %s", found, shown(source))
        stack = options.stack or f"{CALIBRATED_TO} {shown(source)}"
        return calibrate_device(replace(options, source=Path(folder), stack=stack))
