"""One shard of a ranking: the candidates that it solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError


@dataclass(frozen=True)
class Shard:
    """One of several parts of the candidates.

    Parameters
    ----------
    number, of : int
        1 to `of`.
    """

    number: int
    of: int

    @property
    def file(self) -> str:
        """Name of its record in the folder of its results."""
        return f"shard_{self.number}_of_{self.of}.json"

    def share(self, files: Sequence[Path]) -> list[Path]:
        """Files of the shard: every `of`-th, so that neighbours, which take similar time, are spread.

        Raises
        ------
        InputError
            When there are fewer files than shards.
        """
        if len(files) < self.of:
            raise InputError(
                f"are more shards than the {len(files)} candidates", field="--shard", value=f"{self.number}/{self.of}",
                cure=f"take {len(files)} shards or fewer",
            )  # fmt: skip
        return list(files[self.number - 1 :: self.of])
