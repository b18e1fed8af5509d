"""The routes: each takes its arguments, calls one function of the library, and answers in JSON."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Request, Response
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, StrictStr
from starlette.concurrency import run_in_threadpool

import dkaf
from dkaf.campaign.campaign import Campaign
from dkaf.errors import InputError
from dkaf.service.auth import COOKIE, Guard, cookie_of
from dkaf.service.jobs import Jobs
from dkaf.service.problems import Refusal
from dkaf.service.shelf import NAME, Opened, Shelf, last_event
from dkaf.service.tokens import SESSION_SECONDS, Caller, csrf_of
from dkaf.service.uploads import Uploads
from dkaf.service.views import finite, plots, row_of, why

LISTENERS = 200
HEARTBEAT = 15  # seconds
KEY = r"^[A-Za-z0-9_.:-]{1,128}$"
Name = Annotated[str, InPath(description="The campaign's name.", examples=["screen"])]
Key = Annotated[str | None, Field(pattern=KEY, description="The same one twice is one.", examples=["b7e2-1"])]

Delimiter = Annotated[str | None, Field(max_length=1, description="Of the pool's columns; as the upload was found.")]
Encoding = Annotated[str | None, Field(max_length=40, description="Of the pool's text; as the upload was found.")]


class Body(BaseModel):
    """A body with nothing else in it."""

    model_config = ConfigDict(extra="forbid")


class NewCampaign(Body):
    """A campaign to begin."""

    name: Annotated[str, Field(pattern=NAME, examples=["screen"])]
    pool: Annotated[str, Field(max_length=64, description="What POST /api/uploads called it.")]
    policy: Annotated[str, Field(max_length=64, examples=["gp"])] = "gp"
    id: Annotated[str | None, Field(max_length=1000, examples=["smiles"])] = None
    response: Annotated[str | None, Field(max_length=1000, examples=["potency"])] = None
    budget: Annotated[int | None, Field(ge=1, le=10**9, examples=[20])] = None
    minimise: bool | None = None
    kinds: dict[str, str] = {}
    impute: bool = False
    known: Annotated[bool, Field(description="Take over the values in the column `response`.")] = False
    delimiter: Delimiter = None
    encoding: Encoding = None
    seed: Annotated[int, Field(ge=0, lt=2**62)] = 0


class Ask(Body):
    """How many candidates."""

    n: Annotated[int, Field(ge=1, le=1024)] = 1
    request_id: Key = None


class Measured(Body):
    """What a candidate gave, or that it failed."""

    id: Annotated[str, Field(max_length=100_000, examples=["CCO"])]
    value: Annotated[StrictFloat | StrictInt | StrictStr | None, Field(examples=[6.9])] = None
    failed: bool = False


class Tell(Body):
    """Measurements: all of them are told, or none."""

    measurements: Annotated[list[Measured], Field(min_length=1, max_length=100_000)]
    key: Key = None


class Release(Body):
    """A candidate to be asked for again."""

    id: Annotated[str, Field(max_length=100_000)]
    key: Key = None


class Undo(Body):
    """Nothing but a key."""

    key: Key = None


class NewJob(Body):
    """A policy to train."""

    campaigns: Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=10_000)]
    name: Annotated[str, Field(pattern=NAME, examples=["assay"])]
    response: Annotated[str | None, Field(max_length=1000)] = None
    settings: Annotated[dict[str, bool | int | float | str | None], Field(max_length=64)] = {}


class Login(Body):
    """A token, to be exchanged for a cookie."""

    token: Annotated[str, Field(max_length=1000)]


def routes(shelf: Shelf, uploads: Uploads, jobs: Jobs, demo: str | None = None) -> APIRouter:
    """All of them but the demo's; `demo` is the corpus it plays with."""
    api = APIRouter(prefix="/api")
    listening = anyio.CapacityLimiter(4)  # threads of their own: who listens keeps nobody from asking
    listeners = 0

    def status(opened: Opened) -> JSONResponse:
        told = shelf.status(opened)
        pool = told["pool"]
        return _json(told | {"pool": None if pool is None else uploads.filename(pool)})

    @api.get("/about")
    def about(request: Request) -> JSONResponse:
        """Which version this is, and who the caller is."""
        caller = _caller(request)
        chem = importlib.util.find_spec("rdkit") is not None
        csrf = None if caller.session is None else csrf_of(caller.session)
        return _json(
            {
                "version": dkaf.__version__,
                "chem": chem,
                "role": caller.role,
                "demo": demo,
                "name": caller.name,
                "csrf": csrf,
                "upload_limit": _guard(request).limits.upload,
            }
        )

    @api.get("/campaigns")
    def campaigns() -> JSONResponse:
        """Every campaign in a few words."""
        return _json(list(shelf.summaries()))

    @api.post("/campaigns", status_code=201)
    def create(new: NewCampaign) -> JSONResponse:
        """Begin a campaign on an uploaded pool."""
        path, pool, policy = shelf.path(new.name), uploads.path(new.pool), shelf.policy(new.policy)
        if path.exists():
            raise Refusal(409, f"campaigns have names of their own, {new.name!r} is there; name another")
        reading = uploads.reading(new.pool, new.delimiter, new.encoding)
        try:
            known = uploads.measured(new.pool, new.id, _known_column(new), reading) if new.known else None
            Campaign.create(
                path, pool, policy, id=new.id, budget=new.budget, minimise=_direction(new), response=new.response,
                known=known, kinds=new.kinds, impute=new.impute, seed=new.seed, delimiter=reading["delimiter"],
                encoding=reading["encoding"],
            )  # fmt: skip
        except InputError as error:
            if path.exists() and "there already" in str(error):
                raise Refusal(409, f"campaigns have names of their own, {new.name!r} is there; name another") from None
            raise InputError(str(error).replace(str(pool), uploads.filename(new.pool))) from error
        answer = status(shelf.open(new.name))
        answer.status_code = 201
        return answer

    @api.get("/campaigns/{name}")
    def one(name: Name) -> JSONResponse:
        """Where a campaign is: best so far, history, pending, what is left."""
        return status(shelf.open(name))

    @api.post("/campaigns/{name}/ask")
    def ask(name: Name, body: Ask, request: Request) -> JSONResponse:
        """Which candidates to try next; they are reserved. The same request_id twice gives the same ones."""
        opened, caller = shelf.open(name), _caller(request)
        with opened.computing:
            candidates = opened.campaign.ask(body.n, who=caller.name, key=_key(caller, body.request_id))
        return _json([candidate._asdict() for candidate in candidates])

    @api.post("/campaigns/{name}/tell")
    def tell(name: Name, body: Tell, request: Request) -> JSONResponse:
        """What candidates gave; on disk when this answers. The same key twice is told once."""
        opened, caller = shelf.open(name), _caller(request)
        for each in body.measurements:
            if each.failed == (each.value is not None):
                raise InputError(
                    f"a measurement has a value or has failed, {each.id!r} came with both or none; send one"
                )
        opened.campaign.tell_all(
            [(each.id, each.value) for each in body.measurements if each.value is not None],
            failed=[each.id for each in body.measurements if each.failed],
            who=caller.name,
            key=_key(caller, body.key),
        )
        return status(opened)

    @api.post("/campaigns/{name}/undo")
    def undo(name: Name, body: Undo, request: Request) -> JSONResponse:
        """Take back the last measurement, failure or release."""
        caller = _caller(request)
        return _json(shelf.open(name).campaign.undo(who=caller.name, key=_key(caller, body.key)))

    @api.post("/campaigns/{name}/release")
    def release(name: Name, body: Release, request: Request) -> JSONResponse:
        """A candidate that is pending or failed may be asked for again."""
        opened, caller = shelf.open(name), _caller(request)
        opened.campaign.release(body.id, who=caller.name, key=_key(caller, body.key))
        return status(opened)

    @api.get("/campaigns/{name}/candidates")
    def candidate_called(name: Name, id: str) -> JSONResponse:  # noqa: A002 - the query's name
        """Why this candidate: what is expected of it, and the measured ones that are near. It is named by its id."""
        opened = shelf.open(name)
        row = row_of(opened.campaign, id)
        with opened.computing:
            return _json(why(opened.campaign, row))

    @api.get("/campaigns/{name}/candidates/{row}")
    def candidate(name: Name, row: int) -> JSONResponse:
        """The same, named by its row in the pool, from 0."""
        opened = shelf.open(name)
        with opened.computing:
            return _json(why(opened.campaign, row))

    @api.get("/campaigns/{name}/plots")
    def drawn(name: Name) -> JSONResponse:
        """The numbers behind the plots."""
        opened = shelf.open(name)
        with opened.computing:
            events = opened.last_event()
            if opened.plots is None or opened.plots[0] != events:
                opened.plots = events, finite(plots(opened.campaign))
            return JSONResponse(opened.plots[1])

    @api.get("/campaigns/{name}/export.csv", response_class=PlainTextResponse)
    def export(name: Name) -> Response:
        """What was measured, is pending or failed, with the pool's columns."""
        text = shelf.open(name).campaign.export()
        return Response(
            text, media_type="text/csv", headers={"content-disposition": f'attachment; filename="{name}.csv"'}
        )

    @api.get("/campaigns/{name}/events", response_class=StreamingResponse)
    async def events(name: Name, request: Request) -> StreamingResponse:
        """Server-sent events: `changed` whenever something happened, also through another process."""
        path = await run_in_threadpool(shelf.existing, name)
        if listeners >= LISTENERS:
            raise Refusal(429, f"{LISTENERS} clients listen at once, so many do; wait", {"retry-after": "10"})
        caller, guard = _caller(request), _guard(request)

        async def changes() -> AsyncIterator[str]:
            nonlocal listeners
            listeners += 1
            try:
                known, quiet = None, 0
                while guard.still(caller):
                    try:
                        seen = await anyio.to_thread.run_sync(last_event, path, limiter=listening)
                    except InputError:
                        return
                    if seen != known:
                        known, quiet = seen, 0
                        yield f'event: changed\ndata: {{"events": {seen}}}\n\n'
                    elif (quiet := quiet + 1) >= HEARTBEAT:
                        quiet = 0
                        yield ": still here\n\n"
                    await asyncio.sleep(1.0)
            finally:
                listeners -= 1

        return StreamingResponse(changes(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    @api.post("/uploads", status_code=201, openapi_extra={"requestBody": _FILE})
    async def upload(request: Request) -> JSONResponse:
        """A pool (.csv, .tsv, .parquet) or a policy (.safetensors), as the part `file` of multipart/form-data."""
        beside, filename = await uploads.receive(request.headers.get("content-type", ""), request.stream())
        return _json(await run_in_threadpool(uploads.accept, beside, filename), 201)

    @api.get("/uploads/{upload}")
    def look(upload: str, delimiter: Delimiter = None, encoding: Encoding = None) -> JSONResponse:
        """What an uploaded pool holds, read with another delimiter or encoding."""
        return _json(uploads.look(upload, delimiter, encoding))

    @api.get("/policies")
    def policies() -> JSONResponse:
        """What each policy says of itself."""
        return _json(list(shelf.described_policies()))

    @api.post("/jobs", status_code=202)
    def train(body: NewJob, request: Request) -> JSONResponse:
        """Train a policy on finished campaigns, in the background."""
        return _json(jobs.begin(body.campaigns, body.name, body.response, body.settings, _caller(request).name), 202)

    @api.get("/jobs")
    def all_jobs() -> JSONResponse:
        """All trainings, the newest first."""
        return _json(jobs.all())

    @api.get("/jobs/{job}")
    def one_job(job: str) -> JSONResponse:
        """How far a training is."""
        return _json(jobs.one(job))

    @api.delete("/jobs/{job}")
    def cancel(job: str) -> JSONResponse:
        """End a training; one that has ended stays as it is."""
        return _json(jobs.cancel(job))

    @api.post("/session")
    def log_in(body: Login, request: Request) -> JSONResponse:
        """Exchange a token for a cookie that scripts cannot read; changes then need X-CSRF-Token."""
        address = request.client.host if request.client else "?"
        session = _guard(request).log_in(body.token, address)
        answer = _json({"csrf": csrf_of(session)})
        answer.set_cookie(
            COOKIE, session, max_age=SESSION_SECONDS, httponly=True, samesite="strict",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    @api.delete("/session")
    def log_out(request: Request) -> JSONResponse:
        """End the session."""
        session = cookie_of(request.headers)
        if session is not None:
            _guard(request).sessions.end(session)
        answer = _json({})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    return api


_FILE = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {"file": {"type": "string", "format": "binary"}},
            }
        }
    },
}


def _json(value: Any, status: int = 200) -> JSONResponse:
    return JSONResponse(finite(value), status)


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def _guard(request: Request) -> Guard:
    guard: Guard = request.state.guard
    return guard


def _key(caller: Caller, key: str | None) -> str | None:
    """Keys are the caller's own: two clients may count from 1."""
    return None if key is None else f"{caller.name}/{key}"


def _direction(new: NewCampaign) -> bool | None:
    """A trained policy says by itself which way is better; a page's unticked box does not contradict it."""
    return new.minimise if new.policy == "gp" or new.minimise else None


def _known_column(new: NewCampaign) -> str:
    """Where the known values are; which candidates they are of has to be said, too."""
    if new.response is None or (new.id is None and new.policy != "gp"):
        raise InputError("known values have a column `response`, and an `id` if a policy was trained; name them")
    return new.response
