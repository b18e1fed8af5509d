"""From texts to counts of words, by the paper's filters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkaf.errors import InputError

RECIPE = 1
"""Changes with anything that changes the counts; what was parsed by another recipe is parsed again."""

WORD = "[a-z]{3,}"
MIN_DOCUMENTS, MIN_WORDS = 50, 50


class Document(NamedTuple):
    """One text, its class, and the name that it has in its corpus."""

    name: str
    label: str
    text: str


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each term is in each document."""

    names: tuple[str, ...]
    labels: NDArray[Any]
    terms: tuple[str, ...]
    features: sp.csr_array
    """Documents x terms."""


def count_words(documents: Sequence[Document]) -> Counts:
    """Lower case, words of three letters or more, English stop words out; terms in alphabetical order."""
    from sklearn.feature_extraction.text import CountVectorizer

    if not documents:
        raise InputError("a corpus has at least one document, none came; name the folder or file that holds them")
    vectorizer = CountVectorizer(token_pattern=WORD, stop_words="english", dtype=np.float32)
    try:
        features = sp.csr_array(vectorizer.fit_transform(document.text for document in documents))
    except ValueError as error:
        raise InputError("a corpus has words, not one was found; is it text, and the right column?") from error
    names, labels = tuple(document.name for document in documents), [document.label for document in documents]
    return Counts(names, np.array(labels, dtype=np.str_), tuple(vectorizer.get_feature_names_out().tolist()), features)


def only_words(counts: Counts) -> Counts:
    """The same rule for terms that were counted elsewhere, in alphabetical order as well."""
    import re

    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    kept = [
        number
        for number, term in enumerate(counts.terms)
        if re.fullmatch(WORD, term) and term not in ENGLISH_STOP_WORDS
    ]
    kept.sort(key=lambda number: counts.terms[number])
    return Counts(counts.names, counts.labels, tuple(counts.terms[n] for n in kept), counts.features[:, kept].tocsr())


def frequent(counts: Counts, min_documents: int = MIN_DOCUMENTS, min_words: int = MIN_WORDS) -> Counts:
    """Drop terms in fewer than `min_documents` documents and documents of fewer than `min_words` words.

    A dropped document makes terms rarer, a dropped term documents shorter: repeated until nothing changes. A
    document's words are those that are kept.
    """
    features = counts.features
    rows, columns = np.arange(features.shape[0]), np.arange(features.shape[1])
    while True:
        common = np.bincount(features.indices[features.data > 0], minlength=len(columns)) >= min_documents
        features, columns = features[:, common], columns[common]
        long = np.asarray(features.sum(axis=1)).ravel() >= min_words
        features, rows = features[long], rows[long]
        if common.all() and long.all():
            break
    features = sp.csr_array(features)
    features.sort_indices()
    names, terms = tuple(counts.names[row] for row in rows), tuple(counts.terms[column] for column in columns)
    return Counts(names, counts.labels[rows], terms, features)
