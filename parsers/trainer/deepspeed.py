"""DeepSpeed's JSON: the stage of ZeRO, what lies on the host, buckets, precision.

Source of names and defaults: deepspeedai/DeepSpeed edaa7221 deepspeed/runtime/zero/config.py:88-400; of the values
``auto``: huggingface/transformers v4.57.1 src/transformers/integrations/deepspeed.py, ``trainer_config_finalize``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.text.fields import MAX_DEGREE, Fields
from taylor.parsers.text.json_source import read_json
from taylor.parsers.trainer.sharding import ZERO, Sharding

AUTO = "auto"
_MAX_ELEMENTS = 10**15
_FOLDERS_ABOVE = 8
_LEAST_RANKS = 8
_BUCKET, _LIVE = 500_000_000, 1_000_000_000
"""Defaults of ``reduce_bucket_size`` (config.py:113) and of ``stage3_max_live_parameters`` and ``_max_reuse_distance``
(:238, :244)."""


@dataclass(frozen=True)
class DeepSpeedConfig:
    """A DeepSpeed configuration.

    Parameters
    ----------
    file : Path
        Its JSON, or the file that holds it.
    fields : Fields
        All of it.
    """

    file: Path
    fields: Fields

    @classmethod
    def read(cls, written: Any, home: Path, field: str) -> DeepSpeedConfig:
        """Read what a training file names: a path, or the configuration itself.

        Parameters
        ----------
        home : Path
            The training file: a relative path counts from its folder, or from one above, the checkout's root.
        field : str
            Its field, for errors.

        Raises
        ------
        InputError
            When there is no such file, or it is no DeepSpeed configuration.
        """
        if isinstance(written, Mapping):
            return cls(home, Fields(written, home, field))
        if not isinstance(written, str) or not written:
            raise InputError(
                "must be the path of a JSON file", file=home, field=field, value=shortened(str(written), 80)
            )
        file = beside(written, home)
        if file is None:
            cure = f"put {Path(written).name} beside the file, or give its path from the file's folder or one above it"
            raise InputError("is not found", file=home, field=field, value=shortened(written, 120), cure=cure)
        data = read_json(file, "a DeepSpeed configuration")
        if not isinstance(data, Mapping):
            raise InputError("is no DeepSpeed configuration: it has no names and values", file=file)
        return cls(file, Fields(data, file))

    @classmethod
    def of(cls, fields: Fields) -> DeepSpeedConfig | None:
        """The configuration that a training file names; None where it names none.

        Raises
        ------
        InputError
            As `read` does.
        """
        written = fields.raw("deepspeed")
        return None if written is None or written is False else cls.read(written, fields.file, "deepspeed")

    def stated(self, name: str) -> Any:
        """An entry at the top; None where it is missing or ``auto``, and the trainer's own value counts."""
        value = self.fields.raw(name)
        return None if value == AUTO else value

    def whole(self, name: str) -> int | None:
        """A whole number at the top; None as in `stated`.

        Raises
        ------
        InputError
            When it is another value.
        """
        return None if self.stated(name) is None else int(self.fields.integer(name, high=MAX_DEGREE))

    def precision(self, own: int) -> int:
        """Bytes of a computing parameter: by ``bf16`` and ``fp16``, `own` where both leave it to the trainer."""
        asked = [self.fields.section(name).raw("enabled") for name in ("bf16", "fp16")]
        if any(value is True for value in asked):
            return 2
        return own if AUTO in asked else 4

    def sharding(self, hidden: int, parameters: int) -> Sharding:
        """The division of states.

        Parameters
        ----------
        hidden : int
            The model's hidden size, from which the trainer takes buckets of size ``auto``.
        parameters : int
            Parameters of the model: no buffer has more.

        Raises
        ------
        InputError
            When an entry is wrong.
        """
        zero = self.fields.section("zero_optimization")
        split = self.fields.section("tensor_parallel").raw("autotp_size")
        if split not in (None, 0, 1):
            problem, cure = "splits the model over tensor-parallel ranks by itself, which is not read", "write 1"
            raise self.fields.error("tensor_parallel.autotp_size", problem, shortened(str(split), 40), cure)
        stage = zero.integer("stage", default=0, low=0, high=3)
        on_host = self._on_host(zero, "offload_optimizer") or (
            zero.raw("offload_optimizer") is None and zero.boolean("cpu_offload", default=False)
        )
        overlaps = zero.boolean("overlap_comm", default=stage == 3)
        accumulated = self.fields.section("data_types").raw("grad_accum_dtype")
        buffers = 0.0
        if stage:
            bucket = self._elements(zero, "reduce_bucket_size", _BUCKET, hidden * hidden)
            # Two buckets where one fills while the other is reduced (stage_1_and_2.py:929-933, stage3.py:732).
            buffers = min(bucket, parameters) * (2 if overlaps and stage < 3 else 1)
        if stage == 3:
            buffers += self._still_gathered(zero, parameters)
        return Sharding(
            ZERO,
            stage,
            states_on_host=on_host,
            gradients_on_host=on_host and stage >= 2,
            overlaps=overlaps,
            gradient_bytes=4 if accumulated in ("fp32", "float32") else None,
            buffer_elements=buffers,
            fp32_step=not on_host and self._whole_step(zero, stage, parameters),
            notes=tuple(_remarks(zero, stage)),
        )

    @staticmethod
    def _still_gathered(zero: Fields, parameters: int) -> float:
        """Parameters that are still gathered at the loss: those that backward needs again within the distance of reuse.

        deepspeed/runtime/zero/partitioned_param_coordinator.py:634-661: what comes again within that number of
        parameters is not released. The last half of them comes again first, as backward begins.
        """
        live = DeepSpeedConfig._elements(zero, "stage3_max_live_parameters", _LIVE, _LIVE, "max_live_parameters")
        reuse = DeepSpeedConfig._elements(zero, "stage3_max_reuse_distance", _LIVE, _LIVE, "max_reuse_distance")
        return float(min(live, reuse / 2, parameters))

    @staticmethod
    def _whole_step(zero: Fields, stage: int, parameters: int) -> bool:
        """Return whether the step casts the rank's whole part of the gradients at once.

        So it does in stages 1 and 2 (stage_1_and_2.py:2339), and in stage 3 where one group contains the part
        (stage3.py:1255-1294; ``sub_group_size`` :175), of eight ranks at least (assumed).
        """
        if stage < 3:
            return stage > 0
        group = DeepSpeedConfig._elements(zero, "sub_group_size", _LIVE, _LIVE)
        return group * _LEAST_RANKS >= parameters

    @staticmethod
    def _on_host(zero: Fields, name: str) -> bool:
        return bool(zero.section(name).text("device", default="none") in ("cpu", "nvme"))

    @staticmethod
    def _elements(zero: Fields, name: str, default: int, automatic: int, older: str | None = None) -> float:
        names = (name,) if older is None else (name, older)
        if zero.raw(*names) == AUTO:
            return float(automatic)
        return float(zero.number(*names, default=float(default), high=float(_MAX_ELEMENTS)))


_NOT_MODELLED = {
    "zero_hpz_partition_size": (0, 1),
    "mics_shard_size": (-1, 0),
    "zero_quantized_weights": (False,),
    "zero_quantized_gradients": (False,),
    "zero_quantized_nontrainable_weights": (False,),
}
"""Settings of ZeRO++ and MiCS (config.py:309-341), and the values that switch them off."""


def _remarks(zero: Fields, stage: int) -> list[str]:
    """Sentences about what lies elsewhere or is divided otherwise than it is counted."""
    remarks = []
    if stage == 3 and DeepSpeedConfig._on_host(zero, "offload_param"):
        remarks.append("offload_param moves weights to the host: they are counted on the device, and their way is not")
    for name, off in _NOT_MODELLED.items():
        value = zero.raw(name)
        if value is not None and value not in off:
            remarks.append(
                f"{name} {shortened(str(value), 20)} is not modelled: states and transfers are those without it"
            )
    return remarks


def beside(written: str, home: Path) -> Path | None:
    """The file of a path as a training file writes it, from its folder or one above; None where none is there."""
    folder = home.absolute().parent
    try:
        for place in (folder, *list(folder.parents)[:_FOLDERS_ABOVE]):
            if (place / written).is_file():
                return place / written
    except (OSError, ValueError):  # A name that no path can have.
        pass
    return None
