"""A session of the listener in this process, at one end of a pair of sockets.

For a caller who may write the spool.  Mail goes through the listener's own session and intake.  So the
Received line, the order of syncs and the checks, except the quotas, are the same.  `250` means durable,
whether a relay runs or not.  The trigger wakes the sender.
Assumes: policy and files are this user's.  Does not: count or log, since the relay is another process.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relay.clock import SystemClock
from relay.daemon.spool_intake import SpoolIntake
from relay.listener.access import Client, ClientPlace
from relay.listener.listener_files import ListenerFiles
from relay.listener.listener_state import ListenerState
from relay.listener.session import ClientSession
from relay.policy.model import Listen, Policy
from relay.spool.disk.durable import RealDisk
from relay.spool.engines import open_intake, prepare_spool
from relay.spool.root.trigger import Trigger

Tell = Callable[[str], None]


@contextmanager
def own_session(policy: Policy, listen: Listen, hostname: str, tell: Tell) -> Iterator[socket.socket]:
    """Yield the client's end.  Raises OSError, and ValueError for a spool of another format.

    `tell` gets one line for each fault on our side.
    """
    # The relay would set aside files of another mode.
    os.umask(0o077)
    disk, clock = RealDisk(), SystemClock()
    # A caller who may write the spool needs no quota, and this session cannot know what is queued.
    listen = listen.model_copy(update={"max_queued_per_client": None})
    prepare_spool(policy, disk)
    intake = SpoolIntake(
        open_intake(policy, disk, clock),
        Trigger(str(policy.spool), disk),
        lambda error: tell(f"spool: {error}"),
    )
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)  # noqa: FBT003 - the socket's own signature

    async def serve() -> None:
        listener = ListenerState(
            listen, hostname, intake, _OwnObserver(tell), files=ListenerFiles({}, None), clock=clock
        )
        place = ClientPlace(Client.of_peer("127.0.0.1"), may_relay=True)
        session = ClientSession(listener, place)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: session, theirs)
        await session.task

    def serve_and_close() -> None:
        # Close after any fault: else the caller would wait for a reply.
        with theirs:
            try:
                asyncio.run(serve())
            except Exception as error:  # noqa: BLE001 - see above
                tell(f"fault: {error!r}")

    serving = threading.Thread(target=serve_and_close, name="session")
    serving.start()
    try:
        yield ours
    finally:
        ours.close()
        serving.join()
        intake.close()


class _OwnObserver:
    """Passes on faults only: the caller sees the replies itself."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def _ignore(self, *_: object, **__: object) -> None:
        pass

    connection_opened = connection_closed = refused = accepted = _ignore

    def fault(self, listener: str, client: str, error: BaseException) -> None:  # noqa: ARG002 - there is only one listener
        self._tell(f"fault: {error!r}")
