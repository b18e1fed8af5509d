"""What is said of a corpus: `dkaf data list` and `dkaf data info`."""

import dataclasses
from typing import Any

from dkaf.errors import InputError
from dkaf.sources.catalogue import PUBLISHED
from dkaf.sources.corpora import DIGITS, Corpus, corpus_names, in_usual_places, kept

_DIGITS_TITLE = "1,797 handwritten digits of 8 x 8 pixels, which scikit-learn carries"


def describe(corpus: Corpus) -> dict[str, Any]:
    """Everything about a corpus but its data."""
    published = PUBLISHED.get(corpus.name)
    documents, terms = corpus.features.shape
    return {
        "name": corpus.name,
        "title": _title(corpus.name),
        "documents": documents,
        "terms": terms,
        "classes": corpus.class_sizes,
        "paper": dataclasses.asdict(published.paper) if published and published.paper else None,
        "form": corpus.form,
        "forms": list(published.forms) if published else [corpus.form],
        "min_documents": corpus.min_documents,
        "min_words": corpus.min_words,
        "source": corpus.source,
        "page": published.page if published else None,
        "as_published": corpus.checked if published else None,
        "terms_of_use": _terms_of_use(corpus.name),
        "recipe": corpus.recipe,
        "content": corpus.content,
        "digest": corpus.digest,
    }


def summaries() -> list[dict[str, Any]]:
    """Every corpus that has a name, and whether it is here."""
    states = {name: _state(name) for name in corpus_names()}
    return [
        {"name": name, "title": _title(name), "here": here, "state": words} for name, (here, words) in states.items()
    ]


def _state(name: str) -> tuple[bool, str]:
    if name == DIGITS:
        return True, "here"
    lacks = f"not here; run: dkaf data get {name}"
    try:
        corpus = kept(name)
        if corpus is not None:
            documents, terms = corpus.features.shape
            classes = len(corpus.class_sizes)
            return True, f"here: {documents:,} documents x {terms:,} terms, {classes} classes, form {corpus.form}"
    except InputError as error:
        lacks = str(error)
    try:
        if name in PUBLISHED and in_usual_places(name):
            return True, "in DKAF_DATA or downloaded, read when it is first used"
    except InputError as error:
        return False, str(error)
    return False, lacks


def _title(name: str) -> str:
    if name == DIGITS:
        return _DIGITS_TITLE
    return PUBLISHED[name].title if name in PUBLISHED else "your own"


def _terms_of_use(name: str) -> str:
    if name == DIGITS:
        return "BSD 3-Clause, as scikit-learn; from UCI's Optical Recognition of Handwritten Digits"
    return PUBLISHED[name].terms_of_use if name in PUBLISHED else "yours to know"
