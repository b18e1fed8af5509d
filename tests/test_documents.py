"""The documents: what they link to is there, and what they claim of the grid is what its published table says."""

import csv
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PAGES = sorted(chain(PROJECT.glob("*.md"), PROJECT.glob("docs/**/*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```", re.DOTALL)


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


@pytest.mark.parametrize("page", ["docs/results/README.md", "docs/results/default/README.md"])
def test_the_claim_against_dkl_is_what_the_comparisons_say(page: str) -> None:
    with (PROJECT / "docs/results/default/comparisons.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["method"], row["other_method"]) == ("dkaf", "dkl")]
    same = [r for r in rows if all(r[k] == r[f"other_{k}"] for k in ("recipe", "training_tasks", "acquisition"))]
    lower, verdicts = sum(float(r["difference"]) < 0 for r in same), Counter(r["verdict"] for r in same)
    assert verdicts["higher"] == 0
    claim = f"in {lower} of {len(same)} cells, clearly in {verdicts['lower']}, clearly higher in none"
    assert claim in (PROJECT / page).read_text()
