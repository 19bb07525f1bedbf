"""A browser without a screen, driven by the Chrome DevTools Protocol."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.system.demand import find

PROGRAM = "chromium-headless-shell"
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--remote-debugging-port=0", "about:blank"),
)


class Browser:
    """One page of it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.complaints: list[str] = []
        """Errors and warnings of its console, exceptions of the page's script among them."""

    async def listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            match told:
                case {"id": int(number)}:
                    self._answers.pop(number).set_result(told)
                case {"method": "Page.loadEventFired"}:
                    self._loaded.set()
                case {"method": "Runtime.exceptionThrown", "params": thrown}:
                    self.complaints.append(str(thrown))
                case {
                    "method": "Log.entryAdded",
                    "params": {"entry": {"level": "error" | "warning"} as entry},
                }:
                    self.complaints.append(str(entry))

    async def call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        told = await answer
        assert "error" not in told, told
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await self._loaded.wait()

    async def look_like(self, *, width: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def ask(self, script: str) -> Any:
        """Return the value of an expression, also of a promise, in the page."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")


@contextlib.asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Browser]:
    """`folder` keeps the profile."""
    program = find(PROGRAM)
    assert program is not None
    browser = await asyncio.create_subprocess_exec(
        program,
        f"--user-data-dir={folder}",
        *OPTIONS,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        # Debian's program is a shell that waits for the browser: both are ended as a group.
        start_new_session=True,
    )
    try:
        assert browser.stderr is not None
        said = b""
        while not said.startswith(b"DevTools listening on "):
            said = await browser.stderr.readline()
            assert said, "it ended at once"
        port = said.split(b":")[2].split(b"/")[0].decode()
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                (page,) = [each for each in await response.json() if each["type"] == "page"]
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                shown = Browser(socket)
                listening = asyncio.create_task(shown.listen())
                yield shown
                listening.cancel()
    finally:
        os.killpg(browser.pid, signal.SIGTERM)
        # Its pipe is read to the end, so that it can end.
        await browser.communicate()
