"""A headless Chromium driven over the WebDriver protocol with nothing but the standard library."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element reference, fixed by the WebDriver standard."""

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1200",
)


def missing() -> str:
    """Which program a browser test lacks; empty when it can run."""
    return ", ".join(name for name in ("chromium", "chromedriver") if shutil.which(name) is None)


def axe_script() -> Path | None:
    """axe-core's script: where AXE_CORE says, or below node_modules; None where it is not installed."""
    places = (os.environ.get("AXE_CORE"), "node_modules/axe-core/axe.min.js")
    return next((Path(place) for place in places if place and Path(place).exists()), None)


class Browser:
    """One session; elements are CSS selectors or references."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        options = {
            "binary": shutil.which("chromium"),
            "args": list(ARGUMENTS),
        }
        found = self._send(
            "POST",
            "/session",
            {
                "capabilities": {
                    "alwaysMatch": {
                        "browserName": "chrome",
                        "goog:chromeOptions": options,
                        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                    }
                }
            },
        )
        self.session = f"/session/{found['sessionId']}"

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.base + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        # A proxy of the environment must not stand between the test and its own driver.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as reply:
                return json.loads(reply.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from error

    def open(self, path: Path) -> None:
        """Open a file and wait until its script has finished."""
        self._send("POST", f"{self.session}/url", {"url": path.resolve().as_uri()})
        limit = time.monotonic() + 30
        while not self.run("return document.body.dataset.ready || ''"):
            assert time.monotonic() < limit, "the page's script did not finish within 30 s"
            time.sleep(0.05)

    def emulate(self, width: int, height: int, scheme: str = "light") -> None:
        """A window of this size for a reader who prefers this scheme of colours: ``light`` or ``dark``."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        for command, params in (
            ("Emulation.setDeviceMetricsOverride", size),
            ("Emulation.setEmulatedMedia", media),
        ):
            self._send("POST", f"{self.session}/goog/cdp/execute", {"cmd": command, "params": params})

    def violations(self, axe: Path) -> list[str]:
        """What axe-core finds amiss with the open page: rule and first element of each."""
        self.run(
            "const script = document.createElement('script'); script.textContent = arguments[0];"
            "document.head.append(script); window.found = null;"
            "axe.run().then((result) => { window.found = result.violations.map("
            "(one) => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`); });",
            axe.read_text(encoding="utf-8"),
        )
        limit = time.monotonic() + 30
        while (found := self.run("return window.found")) is None:
            assert time.monotonic() < limit, "axe did not finish within 30 s"
            time.sleep(0.1)
        return list(found)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a script in the page."""
        return self._send("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        """Reference of the first element of a CSS selector."""
        return self._send("POST", f"{self.session}/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector: str) -> None:
        """A real mouse click, which fails when the element is hidden or covered."""
        self._send("POST", f"{self.session}/element/{self.find(selector)}/click", {})

    def click_at(self, x: int, y: int) -> None:
        """A real mouse click at a place of the window."""
        self._send(
            "POST",
            f"{self.session}/actions",
            {
                "actions": [
                    {
                        "type": "pointer",
                        "id": "mouse",
                        "parameters": {"pointerType": "mouse"},
                        "actions": [
                            {"type": "pointerMove", "duration": 50, "x": x, "y": y},
                            {"type": "pause", "duration": 100},
                            {"type": "pointerDown", "button": 0},
                            {"type": "pointerUp", "button": 0},
                        ],
                    }
                ]
            },
        )
        time.sleep(0.5)

    def type(self, selector: str, text: str) -> None:
        """Real key strokes."""
        self._send("POST", f"{self.session}/element/{self.find(selector)}/value", {"text": text})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """The browser's log since the last call: ``browser`` (console) or ``performance`` (network among others)."""
        return self._send("POST", f"{self.session}/se/log", {"type": kind})

    def requested(self) -> list[str]:
        """Every URL asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser session; both processes end with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        [str(shutil.which("chromedriver")), f"--port={port}", "--log-level=OFF"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    session = None
    try:
        limit = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < limit and driver.poll() is None, "chromedriver did not start"
                time.sleep(0.1)
        session = Browser(port)
        yield session
    finally:
        if session is not None:
            session._send("DELETE", session.session)
        driver.terminate()
        driver.wait(timeout=20)
