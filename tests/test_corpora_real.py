"""The real corpora, where DKAF_DATA has them: exactly these documents, terms, classes and counts."""

import os
from pathlib import Path

import pytest

from dkaf.sources import corpora
from dkaf.sources.corpora import get_corpus, in_usual_places, load_corpus

EXPECTED = {
    ("reuters", "sgml"): (
        1908,
        744,
        "2b8aa2804da369c3b5f80e43c6cfe9ded456fb86aa7cc4df49e97cac52d48dab",
        {"acq": 550, "crude": 207, "earn": 647, "grain": 15, "interest": 85, "money-fx": 115, "ship": 34, "trade": 255},
    ),
    ("webkb", "tree"): (
        2559,
        1792,
        "b1331ff455501220acbebe1a1aa218eacd32f1f2a556ee3b5cbdde71c56655d2",
        {"cornell": 535, "texas": 468, "washington": 713, "wisconsin": 843},
    ),
    ("neurips", "counts"): (
        1551,
        3301,
        "b324b7408c217e291aa8bc2fd38430dcdc48486dbf8cd61d60d8a9f0f9496f83",
        {
            "Algorithms and Architectures": 307,
            "Applications": 170,
            "Cognitive Science": 80,
            "Control, Navigation and Planning": 131,
            "Implementation": 116,
            "Learning Algorithms": 52,
            "Learning and Generalisation": 99,
            "Neuro-Dynamics": 21,
            "Neuroscience": 180,
            "Speech and Signal Processing": 94,
            "Structured Networks": 20,
            "Theory": 153,
            "Visual Processing": 128,
        },
    ),
    ("neurips", "text"): (1551, 3459, "1d52da1ed862b8dfd83657723cad87c74c7a88fb738832eb67f759c48a735884", None),
    ("neurips-2001-2003", "text"): (
        450,
        1538,
        "0dfd4bacca47477c9ae9ca6b9df9d0782249e887291fd696a43e1f946e3ed7b3",
        {
            "AA": 143,
            "AP": 32,
            "BI": 7,
            "CN": 34,
            "CS": 39,
            "ET": 9,
            "IM": 4,
            "LT": 68,
            "NS": 42,
            "SP": 17,
            "VB": 7,
            "VM": 15,
            "VS": 33,
        },
    ),
}


@pytest.mark.parametrize(("name", "form"), list(EXPECTED))
def test_published_corpora_are_exactly_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: str
) -> None:
    monkeypatch.setenv("DKAF_CACHE", str(tmp_path))
    if not os.environ.get("DKAF_DATA") or not in_usual_places(name):
        pytest.skip(f"DKAF_DATA names no folder that has {name}")
    monkeypatch.setattr(corpora, "fetch", lambda *_: pytest.skip(f"DKAF_DATA lacks the form {form} of {name}"))
    documents, terms, digest, classes = EXPECTED[name, form]
    corpus = get_corpus(name, form=form)
    assert corpus.features.shape == (documents, terms)
    assert corpus.digest == digest
    assert corpus.checked
    if classes is not None:
        assert corpus.class_sizes == dict(sorted(classes.items(), key=lambda item: (-item[1], item[0])))
    assert load_corpus(name).digest == digest
