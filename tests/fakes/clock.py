"""A clock that a test moves by hand."""

from relay.clock import SECOND_NS

START_WALL_NS = 1_760_000_000 * SECOND_NS


class FakeClock:
    """A `relay.clock.Clock` that stands still until the test moves it."""

    def __init__(self, boottime_ns: int = 1000 * SECOND_NS, wall_ns: int = START_WALL_NS) -> None:
        self._boottime_ns = boottime_ns
        self._wall_ns = wall_ns
        self._boots = 1

    def wall_ns(self) -> int:
        return self._wall_ns

    def boottime_ns(self) -> int:
        return self._boottime_ns

    def boot_id(self) -> str:
        return f"00000000-0000-4000-8000-{self._boots:012x}"

    def advance(self, by_ns: int) -> None:
        assert by_ns >= 0
        self._boottime_ns += by_ns
        self._wall_ns += by_ns

    def step_wall(self, by_ns: int) -> None:
        """Set the wall clock forward or back. No time passes."""
        self._wall_ns += by_ns

    def reboot(self, down_ns: int = 0, *, boottime_ns: int = 5 * SECOND_NS) -> None:
        """Stay off for `down_ns`, then boot; `boottime_ns` have passed since the kernel started."""
        assert down_ns >= 0
        assert boottime_ns >= 0
        self._boots += 1
        self._wall_ns += down_ns + boottime_ns
        self._boottime_ns = boottime_ns
