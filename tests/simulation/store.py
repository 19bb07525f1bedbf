"""The database that hosts share, in virtual time: others go on while a statement takes its time."""

from collections.abc import Callable

from tests.fakes.clock import START_WALL_NS
from tests.fakes.model_database import ModelDatabase, Session
from tests.simulation.loop import LIFE, Life, SimulatedLoop

KEEPALIVE_S = 25
"""After so long a host knows of a connection that is silent."""


class SimulatedStore(ModelDatabase):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(loop.rng)
        self._loop = loop
        self.cut_hosts: set[str] = set()
        """They have no way to it."""
        self.after: dict[Life | None, Callable[[], None]] = {}
        """What happens in the middle of whatever a process asks."""
        self._lives: dict[Session, Life | None] = {}
        loop.has_fibers = True

    def time_ns(self) -> int:
        return START_WALL_NS + self._loop.clock.true_ns

    def sleep(self, seconds: float) -> None:
        self._loop.pass_time(seconds)
        if (life := LIFE.get()) in self.after:
            self.after[life]()

    def connect(self, url: str, **parameters: object) -> Session:
        session, life = super().connect(url, **parameters), LIFE.get()
        self._lives[session] = life
        if life is not None and life.name in self.cut_hosts:
            session.is_cut_off = True
        return session

    def end(self, life: Life, *, is_told: bool) -> None:
        """Let a process be gone; of a lost power nobody tells the server."""
        for session in [each for each in self.sessions if self._lives[each] is life]:
            session.is_cut_off = True
            if is_told:
                session.lose()

    def cut_off(self, *, listening: bool = False, host: str = "") -> None:
        """Lose connections, or only those that wait for news, or of one host, without a word."""
        for session, life in [(each, self._lives[each]) for each in self.sessions]:
            if (session.channels or not listening) and (not host or (life is not None and life.name == host)):
                session.is_cut_off = True
                self._loop.call_later(KEEPALIVE_S, session.lose)
