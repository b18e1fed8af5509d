"""Bags of words and the paper's filters, against the plainest way to write them."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

import dkaf
from dkaf.sources.words import Counts, Document, count_words, frequent


def bags(documents: list[Document]) -> list[Counter[str]]:
    return [
        Counter(word for word in re.findall("[a-z]{3,}", document.text.lower()) if word not in ENGLISH_STOP_WORDS)
        for document in documents
    ]


def as_bags(counts: Counts) -> list[Counter[str]]:
    dense = counts.features.toarray().astype(int)
    return [Counter({counts.terms[column]: int(row[column]) for column in np.flatnonzero(row)}) for row in dense]


def test_words_are_lower_case_of_three_letters_or_more_without_stop_words_in_alphabetical_order() -> None:
    counts = count_words(
        [Document("a", "x", "The ZEBRA's zebra ox 3rd café abc123def"), Document("b", "y", "don't; under_score")]
    )
    assert counts.terms == ("abc", "caf", "def", "don", "score", "zebra")
    assert as_bags(counts)[0] == Counter({"zebra": 2, "caf": 1, "abc": 1, "def": 1})
    assert counts.labels.tolist() == ["x", "y"]


WORDS = ["alpha", "beta", "gamma", "delta", "the", "of", "ox"]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=12)


@given(TEXTS, st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_filters_equal_the_plain_loop_that_repeats_until_nothing_changes(
    texts: list[str], min_documents: int, min_words: int
) -> None:
    documents = [Document(str(number), "label", text) for number, text in enumerate(["alpha", *texts])]
    left = dict(zip((document.name for document in documents), bags(documents), strict=True))
    while True:
        spread = Counter(word for bag in left.values() for word in bag)
        cut = {
            name: Counter({word: n for word, n in bag.items() if spread[word] >= min_documents})
            for name, bag in left.items()
        }
        cut = {name: bag for name, bag in cut.items() if sum(bag.values()) >= min_words}
        if cut == left:
            break
        left = cut
    kept = frequent(count_words(documents), min_documents, min_words)
    assert list(kept.names) == list(left)
    assert as_bags(kept) == list(left.values())
    assert set(kept.terms) == {word for bag in left.values() for word in bag}
    assert list(kept.terms) == sorted(kept.terms)


def test_nothing_to_count_is_refused() -> None:
    with pytest.raises(dkaf.InputError, match="at least one document"):
        count_words([])
    with pytest.raises(dkaf.InputError, match="not one was found"):
        count_words([Document("a", "x", "the of 12 ox"), Document("b", "y", "")])
