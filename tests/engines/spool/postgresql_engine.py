"""The PostgreSQL engine for the suite: one database for each test, and a folder."""

import contextlib

from relay.mail.envelope import QueueId
from relay.spool.database import DatabaseError
from relay.spool.database.connection import Database, once
from relay.spool.database.schema import make
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Intake
from relay.spool.postgresql.engine import PostgresqlSpool
from relay.spool.postgresql.intake import PostgresqlIntake, prepare
from tests.engines.spool.engine import OneSpool


class PostgresqlEngine(OneSpool):
    def __init__(self, root: str, url: str, closing: contextlib.ExitStack) -> None:
        """Make a host with this root. The first host of a database makes the tables."""
        super().__init__(root, RealDisk())
        self.database = Database(url)
        with contextlib.suppress(DatabaseError):
            make(self.database)
        self._closing = closing

    def start(self) -> PostgresqlSpool:
        spool = PostgresqlSpool(
            self.root,
            self.view(),
            self.clock,
            self.tell,
            database=self.database,
            host="here",
            lease_seconds=60,
        )
        self._closing.callback(spool.close)
        return spool

    def intake(self) -> Intake:
        prepare(self.root, self.disk)
        intake = PostgresqlIntake(
            self.root, self.view(), self.clock, database=self.database, random_bytes=self.chance()
        )
        self._closing.callback(intake.close)
        return intake

    def damage(self, queue_id: QueueId) -> None:
        with once(self.database) as connection:
            last = "SELECT number, content FROM relay.chunk WHERE queue_id = %s ORDER BY number DESC LIMIT 1"
            for number, content in connection.execute(last, (queue_id,)).fetchall():
                changed = bytearray(content)
                changed[len(changed) // 2] ^= 1
                update = "UPDATE relay.chunk SET content = %s WHERE queue_id = %s AND number = %s"
                connection.execute(update, (bytes(changed), queue_id, number))
