"""What a campaign's file is made of: the pool's columns and features, the policy, and what was known before."""

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dkaf.campaign.campaign import GP, Campaign
from dkaf.campaign.export import ADDED
from dkaf.campaign.packing import packed_columns, packed_features
from dkaf.campaign.poolfile import identity
from dkaf.campaign.store import Block, Store, is_sqlite, now
from dkaf.campaign.values import checked_budget, checked_word
from dkaf.errors import InputError, whole_number
from dkaf.files import check_writable
from dkaf.sources.past import check_ids, responses
from dkaf.sources.preparation import Preparation, fit_preparation
from dkaf.sources.tables import Table, read_table
from dkaf.tasks import FeatureMatrix

if TYPE_CHECKING:
    from dkaf.policies import Policy

BLOCK_ROWS, BLOCK_FIELDS = 4096, 1 << 20  # of a pool, in one piece of the file


def create(
    path: Path,
    pool: Any,
    policy: "str | os.PathLike[str] | Policy",
    *,
    id: str | None,  # noqa: A002
    budget: int | None,
    minimise: bool | None,
    known: Any,
    response: str | None,
    kinds: Mapping[str, str] | None,
    impute: bool,
    delimiter: str | None,
    encoding: str | None,
    seed: int,
    key: str | None,
    progress: Callable[[int, int], None] | None,
) -> Store:
    """Read and check everything, then write the file."""
    budget, seed, key = checked_budget(budget), whole_number("seed", seed), checked_word("a key", key)
    if path.exists():
        raise InputError(f"a campaign goes to a file of its own, {path} is there already; name another or remove it")
    check_writable(path)
    own = isinstance(policy, str) and policy == GP
    name, weights, preparation = (GP, b"", None) if own else _trained(policy)
    if preparation is not None and kinds:
        raise InputError("the policy says what the columns are, kinds of columns came; leave out --kind")
    table = read_table(pool, delimiter=delimiter, encoding=encoding)
    if table.n_rows == 0:
        raise InputError(f"a pool has candidates, {table.name} has a header and no rows; name another")
    if id is None and preparation is not None and preparation.id in table.columns:
        id = preparation.id  # noqa: A001
    if id is not None and id == (response or (preparation.response if preparation else None)):
        raise InputError(f"id and response are columns of their own, {id!r} came for both; name another")
    if id is None:
        ids = [str(row) for row in range(1, table.n_rows + 1)]
    else:
        table.column(id, "--id")
        ids = check_ids(table, id, range(table.n_rows))
    if preparation is None:
        preparation, _ = fit_preparation(
            [table], response=response, id=id, kinds=kinds, minimise=bool(minimise), impute=impute
        )
    elif minimise is not None and minimise != preparation.minimise:
        better = "smaller" if preparation.minimise else "larger"
        raise InputError(f"the policy was trained to find {better} responses, minimise={minimise} came; leave it out")
    measured = _known(known, table, ids, id, response or preparation.response, delimiter, encoding)
    features = preparation.matrix(table, impute=impute, progress=progress)
    about = {
        "key": uuid.uuid4().hex,  # tells it from any other campaign under the same name
        "created": now(),
        "policy": name,
        "minimise": preparation.minimise,
        "response": preparation.response or response,
        "id": id,
        "seed": seed,
        "pool": identity(Path(pool)) if isinstance(pool, str | os.PathLike) else {"path": None},
        "preparation": preparation.describe(),
    } | ({} if key is None else {"creation_key": key})
    things = {"campaign": json.dumps(about).encode(), "budget": json.dumps(budget).encode(), "policy": weights}
    return Store.create(path, things, ids, _blocks(table, features), measured)


def _trained(policy: "str | os.PathLike[str] | Policy") -> tuple[str, bytes, Preparation]:
    """A trained policy: what it is called, its file's bytes, and how it wants its features."""
    from dkaf.policies import Policy, load

    if not isinstance(policy, Policy):
        policy = load(policy)
    name = f"{policy.method} {policy.acquisition}"
    if policy.preparation is None:
        raise InputError(
            f"a campaign's policy knows columns, this one ({name}) was trained on arrays of {policy.n_features} "
            "numbers; train it from tables (dkaf train past/ --response ...), or search an array with dkaf.Search"
        )
    if getattr(policy, "custom_encoder", None) is not None:
        raise InputError(
            f"a campaign's file alone goes on, this policy needs an encoder of yours, {policy.custom_encoder!r}; "
            "train one with the built-in encoder, or search with dkaf.Search"
        )
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder) / "policy")
        return name, (Path(folder) / "policy").read_bytes(), policy.preparation


def _known(
    known: Any,
    table: Table,
    ids: list[str],
    id_: str | None,
    response: str | None,
    delimiter: str | None,
    encoding: str | None,
) -> list[tuple[int, float]]:
    """Measurements that were made before, of candidates of this pool."""
    if known is None:
        return []
    row_of = {candidate: row for row, candidate in enumerate(ids)}
    if isinstance(known, str | os.PathLike) and is_sqlite(Path(known)):
        found = [
            Result(measurement.id, measurement.value, f"measurement {number} of {known}")
            for number, measurement in enumerate(Campaign.open(known).history, 1)
        ]
    else:
        found = results(read_table(known, delimiter=delimiter, encoding=encoding), id_, response)
    for candidate, _, where in found:
        if candidate not in row_of:
            raise InputError(
                f"what is imported was measured on candidates of this pool, {candidate!r} ({where}) is none of "
                f"{table.name}; take it out"
            )
    return [(row_of[candidate], value) for candidate, value, _ in found]


class Result(NamedTuple):
    """A measurement in a table."""

    id: str
    value: float
    where: str


def results(table: Table, id_: str | None, response: str | None) -> list[Result]:
    """Ids and responses of a table, or of what `export` wrote; a candidate may be there more than once."""
    if tuple(table.columns)[: len(ADDED)] == ADDED:
        measured = [row for row, status in enumerate(table.texts("status")) if status == "measured"]
        table, id_, response = table.rows(measured), "id", "value"
    if id_ is None:
        raise InputError(f"results name candidates, no column of {table.name} was named for that; pass --id")
    if response is None:
        raise InputError(f"results hold responses, no column of {table.name} was named for that; pass --response")
    table.column(id_, "--id")
    table.column(response, "--response")
    if table.n_rows == 0:
        raise InputError(f"results have a row for each measurement, {table.name} has none; nothing to do")
    texts = [text.strip() for text in table.texts(id_)]
    if "" in texts:
        raise InputError(
            f"every measurement has an id, row {texts.index('') + 1} of {table.name} has none in column {id_!r}; fill "
            "it in"
        )
    values = responses(table, response).tolist()
    return [
        Result(text, value, f"row {row} of {table.name}, column {id_!r}")
        for row, (text, value) in enumerate(zip(texts, values, strict=True), 1)
    ]


def _blocks(table: Table, features: FeatureMatrix) -> Iterator[Block]:
    size = max(1, min(BLOCK_ROWS, BLOCK_FIELDS // len(table.columns)))
    texts = {name: table.texts(name) for name in table.columns}
    for first in range(0, table.n_rows, size):
        columns = {name: column[first : first + size] for name, column in texts.items()}
        yield Block(first, packed_columns(columns), packed_features(features[first : first + size]))


def results_of(
    campaign: Campaign,
    source: Any,
    id_: str | None = None,
    response: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> list[tuple[str, float]]:
    """A table of results, its columns called as those of the pool and of the past tasks unless they are named."""
    found = results(
        read_table(source, delimiter=delimiter, encoding=encoding),
        id_ or campaign.id_column,
        response or campaign.response,
    )
    for candidate, _, where in found:
        if not campaign.knows(candidate):
            raise InputError(
                f"an id names a candidate of the pool, {candidate!r} ({where}) names none in {campaign.path}; correct "
                "it"
            )
    return [(candidate, value) for candidate, value, _ in found]
