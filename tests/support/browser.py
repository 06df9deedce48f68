"""A headless Chromium, driven by its DevTools protocol. Tests skip where none is installed."""

import asyncio
import base64
import contextlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import pytest

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LISTENING: Final = re.compile(rb"DevTools listening on (ws://\S+)")
_START_TIMEOUT: Final = 60.0
_ANSWER_TIMEOUT: Final = 30.0
_SWITCHES: Final = (
    "--headless=new",
    "--no-sandbox",  # containers of CI run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)


def executable() -> str:
    """Path of a Chromium; skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


class Browser:
    """A browser: what is asked of it, and its tabs, by session of the protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._tabs: dict[str, Page] = {}
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        await self._socket.send_json(message)
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            return await answer

    async def listen(self) -> None:
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                answer = self._answers.pop(content["id"])
                if "error" in content:
                    answer.set_exception(AssertionError(content["error"]["message"]))
                else:
                    answer.set_result(content["result"])
            elif tab := self._tabs.get(content.get("sessionId", "")):
                tab.take(content["method"], content["params"])

    @contextlib.asynccontextmanager
    async def tab(self) -> AsyncIterator["Page"]:
        """A tab with an empty profile of its own."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        target = await self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        session = attached["sessionId"]
        page = self._tabs[session] = Page(self, session)
        try:
            for domain in ("Page", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            yield page
        finally:
            del self._tabs[session]
            await self.call("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """A tab.

    Attributes:
        problems: errors of scripts and of the content security policy, as the console shows them.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self.problems: list[str] = []
        self._browser = browser
        self._session = session
        self._loaded = asyncio.Event()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **parameters)

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        """Note an event."""
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            await self._loaded.wait()

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, which may be a promise."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def press(self, key: str, code: int) -> None:
        """Press and release a key, given by name and Windows virtual key code."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    async def scheme(self, name: str) -> None:
        """Prefer `light` or `dark`."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def tree(self) -> list[tuple[str, str]]:
        """Role and name of what assistive technology sees."""
        found = await self.call("Accessibility.getFullAXTree")
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in found["nodes"]
            if not node["ignored"]
        ]

    async def screenshot(self) -> bytes:
        """A PNG of the window."""
        found = await self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[Browser]:
    """A new browser."""
    # Of its own: a browser that is killed leaves files, and the paths of its sockets have to be short.
    folder = tempfile.mkdtemp(prefix="browser-")
    process = await asyncio.create_subprocess_exec(
        executable(),
        *_SWITCHES,
        f"--user-data-dir={folder}/profile",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"TMPDIR": folder},
    )
    try:
        url = await _address(process)
        async with aiohttp.ClientSession() as client, client.ws_connect(url, max_msg_size=0) as socket:
            browser = Browser(socket)
            listening = asyncio.create_task(browser.listen())
            try:
                yield browser
            finally:
                listening.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await listening
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        # The rest of stderr is read, so that the pipe's transport is closed.
        await process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    said = b""
    async with asyncio.timeout(_START_TIMEOUT):
        while line := await process.stderr.readline():
            said += line
            if match := _LISTENING.search(line):
                return match[1].decode()
    raise AssertionError(f"the browser does not start: {said.decode(errors='replace')}")
