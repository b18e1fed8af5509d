"""What a campaign's file is made of: the pool's columns and features, the policy, and what was known before."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkaf.campaign.campaign import GP, Campaign, checked_budget
from dkaf.campaign.packing import packed_columns, packed_features
from dkaf.campaign.poolfile import identity
from dkaf.campaign.store import Block, Store, now
from dkaf.errors import InputError, whole_number
from dkaf.files import check_writable
from dkaf.sources.past import CAMPAIGN_SUFFIX, check_ids, responses
from dkaf.sources.preparation import Preparation, fit_preparation
from dkaf.sources.tables import Table, is_missing, read_table
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
) -> Store:
    """Read and check everything, then write the file."""
    budget, seed = checked_budget(budget), whole_number("seed", seed)
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
    features = preparation.matrix(table, impute=impute)
    about = {
        "created": now(),
        "policy": name,
        "minimise": preparation.minimise,
        "response": preparation.response or response,
        "id": id,
        "seed": seed,
        "pool": identity(Path(pool)) if isinstance(pool, str | os.PathLike) else {"path": None},
        "preparation": preparation.describe(),
    }
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
            f"numbers; "
            "train it from tables (dkaf train past/ --response ...), or search an array with dkaf.Search"
        )
    if getattr(policy, "custom_encoder", None) is not None:
        raise InputError(
            f"a campaign's file alone goes on, this policy needs an encoder of yours, {policy.custom_encoder!r}; "
            f"train one with "
            "the built-in encoder, or search with dkaf.Search"
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
    if isinstance(known, str | os.PathLike) and Path(known).suffix == CAMPAIGN_SUFFIX:
        found = [(measurement.id, measurement.value) for measurement in Campaign.open(known).history]
        source = str(known)
    else:
        results = read_table(known, delimiter=delimiter, encoding=encoding)
        source = results.name
        found = measurements(results, id_, response)
    unknown = [candidate for candidate, _ in found if candidate not in row_of]
    if unknown:
        raise InputError(
            f"what is imported was measured on candidates of this pool, {unknown[0]!r} of {source} is none of "
            f"{table.name} "
            f"({len(unknown)} such in all); take these out"
        )
    return [(row_of[candidate], value) for candidate, value in found]


def measurements(results: Table, id_: str | None, response: str | None) -> list[tuple[str, float]]:
    """Ids and responses of a table; a candidate may be there more than once."""
    if id_ is None:
        raise InputError(f"results name candidates, no column of {results.name} was named for that; pass --id")
    if response is None:
        raise InputError(f"results hold responses, no column of {results.name} was named for that; pass --response")
    results.column(id_, "--id")
    results.column(response, "--response")
    texts = [text.strip() for text in results.texts(id_)]
    for row, text in enumerate(texts, 1):
        if is_missing(text):
            raise InputError(
                f"every measurement has an id, row {row} of {results.name} has none in column {id_!r}; fill it in"
            )
    return list(zip(texts, responses(results, response).tolist(), strict=True))


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
    return measurements(
        read_table(source, delimiter=delimiter, encoding=encoding),
        id_ or campaign.id_column,
        response or campaign.response,
    )
