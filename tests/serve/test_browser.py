"""The page as a person uses it, in a real browser: from a training file to a start script, in both languages."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.read import read_config
from tests.browser import Tab, axe_script, chromium, missing
from tests.conftest import ROOT

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=f"needs {missing()}")]

GIVEN = ROOT / "config" / "pretrain_llama3_70b.sh"
SOLVE_SECONDS = 240
"""Longest wait for a plan on a busy machine."""

TAGS = {"en": "en-GB", "zh": "zh-CN"}

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + turn)}: &{chr(98 + turn)} [{','.join(['*' + chr(97 + turn)] * 9)}]\n" for turn in range(12)
)

DROP = """
const bytes = Uint8Array.from(given.latin, (sign) => sign.charCodeAt(0)), carried = new DataTransfer();
carried.items.add(new File([bytes], given.name));
for (const kind of ["dragover", "drop"]) {
  document.body.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }));
}
"""


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link that the command prints."""
    folder = tmp_path_factory.mktemp("served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(ROOT / "taylor" / "__main__.py"), "serve", "--port", str(port), "--workers", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(words, cwd=folder, stderr=log, env=environment)
    try:
        while True:
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.1)
        found = re.search(r"http://\S+", (folder / "log").read_text())
        assert found is not None
        yield found[0]
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=30) in (0, 130) and "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def started():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(started):
    """Opens pages, each as a visitor of its own with nothing remembered."""
    contexts = []

    @contextmanager
    def opened(language: str = "en", width: int = 1440, scheme: str = "light") -> Iterator[Tab]:
        context = started.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, locale=TAGS[language], accept_downloads=True
        )
        contexts.append(context)
        yield Tab(context.new_page())

    yield opened
    for context in contexts:
        context.close()


def drop(tab: Tab, name: str, data: bytes) -> None:
    """Drop a file on the page."""
    tab.page.evaluate(f"(given) => {{ {DROP} }}", {"name": name, "latin": data.decode("latin-1")})


def settled(tab: Tab, error: str = "") -> None:
    """Wait until the page has answered its present settings, or refused them with these words."""
    tab.until("document.body.dataset.answered === String(asked)")
    said = tab.run("return document.getElementById('error').textContent")
    assert error in said if error else not said, said


def shown(tab: Tab) -> dict[str, str]:
    """Figures of the page, and what a screen reader hears of its memory."""
    figures = tab.run(
        "const found = [...document.querySelectorAll('#figures dd')];"
        "return Object.fromEntries(found.map((one) => [one.id, one.textContent]));"
    )
    return figures | {"memory": tab.run("return document.getElementById('memory').getAttribute('aria-label')")}


def downloaded(tab: Tab, selector: str, folder: Path) -> Path:
    """File that a click brings."""
    with tab.page.expect_download() as coming:
        tab.click(selector)
    path = folder / coming.value.suggested_filename
    coming.value.save_as(path)
    return path


def is_sound(tab: Tab) -> None:
    """Nothing is wider than the window, axe-core has no objection, the console is empty."""
    assert tab.run("return document.documentElement.scrollWidth <= window.innerWidth")
    axe = axe_script()
    assert axe is None or tab.violations(axe) == []
    assert tab.log() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_dropped_file_becomes_a_plan_and_its_start_script(link, visit, tmp_path, language, width, scheme):
    with visit(language, width, scheme) as tab:
        tab.open(link)
        assert tab.run("return document.documentElement.lang") == language
        dark = tab.run("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"
        assert dark == (scheme == "dark")
        drop(tab, GIVEN.name, GIVEN.read_bytes())
        tab.until(f"document.body.dataset.given === '{GIVEN.name}'")
        settled(tab)
        tab.until("document.body.dataset.changes === String(asked)")
        assert {"en": "stage 0", "zh": "级 0"}[language] in tab.run(
            "return document.querySelector('#memory title').textContent"
        )
        assert tab.page.locator("#pipeline path.held").count() == 4
        is_sound(tab)
        tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        tab.run("set({ seconds: 5 })")
        tab.click("#solve")
        tab.until("document.body.dataset.done", SOLVE_SECONDS)
        assert {"en": "a step", "zh": "单步"}[language] in tab.run(
            "return document.getElementById('progress').textContent"
        )
        assert tab.page.locator("#plan-pipeline path.held").count() == 4
        solved = read_config(downloaded(tab, "#file-script", tmp_path))
        tab.page.select_option("#start-framework", "mindspeed")
        even = read_config(downloaded(tab, "#start", tmp_path))
        is_sound(tab)
    given = read_config(GIVEN)
    for config in (solved, even):
        assert config.strategy.world_size == given.strategy.world_size and config.strategy.tp == given.strategy.tp
        assert total_parameters(config.model) == total_parameters(given.model) and config.plan is not None


def test_a_model_and_its_devices_typed_by_hand_are_answered_and_half_typed_ones_refused(link, visit):
    with visit() as tab:
        tab.open(link)
        before = shown(tab)
        tab.page.fill("#model", "qwen")
        tab.page.press("#model", "Tab")
        tab.until("document.getElementById('error').textContent")
        settled(tab, "no model of that name")
        assert tab.run("return document.getElementById('model').getAttribute('aria-invalid')") == "true"
        tab.page.fill("#model", "Qwen2.5-7B")
        tab.page.fill("#ranks", "32")
        tab.page.press("#ranks", "Tab")
        tab.page.focus("#tp")
        tab.page.press("#tp", "ArrowLeft")
        settled(tab)
        assert shown(tab) != before
        is_sound(tab)


SETTINGS = {
    "ranks": 32, "gbs": 64, "seq": 8192, "framework": "megatron", "software": ["fp8=tensorwise"], "sp": False,
    "limit_mib": 70_000, "stage_limit": {"1": 60_000},
    "run": {"tp": 8, "pp": 4, "measured_peak": {"0": 58_000}, "out_of_memory": []},
}  # fmt: skip


def test_a_link_opened_in_another_browser_gives_the_same_answer_and_holds_no_token(link, visit):
    with visit() as tab:
        tab.open(link)
        tab.run("set(arguments[0]); estimate();", SETTINGS)
        settled(tab)
        first, asked = shown(tab), tab.run("return question()")
        assert {name: asked[name] for name in SETTINGS if name != "run"} | {"run": asked["run"]} == SETTINGS
        tab.click("#link")
        tab.until("document.body.dataset.link")
        copied = tab.run("return document.body.dataset.link")
    token = link.partition("token=")[2]
    assert token not in copied
    with visit() as other:
        other.page.goto(copied)
        other.page.fill("#token", token)
        other.page.press("#token", "Enter")
        other.until("document.body.dataset.ready")
        settled(other)
        assert other.run("return question()") == asked and shown(other) == first
        # A further link that says less takes back what only the first one says.
        other.run("location.hash = `#q=${coded({ ranks: 128, gbs: 64 })}`")
        other.until("document.getElementById('ranks').value === '128'")
        settled(other)
        plain = other.run("return question()")
        assert not {"framework", "software", "sp", "limit_mib", "stage_limit", "run"} & set(plain)
        assert other.run("return document.getElementById('seen-peak').value") == ""
        assert other.log() == []


def test_a_given_file_takes_back_assumptions_that_it_does_not_state(link, visit):
    with visit() as tab:
        tab.open(link)
        tab.run("set(arguments[0]); estimate();", SETTINGS)
        settled(tab)
        drop(tab, GIVEN.name, GIVEN.read_bytes())
        tab.until(f"document.body.dataset.given === '{GIVEN.name}'")
        asked = tab.run("return question()")
        assert asked["framework"] == "megatron" and not {"software", "limit_mib", "stage_limit", "run"} & set(asked)


@pytest.mark.parametrize(
    "text", ["#q=%%%", "#q=bnVsbA", "#q=W10", "#q=eyJzb2Z0d2FyZSI6NSwicnVuIjo1LCJzdGFnZV9saW1pdCI6NX0"]
)
def test_a_link_that_states_nonsense_leaves_a_page_that_works(link, visit, text):
    with visit() as tab:
        tab.open(link + text)
        tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        tab.click("#forget")
        settled(tab)
        assert shown(tab)["figure-step"]
        assert tab.log() == []


@pytest.mark.parametrize(
    ("name", "data", "english", "chinese"),
    [
        ("run.sh", b"echo 1\n" * 750_000, "longer than 1 MiB", "文件超过 1 MiB"),
        ("model.yaml", b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)), "is no text", "不是文本"),
        ("bomb.yaml", BOMB.encode(), "bomb.yaml", "bomb.yaml"),
    ],
)
def test_what_is_no_training_file_is_refused_in_words(link, visit, name, data, english, chinese):
    for language, words in (("en", english), ("zh", chinese)):
        with visit(language, 390) as tab:
            tab.open(link)
            before = shown(tab)
            drop(tab, name, data)
            tab.until("document.getElementById('given').className === 'bad'")
            assert words in tab.run("return document.getElementById('given').textContent")
            assert shown(tab) == before
            is_sound(tab)


def test_a_ranking_and_the_number_of_devices_are_shown_on_a_phone(link, visit):
    with visit("en", 390) as tab:
        tab.open(link)
        for button, selector, seconds in (("#rank", "#plan svg.parallel", 5), ("#size", "#plan svg.curve", 300)):
            tab.run("set(arguments[0]); delete document.body.dataset.done;", {"seconds": seconds})
            tab.click(button)
            tab.until("document.body.dataset.done", 2 * SOLVE_SECONDS)
            assert tab.run("return document.getElementById('progress').className") == "", tab.page.inner_text(
                "#progress"
            )
            tab.page.locator(selector).first.wait_for()
            is_sound(tab)


def test_two_runs_of_the_history_are_compared(link, visit):
    with visit() as tab:
        tab.open(link)
        for recompute in (100, 0):
            tab.run("set(arguments[0]); delete document.body.dataset.done;", {"recompute": recompute, "seconds": 5})
            tab.click("#solve")
            tab.until("document.body.dataset.done", SOLVE_SECONDS)
        tab.until("document.querySelectorAll('#history input').length >= 2")
        for at in range(2):
            tab.page.locator("#history input").nth(at).check()
        tab.click("#compare")
        tab.until("document.getElementById('verdict').textContent")
        is_sound(tab)


def test_settings_that_changed_after_an_answer_are_marked_and_restored(link, visit):
    with visit() as tab:
        tab.open(link)
        tab.run("set({ seconds: 5 })")
        tab.click("#solve")
        tab.until("document.body.dataset.done", SOLVE_SECONDS)
        asked = tab.run("return question()")
        assert tab.page.is_hidden("#stale")
        tab.run("set(arguments[0]); estimate();", SETTINGS)
        settled(tab)
        assert tab.page.is_visible("#stale")
        tab.click("#back")
        settled(tab)
        assert tab.page.is_hidden("#stale") and json.dumps(tab.run("return question()")) == json.dumps(asked)
