"""What the service answers, for the description alone: answers are made by the library and are not checked again here.

A test holds every route's real answers against these.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dkaf.service.bodies import POOL
from dkaf.service.jobs import CANCELLED, DONE, FAILED, RUNNING
from dkaf.service.problems import MEDIA_TYPE

AT = "2026-01-31T09:30:00.000+00:00"
Id = Annotated[str, Field(description="The candidate's id.", examples=["CCO"])]
At = Annotated[str, Field(description="When, in UTC.", examples=[AT])]
Columns = Annotated[
    dict[str, str],
    Field(description="The candidate's row of the pool, as it came.", examples=[{"smiles": "CCO", "dose": "0.5"}]),
]
Mean = Annotated[
    float | None, Field(description="The response expected; null where nothing is expected yet.", examples=[6.4])
]
Deviation = Annotated[
    float | None, Field(description="Its spread, noise included: half of the central 68 %.", examples=[0.8])
]
Budget = Annotated[int | None, Field(description="Evaluations in all; null: no limit.", examples=[20])]
Left = Annotated[int | None, Field(description="Evaluations that are left; null: no limit.", examples=[18])]
Minimise = Annotated[bool, Field(description="Whether smaller is better.", examples=[False])]
Chosen = Annotated[str, Field(description="Who chooses: gp, or a trained policy's method.", examples=["gp"])]
Error = Annotated[str, Field(description="Only where the file cannot be read: why.")]


class Answer(BaseModel):
    """An answer with nothing else in it."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """What is wrong, as RFC 9457 has it."""

    type: Literal["about:blank"]
    title: Annotated[str, Field(description="The status in words.", examples=["Not Found"])]
    status: Annotated[int, Field(ge=400, le=599, description="HTTP's.", examples=[404])]
    detail: Annotated[
        str,
        Field(
            description="The rule, what came, and the way out.",
            examples=["there is no campaign 'scren'; GET /api/campaigns names those that there are"],
        ),
    ]


class About(Answer):
    """Which version this is, and who the caller is."""

    version: Annotated[str, Field(description="Of dkaf.", examples=["0.1.0"])]
    chem: Annotated[bool, Field(description="Whether molecules are understood.", examples=[True])]
    role: Annotated[Literal["viewer", "operator"], Field(description="What the caller may do.", examples=["operator"])]
    demo: Annotated[str | None, Field(description="The corpus that the demo plays with; else null.", examples=[None])]
    name: Annotated[str, Field(description="The token's name; local where none is needed.", examples=["anna"])]
    csrf: Annotated[
        str | None, Field(description="For a page: what goes into X-CSRF-Token; else null.", examples=[None])
    ]
    upload_limit: Annotated[int, Field(description="Bytes of an upload.", examples=[256 << 20])]


class Top(Answer):
    """The best candidate so far."""

    id: Id
    value: Annotated[float, Field(description="What it gave; the mean, of several.", examples=[6.9])]


class Best(Top):
    """The best candidate so far; of repeated measurements, the mean counts."""

    measurements: Annotated[int, Field(description="How often it was measured.", examples=[1])]


class Summary(Answer):
    """A campaign in a few words."""

    name: Annotated[str, Field(description="The campaign's name.", examples=["screen"])]
    candidates: Annotated[int, Field(description="How many the pool has.", examples=[6])]
    told: Annotated[int, Field(description="How many measurements there are.", examples=[1])]
    pending: Annotated[int, Field(description="How many were asked for and are not told.", examples=[1])]
    best: Annotated[Top | None, Field(description="The best so far.")]
    budget: Budget
    left: Left
    minimise: Minimise
    policy: Chosen
    created: Annotated[str | None, Field(description="When, in UTC.", examples=[AT])]
    error: Error = ""


class Measurement(Answer):
    """A response that was told."""

    id: Id
    value: Annotated[float, Field(description="What it gave.", examples=[6.9])]
    at: At
    asked: Annotated[bool, Field(description="Whether the campaign had asked for it.", examples=[True])]
    known: Annotated[bool, Field(description="Whether it was imported at creation.", examples=[False])]
    who: Annotated[str | None, Field(description="Who told it, where that is known.", examples=["anna"])]


class Waiting(Answer):
    """A candidate that was asked for, or that failed."""

    id: Annotated[str, Field(description="The candidate's id.", examples=["CCN"])]
    at: At


class Status(Answer):
    """Where a campaign is."""

    name: Annotated[str, Field(description="The campaign's name.", examples=["screen"])]
    campaign: Annotated[str, Field(description="Its file.", examples=["screen.db"])]
    policy: Chosen
    minimise: Minimise
    candidates: Annotated[int, Field(description="How many the pool has.", examples=[6])]
    best: Annotated[Best | None, Field(description="The best so far.")]
    history: Annotated[list[Measurement], Field(description="All that was told and not taken back, in order.")]
    pending: Annotated[list[Waiting], Field(description="What was asked for and neither told, failed nor released.")]
    failed: Annotated[list[Waiting], Field(description="What could not be measured.", examples=[[]])]
    budget: Budget
    left: Left
    created: At
    pool: Annotated[str | None, Field(description="The pool's file, as its sender called it.", examples=["pool.csv"])]
    pool_changed: Annotated[bool, Field(description="Whether that file has changed since.", examples=[False])]
    response: Annotated[str | None, Field(description="What is measured.", examples=["potency"])]
    id_column: Annotated[str | None, Field(description="The column that names candidates.", examples=["smiles"])]


class Candidate(Answer):
    """What to try next, and what is expected of it."""

    id: Id
    mean: Mean
    deviation: Deviation
    score: Annotated[
        float | None,
        Field(description="What the policy ranks by, comparable within one answer; 0 if asked again.", examples=[7.9]),
    ]
    columns: Columns


class Undone(Answer):
    """What was taken back."""

    undone: Annotated[Literal["told", "failed", "released"], Field(description="What it was.", examples=["told"])]
    id: Id
    value: Annotated[float | None, Field(description="Of a measurement.", examples=[6.9])]
    at: At


class Near(Answer):
    """A measured candidate that is near."""

    id: Annotated[str, Field(description="Its id.", examples=["CCN"])]
    value: Annotated[float, Field(description="What it gave; the mean, of several.", examples=[5.1])]
    distance: Annotated[float, Field(description="As the policy sees it.", examples=[0.3])]


class Why(Answer):
    """What is expected of a candidate, and the measured ones that are near."""

    id: Id
    columns: Columns
    mean: Mean
    deviation: Deviation
    near: Annotated[list[Near], Field(description="The nearest measured ones, the nearest first.")]
    svg: Annotated[str | None, Field(description="Drawn, if it is a molecule and RDKit is there.", examples=[None])]


class Ranked(Answer):
    """A candidate of which much is expected."""

    id: Id
    mean: Mean
    deviation: Deviation
    value: Annotated[float | None, Field(description="What it gave, if it was measured.", examples=[6.9])]


class Point(Answer):
    """A candidate on the map."""

    id: Id
    x: Annotated[float | None, Field(description="Where it is.", examples=[0.1])]
    y: Annotated[float | None, Field(description="Where it is.", examples=[-0.4])]
    mean: Mean
    state: Annotated[
        Literal["measured", "pending", "other"], Field(description="What is known of it.", examples=["measured"])
    ]


class Plots(Answer):
    """The numbers behind the plots."""

    measured: Annotated[list[float], Field(description="What was told, in order.", examples=[[6.9]])]
    best: Annotated[list[float], Field(description="The best so far, after each.", examples=[[6.9]])]
    ranking: Annotated[list[Ranked], Field(description="The best by what is expected.")]
    map: Annotated[list[Point], Field(description="Candidates in two dimensions, near ones near.")]


class ColumnSeen(Answer):
    """A column of an uploaded table."""

    name: Annotated[str, Field(description="Its header.", examples=["dose"])]
    kind: Annotated[str, Field(description="What it is taken for.", examples=["numeric"])]
    reason: Annotated[str, Field(description="Why.", examples=["all values are numbers"])]
    first: Annotated[list[str], Field(description="Its first values.", examples=[["0.5", "1"]])]
    filled: Annotated[int, Field(description="How many rows have a value.", examples=[6])]


class SentPool(Answer):
    """A pool that was kept."""

    kind: Literal["table"]
    upload: Annotated[str, Field(description="What it is called from now on.", examples=[POOL])]
    filename: Annotated[str, Field(description="What its sender called it.", examples=["pool.csv"])]
    rows: Annotated[int, Field(description="How many candidates.", examples=[6])]
    columns: Annotated[list[ColumnSeen], Field(description="What is in it.")]
    delimiter: Annotated[
        str | None, Field(description="What separates its columns; null: a comma, or it has none.", examples=[","])
    ]
    encoding: Annotated[str | None, Field(description="Of its text; null: UTF-8, or it is none.", examples=["utf-8"])]


class SentPolicy(Answer):
    """A policy that was kept."""

    kind: Literal["policy"]
    policy: Annotated[str, Field(description="What it is called from now on.", examples=["assay"])]
    filename: Annotated[str, Field(description="What its sender called it.", examples=["assay.safetensors"])]


class Policy(Answer):
    """What a policy says of itself."""

    name: Annotated[str, Field(description="What to name in POST /api/campaigns.", examples=["assay"])]
    method: Annotated[str | None, Field(description="How it searches.", examples=["dkaf"])]
    acquisition: Annotated[str | None, Field(description="What it ranks by.", examples=["ucb"])]
    columns: Annotated[
        dict[str, str], Field(description="What its columns are, in words.", examples=[{"dose": "numbers"}])
    ]
    response: Annotated[str | None, Field(description="What was measured.", examples=["potency"])]
    id: Annotated[str | None, Field(description="The column that names candidates.", examples=["smiles"])]
    minimise: Annotated[bool | None, Field(description="Whether smaller is better.", examples=[False])]
    gain_in_words: Annotated[
        str | None, Field(description="What it gained on past tasks that were held out.", examples=[None])
    ]
    error: Error = ""


class Job(Answer):
    """A training."""

    job: Annotated[str, Field(description="What it is called.", examples=["0123456789abcdef"])]
    name: Annotated[str, Field(description="What the policy will be called.", examples=["assay"])]
    state: Annotated[
        str,
        Field(
            description="How it is.", examples=[RUNNING], json_schema_extra={"enum": [RUNNING, DONE, FAILED, CANCELLED]}
        ),
    ]
    stage: Annotated[str, Field(description="What is being done.", examples=["dkaf: likelihood"])]
    done: Annotated[int, Field(description="How much of the stage is done.", examples=[120])]
    total: Annotated[int, Field(description="Of how much; 0: not known yet.", examples=[2500])]
    message: Annotated[str, Field(description="What is to be said of it in the end.", examples=[""])]
    policy: Annotated[str | None, Field(description="The policy, when it is there.", examples=[None])]
    campaigns: Annotated[list[str], Field(description="What it is trained on.", examples=[["screen"]])]
    who: Annotated[str | None, Field(description="Who began it.", examples=["anna"])]
    created: At


class Session(Answer):
    """A session that has begun; the cookie comes beside it."""

    csrf: Annotated[str, Field(description="What goes into X-CSRF-Token with every change.", examples=["5e6f" * 16])]


class Nothing(Answer):
    """Nothing more."""


CSV = {
    "text/csv": {
        "schema": {"type": "string"},
        "example": f"id,value,measurements,status,at,smiles,dose\nCCO,6.9,1,measured,{AT},CCO,0.5\n",
    }
}
EVENTS = {
    "text/event-stream": {"schema": {"type": "string"}, "example": 'event: changed\ndata: {"events": 3}\n\n'},
}
WHEN = {
    400: "It cannot be done as things are; the sentence says why.",
    401: "The token is missing, wrong or revoked, or the session is over.",
    403: "The caller may not: a viewer, a page without X-CSRF-Token, another site's page, another host's name.",
    404: "There is nothing of that name.",
    408: "The body did not come in time.",
    409: "The name is taken, or a file of the campaign is not as it was.",
    413: "The body is too large.",
    415: "The body is of another kind.",
    422: "The request is not as it is described here.",
    429: "Too much at once; Retry-After says how many seconds to wait.",
}
ALWAYS = (401, 403, 429)
WITH_BODY = (400, 408, 413, 422)


def answers(status: int, model: Any, description: str, *refusals: int) -> dict[int | str, dict[str, Any]]:
    """What a route may answer: how it goes well, and how it may be refused."""
    problems: dict[int | str, dict[str, Any]] = {
        code: {
            "description": WHEN[code],
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for code in sorted({*ALWAYS, *refusals})
    }
    good = {"description": description} | ({"content": model} if isinstance(model, dict) else {"model": model})
    return {status: good} | problems
