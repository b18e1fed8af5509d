"""From columns to features, the same way for past tasks and for the next pool.

What each column is (a number, a category, a text, a molecule) is detected or set, and what was learned of it (scale,
categories, vocabulary) is a value that the policy file keeps as JSON.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy.sparse as sp

from dkaf.errors import InputError
from dkaf.settings import check_choice
from dkaf.sources.molecules import BITS, RADIUS, MoleculeError, are_molecules, morgan_fingerprints, need_rdkit
from dkaf.sources.tables import Column, Table, is_missing, number_of, numbers
from dkaf.sources.transformer import Transformer
from dkaf.tasks import FeatureMatrix, FloatArray

IGNORE = "ignore"
WORD = r"[^\W\d_]{3,}"  # letters of any alphabet
MOST_WORDS = 5000
WORDS_OF_A_TEXT = 3.0  # on average; what has fewer is a category or a name
MOST_CATEGORIES = 200
FARTHEST = 1e15  # standard deviations: beyond, single precision tells nothing apart
AT_ONCE = 2000  # rows, where somebody watches
SAMPLED = 200  # values of a column that are read as molecules to see whether they are


class Detected(NamedTuple):
    """What a column is taken for, and why."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Feature(ABC):
    """One column, and how it becomes features."""

    column: str
    kind: ClassVar[str]
    sparse: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def fitted(cls, column: str, tables: Sequence[Table], impute: bool) -> "Feature":
        """Learn from the column of all tables."""

    @property
    @abstractmethod
    def width(self) -> int:
        """How many features it becomes."""

    @abstractmethod
    def matrix(self, table: Table, impute: bool) -> FeatureMatrix:
        """Rows x width."""

    def in_words(self) -> str:
        """What a person is shown of it."""
        return self.kind

    def _refuse(self, table: Table, row: int, rule: str, way_out: str) -> InputError:
        column = table.columns[self.column]
        came = column[row] if isinstance(column, list) else float(column[row])
        place = f"row {table.first + row + 1} of {table.name}"
        return InputError(f"{rule}, {place} has {came!r} in column {self.column!r}; {way_out}")


@dataclass(frozen=True)
class Numeric(Feature):
    """A number, standardised; a missing one is the mean if it may be imputed."""

    shift: float
    scale: float
    kind: ClassVar[str] = "numeric"

    @classmethod
    def fitted(cls, column: str, tables: Sequence[Table], impute: bool) -> "Numeric":
        unscaled = cls(column, 0.0, 1.0)
        values = np.concatenate([unscaled._numbers(table, impute) for table in tables])
        known = values[~np.isnan(values)]
        if len(known) == 0:
            raise InputError(f"a numeric column has numbers, {column!r} has none; leave it out: --kind {column}=ignore")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(known.mean()), float(known.std())
        if not np.isfinite(deviation):
            raise InputError(f"numbers have a finite variance, those of column {column!r} are too large; rescale them")
        varies = deviation > 1e-12 * abs(mean)
        return cls(column, mean, deviation if varies else max(abs(mean), 1.0))

    @property
    def width(self) -> int:
        return 1

    def matrix(self, table: Table, impute: bool) -> FeatureMatrix:
        values = self._numbers(table, impute)
        scaled: FloatArray = (np.where(np.isnan(values), self.shift, values) - self.shift) / self.scale
        far = np.abs(scaled) > FARTHEST
        if far.any():
            rule = f"numbers are of the size of those that were learned from, {self.in_words()}"
            raise self._refuse(table, int(far.argmax()), rule, "correct it")
        return scaled[:, None]

    def _numbers(self, table: Table, impute: bool) -> Any:
        values, other = numbers(table.columns[self.column])
        if other:
            raise self._refuse(
                table, other[0], "a numeric column has numbers", f"correct it, or say --kind {self.column}=categorical"
            )
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise self._refuse(table, row, "numbers are finite", "correct it or take the row out")
        if np.isnan(values).any() and not impute:
            row = int(np.isnan(values).argmax())
            raise self._refuse(table, row, "every row has a number", "fill it in, or --impute takes the mean")
        return values

    def in_words(self) -> str:
        return f"numeric, {self.shift:.4g} +- {self.scale:.4g}"


@dataclass(frozen=True)
class Categorical(Feature):
    """One of several values, a column of 0 and 1 for each; a missing or new one is 0 everywhere if imputed."""

    values: tuple[str, ...]
    kind: ClassVar[str] = "categorical"

    @classmethod
    def fitted(cls, column: str, tables: Sequence[Table], impute: bool) -> "Categorical":
        values = {text.strip() for table in tables for text in table.texts(column) if not is_missing(text)}
        if not values:
            raise InputError(
                f"a column of categories has some, {column!r} has none; leave it out: --kind {column}=ignore"
            )
        return cls(column, tuple(sorted(values)))

    @property
    def width(self) -> int:
        return len(self.values)

    def matrix(self, table: Table, impute: bool) -> FeatureMatrix:
        place = {value: number for number, value in enumerate(self.values)}
        found = [-1 if is_missing(text) else place.get(text.strip(), -1) for text in table.texts(self.column)]
        places = np.array(found, dtype=np.int64)
        if (places < 0).any() and not impute:
            row = int((places < 0).argmax())
            known = ", ".join(map(repr, self.values[:8])) + (", ..." if len(self.values) > 8 else "")
            raise self._refuse(
                table, row, f"a category is one of {known}", "correct it, or --impute takes it as none of them"
            )
        rows = np.flatnonzero(places >= 0)
        matrix = np.zeros((len(places), self.width))
        matrix[rows, places[rows]] = 1.0
        return matrix

    def in_words(self) -> str:
        few = len(self.values) <= 6
        return f"categorical, {len(self.values)} values" + (f": {', '.join(self.values)}" if few else "")


@dataclass(frozen=True)
class Text(Feature):
    """A bag of words: the logarithm of one plus how often each is there. An empty text has none."""

    words: tuple[str, ...]
    kind: ClassVar[str] = "text"
    sparse: ClassVar[bool] = True

    @classmethod
    def fitted(cls, column: str, tables: Sequence[Table], impute: bool) -> "Text":
        from sklearn.feature_extraction.text import CountVectorizer

        texts = [text for table in tables for text in table.texts(column)]
        vectorizer = CountVectorizer(
            token_pattern=WORD, stop_words="english", min_df=1 if len(texts) < 20 else 2, max_features=MOST_WORDS
        )
        try:
            vectorizer.fit(texts)
        except ValueError:
            raise InputError(
                f"texts have words of three letters or more, column {column!r} has none that repeat; say --kind "
                f"{column}=categorical or {column}=ignore"
            ) from None
        return cls(column, tuple(vectorizer.get_feature_names_out().tolist()))

    @property
    def width(self) -> int:
        return len(self.words)

    def matrix(self, table: Table, impute: bool) -> FeatureMatrix:
        from sklearn.feature_extraction.text import CountVectorizer

        vectorizer = CountVectorizer(token_pattern=WORD, vocabulary=self.words, dtype=np.float64)
        return sp.csr_array(vectorizer.transform(table.texts(self.column))).log1p()

    def in_words(self) -> str:
        return f"text, {len(self.words)} words"


@dataclass(frozen=True)
class Smiles(Feature):
    """A molecule: the logarithm of one plus the counts of its Morgan fingerprint, by RDKit."""

    radius: int
    bits: int
    kind: ClassVar[str] = "smiles"
    sparse: ClassVar[bool] = True

    @classmethod
    def fitted(cls, column: str, tables: Sequence[Table], impute: bool) -> "Smiles":
        need_rdkit()
        return cls(column, RADIUS, BITS)

    @property
    def width(self) -> int:
        return self.bits

    def matrix(self, table: Table, impute: bool) -> FeatureMatrix:
        try:
            return morgan_fingerprints(table.texts(self.column), radius=self.radius, bits=self.bits).log1p()
        except MoleculeError as error:
            raise self._refuse(
                table, error.row, "every molecule is a SMILES string", "mend it or take the row out"
            ) from None

    def in_words(self) -> str:
        return f"molecules, {self.bits} bits of Morgan fingerprints of radius {self.radius}"


KINDS: dict[str, type[Feature]] = {kind.kind: kind for kind in (Numeric, Categorical, Text, Smiles)}


@dataclass(frozen=True)
class Preparation:
    """How the columns of a table become the features that a policy was trained on."""

    features: tuple[Feature, ...]
    response: str | None = None
    id: str | None = None
    minimise: bool = False
    transformer: Transformer | None = None
    """The user's own, which takes the place of features."""

    @property
    def width(self) -> int:
        return sum(part.width for part in (*self.features, *((self.transformer,) if self.transformer else ())))

    def in_words(self) -> dict[str, str]:
        """What a person is shown of each column."""
        if self.transformer is not None:
            return dict.fromkeys(
                self.transformer.columns, f"prepared by {self.transformer.name}, a transformer of yours"
            )
        return {feature.column: feature.in_words() for feature in self.features}

    def matrix(
        self, table: Table, *, impute: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> FeatureMatrix:
        """The features of a table's rows; sparse where texts or molecules are among them.

        `progress` gets how many rows are done, and of how many.
        """
        if self.transformer is not None:
            return self.transformer.matrix(table)
        if progress is None or table.n_rows <= AT_ONCE:
            return self._matrix(table, impute)
        parts: list[Any] = []
        for start in range(0, table.n_rows, AT_ONCE):
            parts.append(self._matrix(table.part(start, start + AT_ONCE), impute))
            progress(min(start + AT_ONCE, table.n_rows), table.n_rows)
        return sp.csr_array(sp.vstack(parts, format="csr")) if sp.issparse(parts[0]) else np.vstack(parts)

    def _matrix(self, table: Table, impute: bool) -> FeatureMatrix:
        for feature in self.features:
            if feature.column not in table.columns:
                raise InputError(
                    f"the policy knows candidates by {', '.join(repr(f.column) for f in self.features[:12])}, "
                    f"{table.name} has no column {feature.column!r}; add it"
                )
        blocks = [feature.matrix(table, impute) for feature in self.features]
        if any(feature.sparse for feature in self.features):
            return sp.csr_array(sp.hstack([sp.csr_array(block) for block in blocks], format="csr"))
        return np.hstack(blocks)

    def describe(self) -> dict[str, Any]:
        """As JSON knows it; `of` brings it back."""
        return {
            "response": self.response,
            "id": self.id,
            "minimise": self.minimise,
            "features": [{"kind": feature.kind} | asdict(feature) for feature in self.features],
            "transformer": None
            if self.transformer is None
            else {"name": self.transformer.name, "columns": self.transformer.columns, "width": self.transformer.width},
        }

    @classmethod
    def of(cls, description: Any) -> "Preparation":
        """What `describe` gave, checked: it may come from a damaged file."""
        try:
            features = tuple(_feature(dict(each)) for each in description["features"])
            response, id_, minimise = (description[name] for name in ("response", "id", "minimise"))
            if not isinstance(minimise, bool) or not all(isinstance(n, str | None) for n in (response, id_)):
                raise TypeError("a name or a sign is of another type")
            own = description.get("transformer")
            transformer = None if own is None else _transformer(own)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"this does not describe how features are prepared ({error}); train the policy again"
            ) from None
        return cls(features, response, id_, minimise, transformer)


def _transformer(description: Any) -> Transformer:
    name, columns, width = (description[key] for key in ("name", "columns", "width"))
    if not isinstance(name, str) or type(width) is not int or not all(isinstance(column, str) for column in columns):
        raise TypeError("a transformer has a name, columns and a width")
    return Transformer(name, tuple(columns), width)


def _feature(description: dict[str, Any]) -> Feature:
    kind = KINDS[description.pop("kind")]
    values: dict[str, Any] = {name: tuple(map(str, v)) if isinstance(v, list) else v for name, v in description.items()}
    expected = {field.name: field.type for field in fields(kind)}
    wanted = {str: str, float: (int, float), int: int, tuple[str, ...]: tuple}
    if values.keys() != expected.keys() or any(
        isinstance(values[name], bool) or not isinstance(values[name], wanted[type_])  # type: ignore[index, arg-type]
        for name, type_ in expected.items()
    ):
        raise ValueError(f"a {kind.kind} feature has {', '.join(expected)}")
    return kind(**values)


def fit_preparation(
    tables: Sequence[Table],
    *,
    response: str | None = None,
    id: str | None = None,  # noqa: A002 - what the user calls it
    task: str | None = None,
    kinds: Mapping[str, str] | None = None,
    minimise: bool = False,
    impute: bool = False,
) -> tuple[Preparation, dict[str, Detected]]:
    """Learn how to prepare the columns that all tables share; and what each column was taken for."""
    taken = dict(_kinds(tables, kinds or {}, response, id, task))
    features = tuple(
        KINDS[kind].fitted(column, tables, impute) for column, (kind, _) in taken.items() if kind != IGNORE
    )
    if not features:
        shown = "; ".join(f"{column!r}: {reason}" for column, (_, reason) in taken.items())
        raise InputError(
            f"candidates are known by features, no column is one ({shown or 'there are no others'}); add columns or "
            "set their kinds: --kind COLUMN=numeric"
        )
    return Preparation(features, response, id, minimise), taken


def _kinds(
    tables: Sequence[Table], kinds: Mapping[str, str], response: str | None, id_: str | None, task: str | None
) -> Iterator[tuple[str, Detected]]:
    columns = dict.fromkeys(column for table in tables for column in table.columns)
    for column, kind in kinds.items():
        check_choice(f"the kind of {column!r}", kind, (*KINDS, IGNORE))
        if column not in columns:
            tables[0].column(column, "--kind")
    for column in columns:
        if column in (response, task):
            continue
        if kinds.get(column) == IGNORE:
            yield column, Detected(IGNORE, "as set")
            continue
        for table in tables:
            if column not in table.columns:
                raise InputError(
                    f"all tables have the same features, {table.name} has no column {column!r}; add it, or leave it "
                    f"out of all: --kind {column}=ignore"
                )
        if column in kinds:
            yield column, Detected(kinds[column], "as set")
            continue
        found = detected(column, [table.columns[column] for table in tables])
        is_name = column == id_ and found.kind != Smiles.kind
        yield column, Detected(IGNORE, "the id") if is_name else found


def detected(name: str, columns: Sequence[Column]) -> Detected:
    """What a column looks like."""
    if all(not isinstance(column, list) for column in columns):
        return Detected(Numeric.kind, "numbers")
    texts = [
        text for column in columns for text in (column if isinstance(column, list) else map(repr, column.tolist()))
    ]
    known = [text for text in texts if not is_missing(text)]
    if not known:
        return Detected(IGNORE, "empty")
    not_numbers = sum(1 for text in known if not _is_number(text))
    if not_numbers <= 0.1 * len(known):  # some that are not: refused later, with their row
        return Detected(Numeric.kind, "numbers")
    if sum(re.fullmatch(r"\s*[+-]?\d+,\d+\s*", text) is not None for text in known) > 0.5 * len(known):
        raise InputError(
            f"numbers have decimal points, column {name!r} has commas ({known[0]!r}); write points, or leave it out: "
            f"--kind {name}=ignore"
        )
    distinct = sorted(set(known))
    if re.search("smiles", name, re.IGNORECASE):
        return Detected(Smiles.kind, "its name")
    sample = distinct[:: max(1, len(distinct) // SAMPLED)]
    if len(distinct) >= 20 and np.mean([len(text) for text in sample]) >= 8 and are_molecules(sample):
        return Detected(Smiles.kind, "every value reads as a molecule")
    if np.mean([len(re.findall(WORD, text)) for text in sample]) >= WORDS_OF_A_TEXT and len(distinct) > 1:
        return Detected(Text.kind, "words")
    if len(distinct) <= max(2, min(MOST_CATEGORIES, len(known) // 2)):
        return Detected(Categorical.kind, f"{len(distinct)} different values")
    return Detected(IGNORE, f"{len(distinct)} different values in {len(known)} rows, as names have")


def _is_number(text: str) -> bool:
    return number_of(text) is not None
