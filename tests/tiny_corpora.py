"""Tiny corpora in the published forms, with what makes the real ones hard to read."""

import dataclasses
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from dkaf.sources import corpora
from dkaf.sources.archives import content_digest
from dkaf.sources.catalogue import PUBLISHED

Files = dict[str, bytes]

MARKET = "profit dividend shares quarter"
OIL = "crude barrel refinery pipeline"


def reuters_document(number: int, topics: list[str], body: str | None, title: str = "A TITLE") -> str:
    found = "".join(f"<D>{topic}</D>" for topic in topics)
    text = f"<BODY>{body}\n Reuter\n&#3;</BODY>" if body is not None else "a brief without a body"
    return (
        f'<REUTERS TOPICS="YES" LEWISSPLIT="TRAIN" OLDID="{number + 5000}" NEWID="{number}">\n<DATE>26-FEB</DATE>\n'
        f"<TOPICS>{found}</TOPICS>\n<PLACES><D>usa</D><D>japan</D></PLACES>\n<PEOPLE></PEOPLE>\n"
        f"<UNKNOWN>\n&#5;&#5;&#5;F Y\n</UNKNOWN>\n<TEXT>&#2;\n<TITLE>{title}</TITLE>\n"
        f"<DATELINE>    TOKYO, Feb 26 - </DATELINE>{text}</TEXT>\n</REUTERS>\n"
    )


REUTERS: Files = {
    f"reut2-{part:03d}.sgm": (
        '<!DOCTYPE lewis SYSTEM "lewis.dtd">\n'
        + "".join(
            reuters_document(100 * part + n, ["earn"] if n % 2 else ["crude"], MARKET if n % 2 else OIL)
            for n in range(8)
        )
    ).encode("latin-1")
    for part in range(2)
}

R8: Files = {
    f"reuters-r8-{half}.tab": (
        "Category\tText\nd\tstring\nclass\t\n\n" + f'earn\t{MARKET}\ncrude\t{OIL} "unclosed\n' * 4
    ).encode()
    for half in ("train", "test")
}

WEBKB: Files = {
    f"{kind}/{university}/http:^^www.{university}.edu^{kind}^{n}.html": (
        b"Date: Thu, 21 Nov 1996 20:00:00 GMT\r\nServer: NCSA/1.5\r\nContent-type: text/html\r\n\r\n"
        b"<HTML><TITLE>caf\xe9 page</TITLE><BODY>" + words.encode() + b"</BODY></HTML>"
    )
    for kind, words in (("course", "lecture homework grading syllabus"), ("student", "resume hobbies thesis advisor"))
    for university in ("cornell", "texas", "washington", "wisconsin")
    for n in range(2)
}

SECTIONS = ["Theory", "Theory and Analysis", "Vision", "Visual Processing", "Uncategorised", "Applications"]
_PAPERS = [f"nips{volume:02d}/{number:04d}.txt" for volume in range(2) for number in range(1, 7)]
_TERMS = ["network", "learning", "eq", "the", "bound", "image"]
NIPS_LABELS: Files = {
    "nips.docnames": "".join(f"{paper}\n" for paper in _PAPERS).encode(),
    "nips.labels.key": "".join(f"{section}\n" for section in SECTIONS).encode(),
    "nips.labels": "".join(f"{row % 6}\n" for row in range(len(_PAPERS))).encode(),
    "nips.vocab": "".join(f"{term} = {number} = 9 9 \n" for number, term in enumerate(_TERMS)).encode(),
    "nips.corpus": b"6 0:2 1:3 2:4 3:5 4:1 5:1\n" * len(_PAPERS) + b"\n",
}
NIPS_TEXT: Files = dict.fromkeys(_PAPERS, b"network learning bound image caf\xe9 network")
NIPS_2001: Files = {
    f"{year}/{'NIPS2003_' if year == 2003 else ''}{code}0{n}.txt": b"kernel margin posterior sampling"
    for year in (2001, 2002, 2003)
    for code in ("AA", "VM")
    for n in (1, 2)
}

ALL: dict[tuple[str, str], Files] = {
    ("reuters", "sgml"): REUTERS,
    ("reuters", "r8-tab"): R8,
    ("webkb", "tree"): WEBKB,
    ("neurips", "counts"): NIPS_LABELS,
    ("neurips", "text"): {
        name: NIPS_LABELS[name] for name in NIPS_LABELS if "vocab" not in name and "corpus" not in name
    }
    | NIPS_TEXT,
    ("neurips-2001-2003", "text"): NIPS_2001,
}


def make_them_the_published_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache in `folder`, no DKAF_DATA, filters that tiny corpora pass, and the tiny ones' checksums."""
    monkeypatch.setenv("DKAF_CACHE", str(folder / "cache"))
    monkeypatch.delenv("DKAF_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(corpora, "MIN_DOCUMENTS", 2)
    monkeypatch.setattr(corpora, "MIN_WORDS", 3)
    for name, published in PUBLISHED.items():
        forms = {
            form: dataclasses.replace(known, n_files=len(ALL[name, form]), content=content_digest(ALL[name, form]))
            for form, known in published.forms.items()
        }
        monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(published, forms=forms))


def unpack(files: Files, folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pack(files: Files, path: Path, top: str = "top") -> Path:
    """An archive of the kind that the name says."""
    if path.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(f"{top}/{name}", content)
        return path
    kind = {".xz": "xz", ".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".tar": ""}[path.suffix]
    with tarfile.open(path, f"w:{kind}") as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(f"{top}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
