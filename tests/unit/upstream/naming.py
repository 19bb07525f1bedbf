"""A loop whose resolver a test may tell names."""

import asyncio
import socket
from typing import Any


class NamingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.addresses: dict[str, tuple[str, ...]] = {}
        """IPv4, by name; other names mean what they always do."""

    async def getaddrinfo(self, host: Any, port: Any, **others: Any) -> list[Any]:
        if host not in self.addresses:
            return await super().getaddrinfo(host, port, **others)
        return [(socket.AF_INET, 1, 6, "", (address, port)) for address in self.addresses[host]]


def have_two_addresses(name: str) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, NamingLoop)
    loop.addresses[name] = ("127.0.0.9", "127.0.0.1")
