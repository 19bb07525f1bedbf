"""How a small record is kept on disk over a restart: as JSON, for `cat`.  Pure."""

from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

Record = TypeVar("Record")


class KeptFormat(Generic[Record]):
    def __init__(self, kind: type[Record], of: str, fault: Callable[[Record], str]) -> None:
        """`of` says what it is a record of; `fault` what makes no sense in one, or nothing."""
        self._adapter = TypeAdapter(kind)
        self._of = of
        self._fault = fault

    def render(self, record: Record) -> bytes:
        return self._adapter.dump_json(record, indent=1) + b"\n"

    def parse(self, content: bytes) -> Record:
        """Return what a file says.  Raises ValueError for what is none of ours."""
        try:
            record = self._adapter.validate_json(content, strict=True)
        except ValidationError as error:
            raise ValueError(f"not a record of {self._of}: {error.error_count()} errors in it") from None
        if fault := self._fault(record):
            raise ValueError(f"not a record of {self._of}: {fault}")
        return record
