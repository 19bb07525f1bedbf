"""What every part of a policy is.  Pure."""

from pydantic import BaseModel, ConfigDict, Field

AnyOrder = Field(strict=False)
"""Lets a list stand for a tuple; what is in it is as strict as ever."""


class Section(BaseModel):
    """What every part of a policy is: frozen, strict, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)
