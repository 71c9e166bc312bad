"""The search for changes beside the page's other questions."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from taylor.serve.app import AT_ONCE, Page, application
from taylor.serve.changes import single_changes
from taylor.serve.jobs import Jobs
from taylor.serve.question import Models, Question

ASK = {"model": "llama3-70b", "device": "h100-80g", "ranks": 64, "tp": 8, "pp": 4}
ANSWER = {"tokens_per_second": 1.0, "fits": True, "step_ms": 1.0, "verdict": {"probability": 1.0}}


class Slow(Models):
    """Models that answer no question of the usual length before they are released; each answer is counted."""

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self.released, self.asked = threading.Event(), 0

    def answer(self, ask: Question) -> dict[str, Any]:
        self.asked += 1
        assert ask.seq != 4096 or self.released.wait(60)
        return ANSWER


@pytest.mark.parametrize(
    ("software", "offered"),
    [
        ((), {"fp8=mxfp8", "fp8=tensorwise"}),
        (("tp-comm-overlap",), {"fp8=mxfp8", "fp8=tensorwise"}),
        (("tp-comm-overlap", "fp8=mxfp8"), set()),
        (("fp4=nvfp4", "tp-comm-overlap"), set()),
    ],
)
def test_a_recipe_of_few_bits_is_offered_where_there_is_none(software: tuple[str, ...], offered: set[str]) -> None:
    ask = Question.model_validate(ASK | {"software": software})
    found = [change["software"] for change in single_changes(ask) if "software" in change]
    assert {added for *kept, added in found if tuple(kept) == software} == offered and len(found) == len(offered)


async def post(page: Page, path: str, gone: asyncio.Event, **changes: object) -> bytes:
    """Answer to a question whose asker leaves once `gone` is set."""
    body, sent = json.dumps(ASK | changes).encode(), bytearray()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await gone.wait()
            return {"type": "http.disconnect"}
        return messages.pop()

    async def send(message: Any) -> None:
        sent.extend(message.get("body", b""))

    headers = [(b"host", b"127.0.0.1"), (b"x-token", b"right")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await application(page)(scope, receive, send)
    return bytes(sent)


def page_of(models: Models, tmp_path: Path) -> Page:
    return Page("right", models, Jobs(tmp_path / "jobs", 1), None)


def test_searches_for_changes_leave_a_turn_to_the_page_itself(tmp_path: Path) -> None:
    async def ask() -> None:
        models, gone = Slow(tmp_path), asyncio.Event()
        page = page_of(models, tmp_path)
        searches = [asyncio.create_task(post(page, "/api/changes", gone)) for _ in range(AT_ONCE + 1)]
        try:
            while not models.asked:
                await asyncio.sleep(0.01)
            answer = await asyncio.wait_for(post(page, "/api/estimate", gone, seq=8192), 30)
            assert json.loads(answer) == ANSWER and models.asked == 2
        finally:
            models.released.set()
        for found in await asyncio.gather(*searches):
            assert json.loads(found)["changes"] == []

    asyncio.run(ask())


def test_a_search_for_changes_that_nobody_hears_ends_at_once(tmp_path: Path) -> None:
    async def ask() -> None:
        models, gone = Slow(tmp_path), asyncio.Event()
        search = asyncio.create_task(post(page_of(models, tmp_path), "/api/changes", gone))
        while not models.asked:
            await asyncio.sleep(0.01)
        gone.set()
        models.released.set()
        assert b"ended early" in await search and models.asked == 1

    asyncio.run(ask())
