"""A connection for which we have no descriptor is not refused by the upstream."""

import resource

import pytest

from relay.clock import SystemClock
from relay.upstream.connection import NoMeans, open_connection
from tests.fakes.smarthost import Script, Smarthost
from tests.unit.upstream.sessions import account


async def test_without_a_descriptor_no_upstream_is_blamed() -> None:
    async with Smarthost(Script()) as host:
        there, clock = account(host), SystemClock()
        # What is read once, such as the rules about replies, is read by now.
        await (await open_connection(there, clock)).close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            with pytest.raises(NoMeans):
                await open_connection(there, clock)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        connection = await open_connection(there, clock)
        await connection.close()
