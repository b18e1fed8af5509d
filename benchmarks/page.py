"""The part of docs/performance.md that the benchmarks write themselves, between two marks."""

from pathlib import Path

PATH = Path(__file__).parents[1] / "docs" / "performance.md"


def write(name: str, body: str, path: Path = PATH) -> None:
    """Put the body between the marks of that name."""
    begin, end = f"<!-- {name}: written by benchmarks, do not edit -->", f"<!-- end of {name} -->"
    before, found, rest = path.read_text().partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise ValueError(f"{path} has a place for {name} between {begin!r} and {end!r}, one of them is missing")
    path.write_text(f"{before}{begin}\n{body}\n{end}{after}")
