"""The ratios that were last recorded, and what became of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import Row

PATH = Path(__file__).with_name("baseline.json")
WORSE = 0.2
"""By how much a ratio falls before it is named."""


@dataclass(frozen=True)
class Difference:
    """What changed since the baseline, by key and ratio."""

    worse: dict[str, tuple[float, float]]
    """Recorded and new ratio, of those that fell by more than 20%."""
    new: list[str]
    vanished: list[str]

    def __str__(self) -> str:
        lines = [f"got worse by more than {WORSE:.0%}: {', '.join(self.worse) or 'nothing'}"]
        lines += [f"  {key}: {old:.2f} times faster, now {now:.2f}" for key, (old, now) in self.worse.items()]
        if self.new:
            lines.append(f"not in the baseline: {', '.join(self.new)}; --record adds them")
        if self.vanished:
            lines.append(f"in the baseline, but not measured: {', '.join(self.vanished)}")
        return "\n".join(lines)


def read(path: Path = PATH) -> dict[str, float]:
    """Ratios by key; empty where nothing was recorded."""
    return {key: float(ratio) for key, ratio in json.loads(path.read_text()).items()} if path.exists() else {}


def difference(recorded: Mapping[str, float], rows: Sequence[Row], expected: Sequence[str]) -> Difference:
    """Of the comparisons that were expected to run; the others' ratios are left alone."""
    now = {row.key: row.ratio for row in rows}
    both = [key for key in now if key in recorded]
    return Difference(
        worse={key: (recorded[key], now[key]) for key in both if now[key] < (1 - WORSE) * recorded[key]},
        new=[key for key in now if key not in recorded],
        vanished=[key for key in recorded if key not in now and key.partition("/")[0] in expected],
    )


def record(rows: Sequence[Row], expected: Sequence[str], path: Path = PATH) -> None:
    """The new ratios in the place of the old ones of the same comparisons."""
    kept = {key: ratio for key, ratio in read(path).items() if key.partition("/")[0] not in expected}
    ratios = kept | {row.key: round(row.ratio, 3) for row in rows}
    path.write_text(json.dumps(ratios, indent=2) + "\n")
