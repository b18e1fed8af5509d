"""The routes: each takes its arguments, calls one function of the library, and answers in JSON."""

import asyncio
import importlib.util
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

import dkaf
from dkaf.campaign.campaign import Campaign
from dkaf.errors import InputError
from dkaf.service import answers as said
from dkaf.service.answers import WITH_BODY, answers
from dkaf.service.auth import COOKIE, Guard, cookie_of
from dkaf.service.bodies import (
    FILE,
    Ask,
    CandidateId,
    Delimiter,
    Encoding,
    JobName,
    Login,
    Name,
    NewCampaign,
    NewJob,
    PolicyName,
    Release,
    Row,
    Tell,
    Undo,
    UploadName,
)
from dkaf.service.jobs import Jobs
from dkaf.service.problems import Refusal
from dkaf.service.shelf import Opened, Shelf, Watch
from dkaf.service.tokens import SESSION_SECONDS, Caller, csrf_of
from dkaf.service.uploads import Uploads
from dkaf.service.views import finite, plots, row_of, why

LISTENERS = 200
HEARTBEAT = 15  # seconds
GLANCE = 0.2  # seconds between two looks whether a client is still there


class Listening(StreamingResponse):
    """A stream that has one of a limited number of places, from its beginning until its client has gone."""

    def __init__(self, places: "set[Listening]", changes: AsyncIterator[str]) -> None:
        if len(places) >= LISTENERS:
            raise Refusal(429, f"{LISTENERS} clients listen at once, so many do; wait", {"retry-after": "10"})
        super().__init__(changes, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._places = places
        places.add(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._places.discard(self)


def routes(shelf: Shelf, uploads: Uploads, jobs: Jobs, demo: str | None = None) -> APIRouter:
    """All of them but the demo's; `demo` is the corpus it plays with."""
    api = APIRouter(prefix="/api")
    listening = anyio.CapacityLimiter(4)  # threads of their own: who listens keeps nobody from asking
    listeners: set[Listening] = set()

    def status(opened: Opened) -> JSONResponse:
        told = shelf.status(opened)
        pool = told["pool"]
        return _json(told | {"pool": None if pool is None else uploads.filename(pool)})

    def begun(name: str, key: str | None, mine: bool = False) -> JSONResponse:
        opened = shelf.open(name)
        if not mine and (key is None or opened.campaign.creation_key != key):
            raise Refusal(409, f"campaigns have names of their own, {name!r} is there; name another")
        answer = status(opened)
        answer.status_code = 201
        return answer

    @api.get("/about", responses=answers(200, said.About, "The service and the caller."))
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

    @api.get("/campaigns", responses=answers(200, list[said.Summary], "All campaigns, by name."))
    def campaigns() -> JSONResponse:
        """Every campaign in a few words."""
        return _json(list(shelf.summaries()))

    @api.post(
        "/campaigns",
        status_code=201,
        responses=answers(201, said.Status, "It has begun.", *WITH_BODY, 404, 409),
    )
    def create(new: NewCampaign, request: Request) -> JSONResponse:
        """Begin a campaign on an uploaded pool. The same key twice, for the same name, begins one."""
        path, key = shelf.path(new.name), _key(_caller(request), new.key)
        if path.exists():
            return begun(new.name, key)
        pool, policy = uploads.path(new.pool), shelf.policy(new.policy)
        reading = uploads.reading(new.pool, new.delimiter, new.encoding)
        try:
            known = uploads.measured(new.pool, new.id, _known_column(new), reading) if new.known else None
            Campaign.create(
                path, pool, policy, id=new.id, budget=new.budget, minimise=_direction(new), response=new.response,
                known=known, kinds=new.kinds, impute=new.impute, seed=new.seed, delimiter=reading["delimiter"],
                encoding=reading["encoding"], key=key,
            )  # fmt: skip
        except InputError as error:
            if path.exists() and "there already" in str(error):
                return begun(new.name, key)
            raise InputError(str(error).replace(str(pool), uploads.filename(new.pool))) from error
        return begun(new.name, key, mine=True)

    @api.get("/campaigns/{name}", responses=answers(200, said.Status, "Where it is.", 400, 404, 409))
    def one(name: Name) -> JSONResponse:
        """Where a campaign is: best so far, history, pending, what is left."""
        return status(shelf.open(name))

    @api.post(
        "/campaigns/{name}/ask",
        responses=answers(200, list[said.Candidate], "What to try, best first.", *WITH_BODY, 404, 409),
    )
    async def ask(name: Name, body: Ask, request: Request) -> JSONResponse:
        """Which candidates to try next; they are reserved. The same request_id twice gives the same ones.

        Who goes away before the answer cancels: nothing is reserved.
        """
        gone = threading.Event()
        watching = asyncio.create_task(_watch(request, gone))
        try:
            return await run_in_threadpool(chosen, name, body, _caller(request), lambda: not gone.is_set())
        finally:
            watching.cancel()

    def chosen(name: str, body: Ask, caller: Caller, wanted: Callable[[], bool]) -> JSONResponse:
        opened = shelf.open(name)
        if not body.ignore_pool_file and opened.campaign.pool_changed():
            raise Refusal(
                409,
                "a pool stays as it is during a campaign, its file has changed on the service's disk; put it back, or "
                "go on with the candidates that the campaign keeps: ignore_pool_file",
            )
        candidates = opened.campaign.ask(
            body.n, ignore_pool_file=True, who=caller.name, key=_key(caller, body.request_id), wanted=wanted
        )
        return _json([candidate._asdict() for candidate in candidates])

    @api.post(
        "/campaigns/{name}/tell",
        responses=answers(200, said.Status, "Where it is now.", *WITH_BODY, 404, 409),
    )
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

    @api.post(
        "/campaigns/{name}/undo", responses=answers(200, said.Undone, "What was taken back.", *WITH_BODY, 404, 409)
    )
    def undo(name: Name, body: Undo, request: Request) -> JSONResponse:
        """Take back the last measurement, failure or release."""
        caller = _caller(request)
        return _json(shelf.open(name).campaign.undo(who=caller.name, key=_key(caller, body.key)))

    @api.post(
        "/campaigns/{name}/release", responses=answers(200, said.Status, "Where it is now.", *WITH_BODY, 404, 409)
    )
    def release(name: Name, body: Release, request: Request) -> JSONResponse:
        """A candidate that is pending or failed may be asked for again."""
        opened, caller = shelf.open(name), _caller(request)
        opened.campaign.release(body.id, who=caller.name, key=_key(caller, body.key))
        return status(opened)

    @api.get("/campaigns/{name}/candidates", responses=answers(200, said.Why, "Why this one.", 400, 404, 409, 422))
    def candidate_called(name: Name, id: CandidateId) -> JSONResponse:  # noqa: A002 - the query's name
        """Why this candidate: what is expected of it, and the measured ones that are near. It is named by its id."""
        opened = shelf.open(name)
        row = row_of(opened.campaign, id)
        with opened.campaign.computing:
            return _json(why(opened.campaign, row))

    @api.get(
        "/campaigns/{name}/candidates/{row}", responses=answers(200, said.Why, "Why this one.", 400, 404, 409, 422)
    )
    def candidate(name: Name, row: Row) -> JSONResponse:
        """The same, named by its row in the pool, from 0."""
        opened = shelf.open(name)
        with opened.campaign.computing:
            return _json(why(opened.campaign, row))

    @api.get("/campaigns/{name}/plots", responses=answers(200, said.Plots, "What is drawn.", 400, 404, 409))
    def drawn(name: Name) -> JSONResponse:
        """The numbers behind the plots."""
        opened = shelf.open(name)
        with opened.campaign.computing:
            events = opened.last_event()
            if opened.plots is None or opened.plots[0] != events:
                opened.plots = events, finite(plots(opened.campaign))
            return JSONResponse(opened.plots[1])

    @api.get(
        "/campaigns/{name}/export.csv",
        response_class=Response,
        responses=answers(200, said.CSV, "A row for each, in order.", 400, 404, 409),
    )
    def export(name: Name) -> Response:
        """What was measured, is pending or failed, with the pool's columns."""
        text = shelf.open(name).campaign.export()
        return Response(
            text, media_type="text/csv", headers={"content-disposition": f'attachment; filename="{name}.csv"'}
        )

    @api.get(
        "/campaigns/{name}/events",
        response_class=StreamingResponse,
        responses=answers(200, said.EVENTS, "A stream that goes on.", 400, 404, 409),
    )
    async def events(name: Name, request: Request) -> StreamingResponse:
        """Server-sent events: `changed` whenever something happened, also through another process."""
        path = await run_in_threadpool(shelf.existing, name)
        caller, guard, watch = _caller(request), _guard(request), Watch(path)

        async def changes() -> AsyncIterator[str]:
            known, quiet = None, 0
            while guard.still(caller) and not request.app.state.closing:
                try:
                    seen = await anyio.to_thread.run_sync(watch.last_event, limiter=listening)
                except InputError:
                    return
                if seen != known:
                    known, quiet = seen, 0
                    yield f'event: changed\ndata: {{"events": {seen}}}\n\n'
                elif (quiet := quiet + 1) >= HEARTBEAT:
                    quiet = 0
                    yield ": still here\n\n"
                await asyncio.sleep(1.0)

        return Listening(listeners, changes())

    @api.post(
        "/uploads",
        status_code=201,
        openapi_extra={"requestBody": FILE},
        responses=answers(201, said.SentPool | said.SentPolicy, "It is kept.", 400, 408, 409, 413, 415),
    )
    async def upload(request: Request) -> JSONResponse:
        """A pool (.csv, .tsv, .parquet) or a policy (.safetensors), as the part `file` of multipart/form-data."""
        beside, filename = await uploads.receive(request.headers.get("content-type", ""), request.stream())
        return _json(await run_in_threadpool(uploads.accept, beside, filename), 201)

    @api.get(
        "/uploads/{upload}",
        responses=answers(200, said.SentPool, "What it holds.", 400, 404, 422),
    )
    def look(upload: UploadName, delimiter: Delimiter = None, encoding: Encoding = None) -> JSONResponse:
        """What an uploaded pool holds, read with another delimiter or encoding."""
        return _json(uploads.look(upload, delimiter, encoding))

    @api.get("/policies", responses=answers(200, list[said.Policy], "All policies, by name."))
    def policies() -> JSONResponse:
        """What each policy says of itself."""
        return _json(list(shelf.described_policies()))

    @api.delete("/policies/{policy}", responses=answers(200, said.Nothing, "It is gone.", 400, 404))
    def remove(policy: PolicyName) -> JSONResponse:
        """Remove a policy. Campaigns that began with it keep a copy of their own."""
        shelf.remove_policy(policy)
        return _json({})

    @api.post(
        "/jobs",
        status_code=202,
        responses=answers(202, said.Job, "It has begun, and goes on by itself.", *WITH_BODY, 404, 409),
    )
    def train(body: NewJob, request: Request) -> JSONResponse:
        """Train a policy on finished campaigns, in the background. The same key twice trains one."""
        caller = _caller(request)
        key = _key(caller, body.key)
        return _json(jobs.begin(body.campaigns, body.name, body.response, body.settings, caller.name, key), 202)

    @api.get("/jobs", responses=answers(200, list[said.Job], "All trainings."))
    def all_jobs() -> JSONResponse:
        """All trainings, the newest first."""
        return _json(jobs.all())

    @api.get("/jobs/{job}", responses=answers(200, said.Job, "How far it is.", 404))
    def one_job(job: JobName) -> JSONResponse:
        """How far a training is."""
        return _json(jobs.one(job))

    @api.delete("/jobs/{job}", responses=answers(200, said.Job, "How it ended.", 404))
    def cancel(job: JobName) -> JSONResponse:
        """End a training; one that has ended stays as it is."""
        return _json(jobs.cancel(job))

    @api.post("/session", responses=answers(200, said.Session, "The cookie is set.", *WITH_BODY))
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

    @api.delete("/session", responses=answers(200, said.Nothing, "It is over."))
    def log_out(request: Request) -> JSONResponse:
        """End the session."""
        session = cookie_of(request.headers)
        if session is not None:
            _guard(request).sessions.end(session)
        answer = _json({})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    return api


async def _watch(request: Request, gone: threading.Event) -> None:
    """Until the client has gone, if it does."""
    while not await request.is_disconnected():
        await asyncio.sleep(GLANCE)
    gone.set()


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
