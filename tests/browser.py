"""A headless Chromium for tests, driven by Playwright."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Chromium
    from playwright.sync_api import Page

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

NETWORK = "Failed to load resource"
"""Beginning of the console's message on an answer that is an error, which a page cannot prevent."""

PATIENCE_MS = 30_000
"""Longest wait for a page; tests of speed are in `benchmarks/`."""


def program() -> str:
    """Path of a browser: an installed one, or Playwright's own; empty where there is none."""
    installed = next((found for name in PROGRAMS if (found := shutil.which(name))), "")
    own = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    return installed or next(map(str, sorted(own.glob("chromium-*/chrome-linux*/chrome"))), "")


def missing() -> str:
    """What a browser test lacks; empty when it can run."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright (pip install playwright)"
    return "" if program() else f"{', '.join(PROGRAMS)} (playwright install chromium)"


def axe_script() -> Path | None:
    """Path of axe-core: where AXE_CORE says, in axe-playwright-python or node_modules; None where there is none."""
    found = importlib.util.find_spec("axe_playwright_python")
    packaged = None if found is None or found.origin is None else Path(found.origin).with_name("axe.min.js")
    places = (os.environ.get("AXE_CORE"), packaged, "node_modules/axe-core/axe.min.js")
    return next((Path(place) for place in places if place and Path(place).exists()), None)


@dataclass
class Tab:
    """One page of a browser, with what its console printed and which addresses it asked for.

    Parameters
    ----------
    page : Page
        Playwright's page; elements are CSS selectors.
    """

    page: Page
    console: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.console.append(f"uncaught: {error}"))
        self.page.on("request", lambda request: self.addresses.append(request.url))

    def open(self, place: Path | str) -> None:
        """Open a file or an address and wait until its script has finished."""
        self.page.goto(place if isinstance(place, str) else place.resolve().as_uri())
        self.until("document.body.dataset.ready")

    def until(self, expression: str, seconds: float = PATIENCE_MS / 1000) -> None:
        """Wait until an expression of the page is true."""
        # Asked from here: a page's policy forbids the evaluation of text inside it.
        self.page.wait_for_function(f"() => Boolean({expression})", timeout=1000 * seconds)

    def emulate(self, width: int, height: int, scheme: str = "light") -> None:
        """A window of this size for a reader who prefers this scheme of colours: ``light`` or ``dark``."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    def violations(self, axe: Path) -> list[str]:
        """Violations that axe-core finds on the open page: rule and first element of each."""
        self.page.evaluate(axe.read_text(encoding="utf-8"))
        found = self.page.evaluate("() => axe.run().then((result) => result.violations)")
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]

    def run(self, script: str, *arguments: Any) -> Any:
        """Result of a script in the page, which returns it."""
        return self.page.evaluate(f"(given) => (function () {{ {script} }}).apply(null, given)", list(arguments))

    def click(self, selector: str) -> None:
        """A real mouse click, which fails when the element is hidden or covered."""
        self.page.click(selector)

    def click_at(self, x: int, y: int) -> None:
        """A real mouse click at a place of the window."""
        self.page.mouse.move(x, y)
        self.page.wait_for_timeout(100)
        self.page.mouse.down()
        self.page.mouse.up()
        self.page.wait_for_timeout(500)

    def type(self, selector: str, text: str) -> None:
        """Real key strokes at the end of a field."""
        self.page.locator(selector).press_sequentially(text)

    def log(self) -> list[str]:
        """Messages of the console since the last call, without those on refused questions."""
        found = [message for message in self.console if NETWORK not in message]
        self.console.clear()
        return found

    def requested(self) -> list[str]:
        """Every address asked for since the last call."""
        found = list(self.addresses)
        self.addresses.clear()
        return found


@contextmanager
def chromium() -> Iterator[Chromium]:
    """A browser; its processes end with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # As root Chromium runs only without its sandbox; what it opens here is our own.
        browser = driver.chromium.launch(executable_path=program(), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def browser() -> Iterator[Tab]:
    """A page in a browser of its own."""
    with chromium() as started:
        yield Tab(started.new_page(viewport={"width": 1400, "height": 1200}, accept_downloads=True))
