"""The published forms, ugly cases included."""

import re

import numpy as np
import pytest
import tiny_corpora as tiny

import dkaf
from dkaf.sources import formats
from dkaf.sources.formats import visible_text


def words(text: str) -> list[str]:
    return re.findall("[a-z]+", text.lower())


def page(content: bytes) -> list[str]:
    return words(formats.webkb_tree({"course/texas/page": content})[0].text)


def reuters(*documents: str) -> list[formats.Document]:
    return formats.reuters_sgml({"reut2-000.sgm": "".join(documents).encode("latin-1")})


def test_reuters_keeps_documents_of_exactly_one_topic_among_the_eight_with_a_body() -> None:
    kept = reuters(
        tiny.reuters_document(1, ["earn"], "kept"),
        tiny.reuters_document(2, ["earn", "acq"], "two topics"),
        tiny.reuters_document(3, ["earn", "cocoa"], "two topics, one of the eight"),
        tiny.reuters_document(4, ["cocoa"], "not of the eight"),
        tiny.reuters_document(5, [], "no topic"),
        tiny.reuters_document(6, ["trade"], None),
        tiny.reuters_document(7, ["money-fx"], "kept too"),
    )
    assert [(document.name, document.label) for document in kept] == [("1", "earn"), ("7", "money-fx")]


def test_reuters_text_is_title_and_body_without_entities_and_other_fields() -> None:
    (document,) = reuters(
        tiny.reuters_document(1, ["acq"], "bid of &lt;ABC> for AT&amp;T caf\xe9 &#127; end", "TITLE &lt;XYZ.N>")
    )
    assert words(document.text) == words("title xyz n bid of abc for at t caf end reuter")
    assert "<ABC>" in document.text
    assert "\x03" not in document.text


def test_reuters_reads_a_document_without_a_title_and_one_whose_body_is_never_closed() -> None:
    untitled = tiny.reuters_document(1, ["acq"], "body one").replace("<TITLE>A TITLE</TITLE>\n", "")
    unclosed = tiny.reuters_document(2, ["acq"], "body two").replace("</BODY>", "")
    read = reuters(untitled, unclosed, tiny.reuters_document(3, ["acq"], "body three"))
    assert [words(document.text) for document in read] == [
        words("body one reuter"),
        words("a title body two reuter"),
        words("a title body three reuter"),
    ]


def test_reuters_refuses_what_its_parser_cannot_read() -> None:
    with pytest.raises(dkaf.InputError, match=r"reut2-000\.sgm is no SGML"):
        formats.reuters_sgml({"reut2-000.sgm": b"<REUTERS><![nonsense[ x ]]> </REUTERS>"})


def test_r8_table_gives_category_and_text_and_refuses_other_tables() -> None:
    documents = formats.reuters_r8_tab(tiny.R8)
    assert len(documents) == 16
    assert documents[0] == ("reuters-r8-train.tab:5", "earn", tiny.MARKET)
    assert documents[1].text == f'{tiny.OIL} "unclosed'
    for content in (
        b"",
        b"class\ttext\n",
        b"Category\tText\nd\tstring\nclass\t\nearn\n",
        b"Category\tText\n" + b"x" * 200_000,
    ):
        with pytest.raises(dkaf.InputError, match=r"train\.tab"):
            formats.reuters_r8_tab({"reuters-r8-train.tab": content})


def test_webkb_drops_header_and_markup_and_takes_the_university_as_label() -> None:
    documents = formats.webkb_tree(tiny.WEBKB)
    assert {document.label for document in documents} == {"cornell", "texas", "washington", "wisconsin"}
    assert words(documents[0].text) == words("caf page lecture homework grading syllabus")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"Date: today\r\nServer: x\r\n\r\n<p>after CRLF", "after crlf"),
        (b"Date: today\n\nfirst\n\nsecond", "first second"),
        (b"Date: today\n<HTML><p>no blank line\n\nsecond", "no blank line second"),
        (b"<TITLE>no header</TITLE>\n\n<p>at all", "no header at all"),
        (b"\n<p>empty header", "empty header"),
        (b"Date: today\nServer: header only", ""),
        (b"", ""),
    ],
)
def test_webkb_header_ends_at_the_blank_line_or_at_the_first_line_that_is_no_header(content: bytes, text: str) -> None:
    assert page(content) == words(text)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"<b>one<i>two<p>three", "one two three"),
        (b"<B>D</B>rop", "d rop"),
        (b"one<script>var hidden = '<b>';</script>two<style>p {}</style>three", "one two three"),
        (b"one<SCRIPT>never closed", "one"),
        (b"one<!-- hidden <b> -->two", "onetwo"),
        (b"one<!-- never closed > two <b>three</b>", "one two three"),
        (b"one <!-- closed -->two<!-- not > three", "one two three"),
        (b"<!WA0><!WA0><a href='x'>link</a>", "link"),
        (b"<html>one</html><html>two", "one two"),
        (b"<frameset><noframes><img src=x>shown</noframes></frameset>", "shown"),
        (b"AT&amp;T &lt;tag&gt; &nbsp;&eacute; &unknown; end", "at t tag unknown end"),
        (b'<p align="left>one</p><p>two', ""),
        (b"caf\xe9 na\xefve", "caf na ve"),
        (b'<?xml version="1.0" encoding="utf-16"?><p>one', "one"),
        (b"one\x00two", "one two"),
        (b"plain < text > 3", "plain text"),
        (b"<", ""),
        (b" \n ", ""),
        (b"<!-- only a comment -->", ""),
    ],
)
def test_visible_text_of_broken_markup(content: bytes, text: str) -> None:
    assert words(visible_text(content)) == words(text)


def test_nips_merges_sections_leaves_out_the_uncategorised_and_keeps_the_order() -> None:
    counts = formats.nips_counts(tiny.NIPS_LABELS)
    assert counts.labels.tolist() == ["Theory", "Theory", "Visual Processing", "Visual Processing", "Applications"] * 2
    assert counts.names[:2] == ("nips00/0001.txt", "nips00/0002.txt")
    assert counts.terms == ("bound", "image", "learning", "network")  # no stop word, none of two letters
    np.testing.assert_array_equal(counts.features.toarray(), [[1, 1, 3, 2]] * 10)


def test_nips_text_has_the_same_papers_and_sections_as_its_counts() -> None:
    counts = formats.nips_counts(tiny.NIPS_LABELS)
    documents = formats.nips_text(tiny.ALL["neurips", "text"])
    assert [document.name for document in documents] == list(counts.names)
    assert [document.label for document in documents] == counts.labels.tolist()


def test_nips_keeps_the_thirteen_largest_sections() -> None:
    sections = [f"Section {letter}" for letter in "ABCDEFGHIJKLMNO"]
    labels = [number for number in range(15) for _ in range(20 - number)]
    files = tiny.NIPS_LABELS | {
        "nips.docnames": b"nips00/0001.txt\n" * len(labels),
        "nips.labels.key": "\n".join(sections).encode(),
        "nips.labels": "\n".join(map(str, labels)).encode(),
        "nips.corpus": b"1 0:1\n" * len(labels),
    }
    assert sorted(set(formats.nips_counts(files).labels.tolist())) == sections[:13]


def test_nips_merged_sections_name_each_section_once() -> None:
    merged = [section for sections in formats.NIPS_SECTIONS.values() for section in sections]
    assert len(merged) == len(set(merged))
    assert not set(merged) & set(formats.NIPS_SECTIONS)


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("nips.corpus", b"1 0:1\n2 0:1\n", "line 2 of nips.corpus"),
        ("nips.corpus", b"1 0:1\n1 6:1\n", "line 2 of nips.corpus"),
        ("nips.corpus", b"1 0:1\n1 word\n", "line 2 of nips.corpus"),
        ("nips.corpus", b"1 0:1\n", "1 lines and 12 papers"),
        ("nips.labels", b"1\n", "1 lines and 12 papers came; get the corpus again"),
        ("nips.labels", b"77\n", "number of a line"),
        ("nips.labels", b"x\n", "number of a line"),
    ],
)
def test_nips_refuses_damaged_counts(name: str, content: bytes, fragment: str) -> None:
    with pytest.raises(dkaf.InputError, match=re.escape(fragment)):
        formats.nips_counts(tiny.NIPS_LABELS | {name: content})


def test_nips_refuses_missing_files() -> None:
    with pytest.raises(dkaf.InputError, match=r"nips\.vocab"):
        formats.nips_counts({name: content for name, content in tiny.NIPS_LABELS.items() if name != "nips.vocab"})
    with pytest.raises(dkaf.InputError, match="12 have none"):
        formats.nips_text(tiny.NIPS_LABELS)


def test_nips_2001_takes_the_section_from_the_letters_of_the_name() -> None:
    documents = formats.nips_section_codes(tiny.NIPS_2001)
    assert {(document.name, document.label) for document in documents} >= {
        ("2001/AA01.txt", "AA"),
        ("2003/NIPS2003_VM02.txt", "VM"),
    }
