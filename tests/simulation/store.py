"""The database that hosts share, in virtual time: all else goes on while a statement takes its time."""

from collections.abc import Callable

from tests.fakes.clock import START_WALL_NS
from tests.fakes.model_database import ModelDatabase, Session
from tests.simulation.loop import LIFE, Life, SimulatedLoop

KEEPALIVE_S = 25
"""A host learns after this time that a connection is dead."""


class SimulatedStore(ModelDatabase):
    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(loop.rng)
        self._loop = loop
        self.cut_hosts: set[str] = set()
        """Hosts without a way to the database."""
        self.after: dict[Life | None, Callable[[], None]] = {}
        """For each process: called in the middle of every request it makes."""
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
        """End a process's sessions. After a power cut the server is not told."""
        for session in [each for each in self.sessions if self._lives[each] is life]:
            session.is_cut_off = True
            if is_told:
                session.lose()

    def cut_off(self, *, listening: bool = False, host: str = "") -> None:
        """Lose connections silently: all, those that LISTEN, or those of one host."""
        for session, life in [(each, self._lives[each]) for each in self.sessions]:
            if (session.channels or not listening) and (not host or (life is not None and life.name == host)):
                session.is_cut_off = True
                self._loop.call_later(KEEPALIVE_S, session.lose)
