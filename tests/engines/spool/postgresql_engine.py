"""The queue in PostgreSQL for the suite: a database of its own for each test, and a folder."""

import contextlib

import psycopg

from relay.mail.envelope import QueueId
from relay.spool.database import DatabaseError
from relay.spool.database.connection import Database
from relay.spool.database.schema import make
from relay.spool.disk.durable import RealDisk
from relay.spool.interface import Intake
from relay.spool.postgresql.engine import PostgresqlSpool
from relay.spool.postgresql.intake import PostgresqlIntake, prepare
from tests.engines.spool.engine import OneSpool


class PostgresqlEngine(OneSpool):
    def __init__(self, root: str, url: str, closing: contextlib.ExitStack) -> None:
        """Each root is a host of its own; the first one makes the tables."""
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
        with psycopg.connect(self.database.url) as connection:
            for table in ("message", "chunk"):
                connection.execute(
                    f"UPDATE relay.{table} SET content = set_byte(content, octet_length(content) / 2,"
                    " get_byte(content, octet_length(content) / 2) # 1) WHERE queue_id = %s"
                    + (" AND number = 1" if table == "chunk" else " AND content IS NOT NULL"),
                    (queue_id,),
                )
