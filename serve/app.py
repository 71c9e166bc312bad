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
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from taylor.base.errors import InputError, TaylorError
from taylor.base.files import read_text
from taylor.parsers.software import FEATURES
from taylor.register.registry import Registry
from taylor.report.html import ASSETS as REPORT_ASSETS
from taylor.serve.changes import best_changes, single_changes, tried
from taylor.serve.jobs import Jobs
from taylor.serve.own_files import MOST_BYTES as MOST_FILE_BYTES
from taylor.serve.pipeline_view import even_pipeline
from taylor.serve.question import Models, Question
from taylor.serve.start_files import START_FRAMEWORKS, start_file
from taylor.workflows.measuring.history import Store
from taylor.workflows.showing.compare import compare

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (REPORT_ASSETS / "parallel.js", ASSETS / "pipeline_view.js", ASSETS / "serve.js")

MOST_BYTES = 64 * 1024
"""Longest request that is read."""

AT_ONCE = 2
"""Estimates that are computed at once; each may take half a gigabyte (`MOST_PASSES`)."""

HOSTS = ["127.0.0.1", "localhost"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"


REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
"""A report runs its own script in an origin of its own: it reaches neither the page nor the network."""

HEADERS = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Of every answer."""

BODY_SECONDS = 10.0
"""Time for the body of a request."""


Result = TypeVar("Result")


@dataclass(frozen=True)
class Page:
    """Parts of the server.

    Parameters
    ----------
    token : str
        Token that a link must have to send requests.
    turns : Semaphore
        Estimates at once.
    changing : Semaphore
        Searches for changes at once: each is a score of estimates, which take a turn one by one, so that a question of
        the page waits for one of them at most.
    """

    token: str
    models: Models
    jobs: Jobs
    store: Store | None
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    changing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    async def in_turn(self, work: Callable[..., Result], *given: Any) -> Result:
        """Compute an estimate once one of the turns is free."""
        async with self.turns:
            return await run_in_threadpool(work, *given)

    def ticket(self, request: Request) -> str:
        """Word of a link that opens one file of a job: the link of a report may be passed on, the token not."""
        name, role = (request.path_params.get(part, "") for part in ("name", "role"))
        return self.ticket_of(name, role) if name and role else self.token

    def ticket_of(self, name: str, role: str) -> str:
        """As `ticket`, of a job's name and a file's role."""
        return hmac.new(self.token.encode(), f"{name}/{role}".encode(), "sha256").hexdigest()


Answer = Callable[[Page, Request], Awaitable[Any]]


def application(page: Page) -> Starlette:
    """Application for a server that is bound to this machine."""

    def route(path: str, answer: Answer, method: str) -> Route:
        async def checked(request: Request) -> Response:
            linked = request.query_params.get("token") if path == "/" else None
            given = request.headers.get("x-token") or linked or ""
            if not (_is(given, page.token) or _is(request.path_params.get("ticket", ""), page.ticket(request))):
                if path == "/":
                    return _locked()
                return _refusal("the token is missing or wrong: open the link that taylor serve printed", 403)
            try:
                found = await answer(page, request)
            except InputError as error:
                return _refusal(str(error), 400, error.field)
            except TaylorError as error:
                return _refusal(str(error), 422)
            except ClientDisconnect:  # nobody hears the answer
                return _refusal("the request ended early", 400)
            done = found if isinstance(found, Response) else JSONResponse(found)
            for name, value in HEADERS.items():
                done.headers.setdefault(name, value)
            return done

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
            route("/api/pipeline", _pipeline, "POST"),
            route("/api/changes", _changes, "POST"),
            route("/api/own", _own, "POST"),
            route("/api/start/{framework}", _start_file, "POST"),
            route("/api/jobs/{kind}", _start, "POST"),
            route("/api/job/{name}", _state, "GET"),
            route("/api/job/{name}/stop", _stop, "POST"),
            route("/api/job/{name}/{role}", _file, "GET"),
            route("/file/{name}/{role}/{ticket}", _file, "GET"),
            route("/api/history", _history, "GET"),
            route("/api/compare/{first}/{second}", _compare, "GET"),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        lifespan=lifespan,
    )


def _is(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _refusal(why: str, status: int, field: str | None = None) -> Response:
    named = {} if field is None else {"field": field}
    return JSONResponse({"error": why, **named}, status_code=status, headers=HEADERS)


async def _body(request: Request, most: int = MOST_BYTES) -> bytes:
    """Body of a request.

    Raises
    ------
    InputError
        When it is longer than any question, or than a file that is taken, or takes too long.
    """
    try:
        return await asyncio.wait_for(_whole_body(request, most), BODY_SECONDS)
    except (TimeoutError, asyncio.TimeoutError):
        raise InputError(f"takes longer than {BODY_SECONDS:g} s to come", field="request") from None


async def _whole_body(request: Request, most: int) -> bytes:
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise InputError(f"is longer than {most} bytes", field="request" if most == MOST_BYTES else "file")
    return bytes(data)


def _locked() -> Response:
    """Page without a token: it asks for one, and keeps the settings of a link that stand behind the ``#``."""
    text = read_text(ASSETS / "locked.html").replace("/*CSS*/", read_text(ASSETS / "serve.css"))
    return HTMLResponse(text, 403, {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"})


async def _front(page: Page, request: Request) -> Response:
    text = read_text(ASSETS / "serve.html").replace("/*CSS*/", read_text(ASSETS / "serve.css"))
    text = text.replace("/*JS*/", "\n".join(map(read_text, SCRIPTS)))
    headers = {"Content-Security-Policy": POLICY}
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
    return await page.in_turn(page.models.answer, ask)


async def _pipeline(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    return await page.in_turn(even_pipeline, page.models, ask)


async def _changes(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    found = []
    async with page.changing:
        await _still_heard(request)
        now = await page.in_turn(page.models.answer, ask)
        for change in single_changes(ask):
            await _still_heard(request)
            found.append(await page.in_turn(tried, page.models, ask, now, change))
    return {"changes": best_changes(found)}


async def _still_heard(request: Request) -> None:
    if await request.is_disconnected():
        raise ClientDisconnect


async def _own(page: Page, request: Request) -> Any:
    own = page.models.own
    if own is None:
        raise InputError("takes no files", field="file")
    data = await _body(request, most=MOST_FILE_BYTES)
    name = own.keep(request.query_params.get("name", ""), data)
    return await page.in_turn(own.question, name)


async def _start_file(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    framework = request.path_params["framework"]
    if framework not in START_FRAMEWORKS:
        raise InputError("is no framework", field="framework", value=framework)
    return asdict(await page.in_turn(start_file, page.models, ask, framework))


async def _start(page: Page, request: Request) -> Any:
    ask = Question.parse(await _body(request))
    kind = request.path_params["kind"]
    if kind == "solve":
        await run_in_threadpool(page.models.config, ask)  # refused before it waits
    else:
        page.models.path(ask.model)
    return {"job": page.jobs.start(kind, ask)}


async def _state(page: Page, request: Request) -> Any:
    name = request.path_params["name"]
    state = page.jobs.state(name)
    links = {role: f"/file/{name}/{role}/{page.ticket_of(name, role)}" for role in state.get("files", ())}
    return state | {"links": links}


async def _stop(page: Page, request: Request) -> Any:
    page.jobs.stop(request.path_params["name"])
    return {}


async def _file(page: Page, request: Request) -> Response:
    path = page.jobs.file(request.path_params["name"], request.path_params["role"])
    if path.suffix == ".html":
        return FileResponse(path, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})
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
