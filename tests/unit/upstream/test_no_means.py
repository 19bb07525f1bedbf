"""A connection for which we have no descriptor is told from one that the upstream refuses."""

import resource

import pytest

from relay.clock import SystemClock
from relay.spool.disk.os_errors import is_lack_of_means
from relay.upstream.connection import UpstreamUnavailable, open_connection
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.upstream.sessions import account


async def test_a_lack_of_descriptors_is_the_cause() -> None:
    async with Smarthost(Script()) as host:
        there, clock = account(host), SystemClock()
        # What is read once, such as the rules about replies, is read by now.
        await (await open_connection(there, clock)).close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(UpstreamUnavailable) as unavailable:
                await open_connection(there, clock)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert is_lack_of_means(unavailable.value.__cause__)
        connection = await open_connection(there, clock)
        await connection.close()
