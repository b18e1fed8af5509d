"""The application: the routes behind the guard, the page, and one way to say what is wrong."""

import os
import socket
from pathlib import Path
from typing import Any

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import dkaf
from dkaf.errors import InputError
from dkaf.service.api import routes
from dkaf.service.auth import Guard, Limits
from dkaf.service.jobs import Jobs
from dkaf.service.problems import MEDIA_TYPE, Refusal, of_body, problem
from dkaf.service.shelf import Shelf
from dkaf.service.tokens import check_host
from dkaf.service.uploads import Uploads

PAGE = Path(__file__).with_name("page")
THREADS = 160
FOLDERS = ("campaigns", "policies", "uploads", "jobs")
WITHOUT_PAGE = "dkaf serves campaigns here; this installation has no page. What machines can ask: /docs\n"
NOTHING = "there is nothing at this address; /openapi.json says what there is"


def create_app(folder: Path, limits: Limits | None = None) -> FastAPI:
    """The service of a folder, which is made if it is not there."""
    folder = folder.resolve()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--data is a folder that can be written, {folder} is not: {error.strerror}; name another"
        ) from error
    shelf = Shelf(folder)
    uploads = Uploads(shelf)
    uploads.tidy()
    app = FastAPI(
        title="dkaf", version=dkaf.__version__, description=dkaf.__doc__ or "", docs_url=None, redoc_url=None,
        responses={"4XX": {"description": "What is wrong, in one sentence.", "content": {MEDIA_TYPE: {}}}},
    )  # fmt: skip
    app.include_router(routes(shelf, uploads, Jobs(shelf)))
    _add_page(app)
    _add_problems(app, shelf)
    app.add_middleware(Guard, folder=folder, limits=limits or Limits())
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        index = PAGE / "index.html"
        return FileResponse(index) if index.is_file() else PlainTextResponse(WITHOUT_PAGE)

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:  # FastAPI's own page loads scripts from elsewhere
        return RedirectResponse("/openapi.json")

    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False), name="static")


def _add_problems(app: FastAPI, shelf: Shelf) -> None:
    def answer(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
        return JSONResponse(problem(status, shelf.public(detail)), status, headers, media_type=MEDIA_TYPE)

    @app.exception_handler(InputError)
    async def refused(_: Request, error: InputError) -> Response:
        status, headers = (error.status, error.headers) if isinstance(error, Refusal) else (400, {})
        return answer(status, str(error), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return answer(422, of_body(error.errors()))

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        said = NOTHING if (error.status_code, error.detail) == (404, "Not Found") else str(error.detail)
        return answer(error.status_code, said, dict(error.headers or {}))


def serve(folder: Path, host: str, port: int, limits: Limits, started: Any = None) -> None:
    """Serve until interrupted; `started` gets the address when it is bound."""
    import uvicorn

    from dkaf.service.connections import patient_for

    check_host(folder, host)
    app = create_app(folder, limits)
    bound = _bound(host, port)
    try:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=3,
            lifespan="off", http=patient_for(limits.headers), ws="none",
        )  # fmt: skip
        if started is not None:
            shown = f"[{host}]" if ":" in host else host
            started(f"http://{shown}:{bound.getsockname()[1]}/")
        _with_threads(uvicorn.Server(config)).run(sockets=[bound])
    finally:
        bound.close()


def _with_threads(server: Any) -> Any:
    """With as many threads as clients that may wait for one another: they are then answered together."""
    serve = server.serve

    async def with_threads(sockets: list[socket.socket]) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        await serve(sockets)

    server.serve = with_threads
    return server


def _bound(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family[0], socket.SOCK_STREAM)
        if os.name == "posix":
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(family[4])
        bound.listen(2048)
        return bound
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(
            f"--host and --port are free to bind, {host} {port} is not ({error}); choose others"
        ) from error
