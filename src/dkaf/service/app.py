"""The application: the routes behind the guard, the page, and one way to say what is wrong."""

from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

import dkaf
from dkaf.errors import InputError
from dkaf.service.api import routes
from dkaf.service.auth import Guard, Limits
from dkaf.service.demo import demo_routes
from dkaf.service.description import describe, methods_at
from dkaf.service.jobs import Jobs
from dkaf.service.problems import MEDIA_TYPE, of_body, problem, status_of
from dkaf.service.reference import as_html
from dkaf.service.scene import Scene
from dkaf.service.shelf import Shelf
from dkaf.service.uploads import Uploads

PAGE = Path(__file__).with_name("page")
FOLDERS = ("campaigns", "policies", "uploads", "jobs")
WITHOUT_PAGE = "dkaf serves campaigns here; this installation has no page. What machines can ask: /docs\n"
PLAINLY = {
    (404, "Not Found"): "there is nothing at this address; /openapi.json says what there is",
    (405, "Method Not Allowed"): "this address knows other methods; /openapi.json says which",
    (400, "There was an error parsing the body"): "a body is JSON in UTF-8, this one is not; correct it",
}
"""What the framework says, in our words."""


def create_app(
    folder: Path, limits: Limits | None = None, scene: Scene | None = None, *, local: bool = True
) -> FastAPI:
    """The service of a folder, which is made if it is not there; with a scene there is the demo, too.

    `local`: other machines cannot reach it, so that it may be used without tokens.
    """
    folder = folder.resolve()
    make_folder(folder)
    shelf = Shelf(folder)
    uploads = Uploads(shelf)
    uploads.tidy(started=True)
    app = FastAPI(title="dkaf", version=dkaf.__version__, description=dkaf.__doc__ or "", docs_url=None, redoc_url=None)
    describe(app)
    app.state.closing = False
    app.include_router(routes(shelf, uploads, Jobs(shelf), None if scene is None else scene.corpus.name))
    if scene is not None:
        app.include_router(demo_routes(scene))
    _add_page(app)
    _add_problems(app, shelf)
    app.add_middleware(Guard, folder=folder, limits=limits or Limits(), local=local)
    return app


def _add_page(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    def page() -> Response:
        index = PAGE / "index.html"
        return FileResponse(index) if index.is_file() else PlainTextResponse(WITHOUT_PAGE)

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:  # FastAPI's own page loads scripts from elsewhere
        return HTMLResponse(as_html(app.openapi()))

    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False), name="static")


def _add_problems(app: FastAPI, shelf: Shelf) -> None:
    def answer(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
        return JSONResponse(problem(status, shelf.public(detail)), status, headers, media_type=MEDIA_TYPE)

    @app.exception_handler(InputError)
    async def refused(_: Request, error: InputError) -> Response:
        status, headers = status_of(error)
        return answer(status, str(error), headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return answer(422, of_body(error.errors()))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        said, headers = str(error.detail), dict(error.headers or {})
        allowed = ", ".join(methods_at(app.openapi(), request.url.path))
        if error.status_code == 405 and allowed:  # Starlette names those of the first route alone
            return answer(405, f"this address takes {allowed}, {request.method} came; use one", {"allow": allowed})
        return answer(error.status_code, PLAINLY.get((error.status_code, said), said), headers)


def make_folder(folder: Path) -> None:
    """A service's folder, if it is not there."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for name in FOLDERS:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--data is a folder that can be written, {folder} is not: {error.strerror}; name another"
        ) from error
