"""One corpus as a value, and the folder where corpora are kept once they are parsed."""

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dkaf.errors import InputError
from dkaf.files import whole_file
from dkaf.tasks import FeatureMatrix

FORMAT = "dkaf-corpus-1"


@dataclass(frozen=True, eq=False)
class Corpus:
    """Labelled items: what `similarity_tasks` needs, and where it came from.

    >>> import dkaf
    >>> digits = dkaf.load_corpus("digits")
    >>> digits
    Corpus('digits', form 'pixels': 1797 documents x 64 terms, 10 classes)
    >>> dkaf.similarity_tasks(digits.features, digits.labels, n_tasks=3, pool_size=50)
    TaskSet(3 tasks, pools of 50 to 50 candidates, 64 dense features)
    """

    name: str
    form: str
    """In which of its published forms it was read: `sgml` or `r8-tab` for Reuters, say."""
    features: FeatureMatrix
    """Documents x terms; sparse counts, but for digits."""
    labels: NDArray[Any]
    terms: tuple[str, ...]
    documents: tuple[str, ...]
    """The name of each document, a row's number where it has none."""
    source: str
    """Where it was read from."""
    content: str
    """SHA-256 over the files it was read from."""
    checked: bool
    """Whether these are the published files, byte for byte."""
    min_documents: int
    min_words: int
    recipe: int
    """The version of the parsers and filters that made it."""

    def __repr__(self) -> str:
        documents, terms = self.features.shape
        return (
            f"Corpus({self.name!r}, form {self.form!r}: {documents} documents x {terms} terms, "
            f"{len(self.class_sizes)} classes)"
        )

    @property
    def class_sizes(self) -> dict[str, int]:
        """Documents of each class, the largest first."""
        sizes = Counter(self.labels.tolist())
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over features, labels and terms: exactly this data, wherever it came from."""
        digest = hashlib.sha256()
        if isinstance(self.features, np.ndarray):
            arrays = [self.features.astype("<f8")]
        else:
            arrays = [self.features.indptr.astype("<i8"), self.features.indices.astype("<i8")]
            arrays.append(self.features.data.astype("<f8"))
        for array in arrays:
            digest.update(f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        digest.update(json.dumps([self.labels.tolist(), self.terms]).encode())
        return digest.hexdigest()


def cache_folder() -> Path:
    """Where downloads and parsed corpora are kept: `DKAF_CACHE`, or the system's folder for such things."""
    if chosen := os.environ.get("DKAF_CACHE"):
        return Path(chosen).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("dkaf", appauthor=False)


def make_folder(path: Path) -> Path:
    """The folder, there and writable."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"the cache {path} cannot be made: {error.strerror}; set DKAF_CACHE to another") from error
    return path


def store(corpus: Corpus) -> None:
    """Keep it under its name, whole or not at all."""
    assert not isinstance(corpus.features, np.ndarray)
    about = {
        "format": FORMAT,
        "digest": corpus.digest,
        "name": corpus.name,
        "form": corpus.form,
        "labels": corpus.labels.tolist(),
        "terms": corpus.terms,
        "documents": corpus.documents,
        "source": corpus.source,
        "content": corpus.content,
        "checked": corpus.checked,
        "min_documents": corpus.min_documents,
        "min_words": corpus.min_words,
        "recipe": corpus.recipe,
    }
    with whole_file(make_folder(_shelf()) / f"{corpus.name}.npz") as file:
        np.savez_compressed(
            file,
            about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
            shape=np.array(corpus.features.shape),
            indptr=corpus.features.indptr,
            indices=corpus.features.indices,
            data=corpus.features.data,
        )


def cached(name: str) -> Corpus | None:
    """The corpus that is kept under this name, if one is."""
    path = _shelf() / f"{name}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
        about: dict[str, Any] = json.loads(arrays["about"].tobytes())
        if about.pop("format") != FORMAT:
            raise ValueError("another format")
        features = sp.csr_array(
            (arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(arrays["shape"].tolist())
        )
        features.check_format(full_check=True)
        digest, labels = about.pop("digest"), np.array(about.pop("labels"), dtype=np.str_)
        terms, documents = tuple(about.pop("terms")), tuple(about.pop("documents"))
        corpus = Corpus(features=features, labels=labels, terms=terms, documents=documents, **about)
        if corpus.digest != digest or corpus.name != name:
            raise ValueError("it is not what was written")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # damaged archives end NumPy and zipfile in a dozen ways, none of them ours
        raise InputError(f"the cached corpus {path} cannot be read ({error}); get or add {name} again") from error
    return corpus


def cached_names() -> list[str]:
    """The names under which something is kept."""
    return sorted(path.stem for path in _shelf().glob("*.npz") if not path.name.startswith("."))


def _shelf() -> Path:
    return cache_folder() / "corpora"
