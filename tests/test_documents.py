"""The documents: what they link to is there, and what they claim of the grid is what its published table says."""

import csv
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from statistics import median

import pytest

PROJECT = Path(__file__).parent.parent
PAGES = sorted(chain(PROJECT.glob("*.md"), PROJECT.glob("docs/**/*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)
assert PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_between_documents_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(CODE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):  # the web
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


def _anchors(page: Path) -> set[str]:
    """What headings are called in a link: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_claims_against_dkl_are_what_the_comparisons_say() -> None:
    with (PROJECT / "docs/results/default/comparisons.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["method"], row["other_method"]) == ("dkaf", "dkl")]
    same = [r for r in rows if all(r[k] == r[f"other_{k}"] for k in ("recipe", "training_tasks", "acquisition"))]
    differences, verdicts = [float(r["difference"]) for r in same], Counter(r["verdict"] for r in same)
    lower, clear = sum(difference < 0 for difference in differences), verdicts["lower"]
    assert verdicts["higher"] == 0
    claim = f"in {lower} of {len(same)} cells, clearly in {clear}, clearly higher in none"
    assert claim in _words("docs/results/README.md")
    assert claim in _words("docs/results/default/README.md")
    assert f"{lower}, {clear} of {len(same)}" in _words("docs/results/earlier/README.md")
    assert (
        f"Over {len(same)} settings (three text corpora, five numbers of past searches, three acquisition functions; "
        f"ten runs each) the median difference is {median(differences):.1f}, from {max(differences):+.2f} to "
        f"{min(differences):.1f}, of gaps of 4 to 10; in {clear} of them the 95 % interval leaves out 0"
    ) in _words("README.md")


def _words(page: str) -> str:
    return " ".join((PROJECT / page).read_text().split())
