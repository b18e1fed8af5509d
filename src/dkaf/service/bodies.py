"""What is sent to the service. Every field has its rule and its sentence; the examples fit together."""

from typing import Annotated, Any

from fastapi import Path as InPath
from fastapi import Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictFloat, StrictInt, StrictStr

from dkaf.service.shelf import NAME
from dkaf.sources.preparation import IGNORE, KINDS

KEY = r"^[A-Za-z0-9_.:-]{1,128}$"
POOL = "0123456789abcdef0123456789abcdef.csv"
LONGEST_ID = 100_000

Name = Annotated[
    str, InPath(description="The campaign's name.", examples=["screen"], json_schema_extra={"pattern": NAME})
]  # said here, and checked where it becomes a path: what is none is not found
Row = Annotated[int, InPath(description="A row of the pool, from 0.", examples=[1])]
PolicyName = Annotated[str, InPath(description="The policy's name.", examples=["assay"])]
UploadName = Annotated[str, InPath(description="What POST /api/uploads called it.", examples=[POOL])]
Delimiter = Annotated[
    str | None,
    Field(max_length=1, description="What separates the pool's columns; null: as it was found to be.", examples=[","]),
]
Encoding = Annotated[
    str | None,
    Field(max_length=40, description="Of the pool's text; null: as it was found to be.", examples=["utf-8"]),
]
JobName = Annotated[str, InPath(description="What POST /api/jobs called it.", examples=["0123456789abcdef"])]
CandidateId = Annotated[
    str, Query(description="The candidate's id; where it is longer, name its row.", max_length=5000, examples=["CCO"])
]
Key = Annotated[
    str | None,
    Field(
        pattern=KEY,
        description="What the caller calls this request: sent again under the same key, it happens once.",
        examples=["b7e2-1"],
    ),
]
WHOLE = BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)
"""After a whole number's limits, or they are not described: some write it as 20.0."""
Column = Annotated[str, Field(max_length=1000)]


class Body(BaseModel):
    """A body with nothing else in it, and nothing that has to be guessed: "5" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewCampaign(Body):
    """A campaign to begin."""

    name: Annotated[str, Field(pattern=NAME, description="A name of its own.", examples=["screen"])]
    pool: Annotated[str, Field(max_length=64, description="What POST /api/uploads called it.", examples=[POOL])]
    policy: Annotated[str, Field(max_length=64, description="A policy's name, or gp.", examples=["gp"])] = "gp"
    id: Annotated[
        Column | None, Field(description="The column that names candidates; else rows do.", examples=["smiles"])
    ] = None
    response: Annotated[Column | None, Field(description="What is measured.", examples=["potency"])] = None
    budget: Annotated[
        int | None, Field(ge=1, le=10**9, description="How many evaluations; null: no limit.", examples=[20]), WHOLE
    ] = None
    minimise: Annotated[bool | None, Field(description="Whether smaller is better; null: as the policy says.")] = None
    kinds: Annotated[
        dict[Column, Annotated[str, Field(max_length=64)]],
        Field(
            max_length=10_000,
            description=f"What columns are, where detection errs: {', '.join((*KINDS, IGNORE))}.",
            examples=[{"dose": "numeric"}],
        ),
    ] = {}
    impute: Annotated[bool, Field(description="Whether missing numbers are filled in.")] = False
    known: Annotated[
        bool, Field(description="Whether values that the column `response` has already are taken over as measured.")
    ] = False
    delimiter: Delimiter = None
    encoding: Encoding = None
    seed: Annotated[int, Field(ge=0, lt=2**62, description="Of what is drawn at random."), WHOLE] = 0
    key: Key = None


class Ask(Body):
    """How many candidates."""

    n: Annotated[int, Field(ge=1, le=1024, description="How many.", examples=[1]), WHOLE] = 1
    request_id: Key = None
    ignore_pool_file: Annotated[
        bool, Field(description="Go on with the candidates kept, if the pool's file has changed on the service's disk.")
    ] = False


class Measured(Body):
    """What a candidate gave, or that it failed."""

    id: Annotated[str, Field(max_length=LONGEST_ID, description="The candidate's id.", examples=["CCO"])]
    value: Annotated[
        StrictFloat | StrictInt | StrictStr | None,
        Field(description="A number, also as text; none where it failed.", examples=[6.9]),
    ] = None
    failed: Annotated[bool, Field(description="Whether it could not be measured.")] = False


class Tell(Body):
    """Measurements: all of them are told, or none."""

    measurements: Annotated[list[Measured], Field(min_length=1, max_length=100_000, description="What came out.")]
    key: Key = None


class Release(Body):
    """A candidate to be asked for again."""

    id: Annotated[str, Field(max_length=LONGEST_ID, description="One that is pending or failed.", examples=["CCN"])]
    key: Key = None


class Undo(Body):
    """Nothing but a key."""

    key: Key = None


class NewJob(Body):
    """A policy to train."""

    campaigns: Annotated[
        list[Annotated[str, Field(max_length=64)]],
        Field(min_length=1, max_length=10_000, description="Finished ones.", examples=[["screen"]]),
    ]
    name: Annotated[str, Field(pattern=NAME, description="What the policy will be called.", examples=["assay"])]
    response: Annotated[
        Column | None, Field(description="What is measured; null: as the campaigns say.", examples=["potency"])
    ] = None
    settings: Annotated[
        dict[str, bool | int | float | str | None],
        Field(
            max_length=64,
            description="As `dkaf train --help` names them, with _ for -.",
            examples=[{"pretrain_updates": 10, "updates": 1, "queries": 3}],
        ),
    ] = {}
    key: Key = None


class Login(Body):
    """A token, to be exchanged for a cookie."""

    token: Annotated[str, Field(max_length=1000, description="What dkaf token create showed.", examples=["the-token"])]


FILE: dict[str, Any] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {
                        "type": "string",
                        "format": "binary",
                        "description": "One file, with its name: .csv, .tsv, .parquet or .safetensors.",
                    }
                },
            }
        }
    },
}
