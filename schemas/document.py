"""Basis of all documents: models that refuse unknown keys, and the key with a document's name and version."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """Object inside a document; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Record(BaseModel):
    """Object whose further keys are those of a registered thing or of another program; they are not versioned."""

    model_config = ConfigDict(extra="allow", frozen=True)


Mib = Annotated[float, Field(description="MiB")]
Milliseconds = Annotated[float, Field(description="ms")]
Share = Annotated[float, Field(ge=0.0, le=1.0, description="share from 0 to 1")]
Grid = Annotated[list[list[int]], Field(description="int [vpp][pp]: of each virtual stage and stage")]
Plain = dict[str, Any]
