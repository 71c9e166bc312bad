"""Server of the page: a few addresses that answer in JSON, all behind a token, for this machine alone."""

from __future__ import annotations

import asyncio
import hmac
import html
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from taylor.base.errors import InputError, TaylorError
from taylor.base.files import read_text
from taylor.parsers.software import FEATURES
from taylor.register.registry import Registry
from taylor.serve.changes import changes_of
from taylor.serve.jobs import Jobs
from taylor.serve.own_files import MOST_BYTES as MOST_FILE_BYTES
from taylor.serve.question import Models, Question
from taylor.serve.start_files import START_FRAMEWORKS, start_file
from taylor.workflows.measuring.history import Store
from taylor.workflows.showing.compare import compare

ASSETS = Path(__file__).parent / "assets"

MOST_BYTES = 64 * 1024
"""Longest request that is read."""

AT_ONCE = 2
"""Estimates that are computed at once; each may take half a gigabyte (`MOST_PASSES`)."""

HOSTS = ["127.0.0.1", "localhost"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"


@dataclass(frozen=True)
class Page:
    """Parts of the server.

    Parameters
    ----------
    token : str
        Token that a link must have to send requests.
    """

    token: str
    models: Models
    jobs: Jobs
    store: Store | None
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))


Answer = Callable[[Page, Request], Awaitable[Any]]


def application(page: Page) -> Starlette:
    """Application for a server that is bound to this machine."""

    def route(path: str, answer: Answer, method: str) -> Route:
        async def checked(request: Request) -> Response:
            given = request.headers.get("x-token") or request.query_params.get("token") or ""
            if not hmac.compare_digest(given.encode(), page.token.encode()):
                if path == "/":
                    return _locked()
                return _refusal("the token is missing or wrong: open the link that taylor serve printed", 403)
            try:
                found = await answer(page, request)
            except InputError as error:
                return _refusal(str(error), 400, error.field)
            except TaylorError as error:
                return _refusal(str(error), 422)
            return found if isinstance(found, Response) else JSONResponse(found)

        return Route(path, checked, methods=[method])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await page.jobs.close()

    return Starlette(
        routes=[
            route("/", _front, "GET"),
            route("/api/choices", _choices, "GET"),
            route("/api/estimate", _estimate, "POST"),
            route("/api/changes", _changes, "POST"),
            route("/api/own", _own, "POST"),
            route("/api/start/{framework}", _start_file, "POST"),
            route("/api/jobs/{kind}", _start, "POST"),
            route("/api/job/{name}", _state, "GET"),
            route("/api/job/{name}/stop", _stop, "POST"),
            route("/api/job/{name}/{role}", _file, "GET"),
            route("/api/history", _history, "GET"),
            route("/api/compare/{first}/{second}", _compare, "GET"),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        lifespan=lifespan,
    )


def _refusal(why: str, status: int, field: str | None = None) -> Response:
    return JSONResponse({"error": why, **({} if field is None else {"field": field})}, status_code=status)


async def _body(request: Request, most: int = MOST_BYTES) -> bytes:
    """Body of a request.

    Raises
    ------
    InputError
        When it is longer than any question, or than a file that is taken.
    """
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise InputError(f"is longer than {most} bytes", field="request" if most == MOST_BYTES else "file")
    return data


def _locked() -> Response:
    """Page without a token: it asks for one, and keeps the settings of a link that stand behind the ``#``."""
    text = read_text(ASSETS / "locked.html").replace("/*CSS*/", read_text(ASSETS / "serve.css"))
    return HTMLResponse(text, 403, {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"})


async def _front(page: Page, request: Request) -> Response:
    parts = {name: read_text(ASSETS / f"serve.{name}") for name in ("html", "css", "js")}
    text = parts["html"].replace("/*CSS*/", parts["css"]).replace("/*JS*/", parts["js"])
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}
    return HTMLResponse(text.replace("%TOKEN%", html.escape(json.dumps(page.token))), headers=headers)


async def _choices(page: Page, request: Request) -> Any:
    return {
        "models": await run_in_threadpool(page.models.names),
        "devices": list(Registry.load(None).devices),
        "frameworks": START_FRAMEWORKS,
        "features": {name: feature.values for name, feature in FEATURES.items()},
    }


async def _estimate(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    async with page.turns:
        return await run_in_threadpool(page.models.answer, ask)


async def _changes(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    async with page.turns:
        return {"changes": await run_in_threadpool(changes_of, page.models, ask)}


async def _own(page: Page, request: Request) -> Any:
    own = page.models.own
    if own is None:
        raise InputError("takes no files", field="file")
    data = await _body(request, most=MOST_FILE_BYTES)
    name = own.keep(request.query_params.get("name", ""), data)
    async with page.turns:
        return await run_in_threadpool(own.question, name)


async def _start_file(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    framework = request.path_params["framework"]
    if framework not in START_FRAMEWORKS:
        raise InputError("is no framework", field="framework", value=framework)
    async with page.turns:
        return asdict(await run_in_threadpool(start_file, page.models, ask, framework))


async def _start(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    kind = request.path_params["kind"]
    if kind == "solve":
        await run_in_threadpool(page.models.config, ask)  # refused before it waits
    else:
        page.models.path(ask.model)
    return {"job": page.jobs.start(kind, ask)}


async def _state(page: Page, request: Request) -> Any:
    return page.jobs.state(request.path_params["name"])


async def _stop(page: Page, request: Request) -> Any:
    page.jobs.stop(request.path_params["name"])
    return {}


async def _file(page: Page, request: Request) -> Response:
    path = page.jobs.file(request.path_params["name"], request.path_params["role"])
    if path.suffix == ".html":
        return FileResponse(path, media_type="text/html")
    return FileResponse(path, media_type="application/octet-stream", filename=path.name)


async def _history(page: Page, request: Request) -> Any:
    if page.store is None:
        return {"runs": []}
    try:
        runs = await run_in_threadpool(page.store.runs)
    except InputError:
        return {"runs": []}  # nothing has been solved yet
    return {"runs": [asdict(run) | {"ranking": run.file.endswith(".csv")} for run in runs]}


async def _compare(page: Page, request: Request) -> Any:
    if page.store is None:
        raise InputError("no run is remembered", field="--store")
    first, second = request.path_params["first"], request.path_params["second"]
    store = page.store

    def answer() -> dict[str, Any]:
        return compare((first, second), (store.result(first), store.result(second))).to_dict()

    return await run_in_threadpool(answer)
