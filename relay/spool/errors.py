"""Translates errors of the kernel into those of `relay.spool.interface`."""

from relay.spool.disk.os_errors import is_lack_of_room
from relay.spool.interface import Full, Unavailable


def of_kernel(error: OSError, what: str = "") -> Full | Unavailable:
    kind = Full if is_lack_of_room(error) else Unavailable
    return kind(f"{what}: {error.strerror}" if what else str(error.strerror))


class kernel_errors:  # noqa: N801 - reads as `contextlib.suppress` does
    """Raise Full for a lack of room, Unavailable for any other OSError.

    A class, because each message uses several and a generator costs twice as much.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise of_kernel(error, self._what) from error
