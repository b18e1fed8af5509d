"""One page that needs nothing else: its style, numbers, tables and figures, readable on a phone and in the dark."""

import base64
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

NOTHING = "\N{EN DASH}"


@dataclass(frozen=True)
class Td:
    """A table's square: its text, smaller lines below it, and its kind, which the style knows."""

    text: str
    notes: tuple[str, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class Picture:
    """One figure as SVG, for a wide screen and a narrow one, each by day and by night."""

    wide: bytes
    wide_dark: bytes
    narrow: bytes
    narrow_dark: bytes


def number(value: float, decimals: int, sign: bool = False) -> str:
    """With a minus sign as long as the plus; what is no number is a dash.

    >>> number(1.234, 2), number(0.5, 1, sign=True)
    ('1.23', '+0.5')
    """
    if math.isnan(value):
        return NOTHING
    return f"{value:{'+' if sign else ''}.{decimals}f}".replace("-", "\N{MINUS SIGN}")


def decimals_of(gaps: Iterable[float]) -> int:
    """Decimals that show three figures of a typical gap, two at least.

    >>> decimals_of([3.2, 14.1]), decimals_of([0.02, 0.03]), decimals_of([])
    (2, 4, 2)
    """
    positive = [gap for gap in gaps if gap > 0]
    return int(np.clip(2 - math.floor(math.log10(np.median(positive))), 2, 8)) if positive else 2


def listed(items: Sequence[str]) -> str:
    """One after the other, the last after "and".

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))


def counted(count: int, noun: str) -> str:
    """With the noun's number.

    >>> counted(1, "run"), counted(1350, "cell")
    ('1 run', '1,350 cells')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def escaped(text: object) -> str:
    return html.escape(str(text))


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_kind(kind)}>{escaped(text)}</p>"


def bullets(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escaped(line)}</li>" for line in lines) + "</ul>" if lines else ""


def table(columns: Sequence[str], groups: Sequence[tuple[str, Sequence[Sequence[Td | str]]]], caption: str = "") -> str:
    """Rows in groups, each under its name if it has one. A wide table scrolls sideways by itself, not with the page."""
    head = "".join(f"<th scope='col'>{escaped(column)}</th>" for column in columns)
    bodies = []
    for name, rows in groups:
        title = f"<tr class='group'><th scope='rowgroup' colspan='{len(columns)}'>{escaped(name)}</th></tr>"
        bodies.append(f"<tbody>{title if name else ''}{''.join(_row(row) for row in rows)}</tbody>")
    words = paragraph(caption, "note") if caption else ""  # no <caption>: it would scroll with the table
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table></div>{words}"


def _row(row: Sequence[Td | str]) -> str:
    first, *rest = (square if isinstance(square, Td) else Td(square) for square in row)
    squares = "".join(f"<td{_kind(square.kind)}>{_square(square)}</td>" for square in rest)
    return f"<tr><th scope='row'{_kind(first.kind)}>{_square(first)}</th>{squares}</tr>\n"


def _square(square: Td) -> str:
    return escaped(square.text) + "".join(f"<small>{escaped(note)}</small>" for note in square.notes if note)


def _kind(kind: str) -> str:
    return f" class='{escaped(kind)}'" if kind else ""


def details(summary: str, body: str) -> str:
    """Folded away until it is asked for."""
    return f"<details><summary>{escaped(summary)}</summary>{body}</details>"


def picture(image: Picture, words: str, captions: Sequence[str]) -> str:
    """`words` are for who cannot see it."""
    narrow = "(max-width: 40rem)"
    dark = "(prefers-color-scheme: dark)"
    sources = (
        (f"{narrow} and {dark}", image.narrow_dark),
        (narrow, image.narrow),
        (dark, image.wide_dark),
    )
    return (
        "<figure><picture>"
        + "".join(f"<source media='{media}' srcset='{_data(svg)}'>" for media, svg in sources)
        + f"<img alt='{escaped(words)}' src='{_data(image.wide)}'></picture>"
        + f"<figcaption>{''.join(paragraph(line) for line in captions if line)}</figcaption></figure>"
    )


def _data(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


def page(title: str, body: str) -> str:
    """The whole document."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


STYLE = """
:root {
  color-scheme: light dark;
  --ink: #22262b; --soft: #5b636d; --ground: #ffffff; --rule: #dfe2e6; --wash: #f4f5f7;
  --ours: #b34d00; --good: #00694c; --good-wash: #e2f3ec; --bad: #a3304f; --bad-wash: #fae8ed;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #dfe3e8; --soft: #9aa4af; --ground: #16191d; --rule: #343a41; --wash: #1f2429;
    --ours: #ff9d52; --good: #5fd3ac; --good-wash: #153029; --bad: #f08ba5; --bad-wash: #3a1f28;
  }
}
* { box-sizing: border-box; }
body {
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  color: var(--ink); background: var(--ground);
  max-width: 64rem; margin: 0 auto; padding: 2rem 1rem 4rem; overflow-wrap: break-word;
}
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.4rem; line-height: 1.25; margin: 3rem 0 .75rem; }
h2 { padding-top: .75rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, ul { max-width: 46rem; margin: .6rem 0; }
ul { padding-left: 1.2rem; }
li { margin: .3rem 0; }
a { color: inherit; text-underline-offset: .2em; }
nav { font-size: .95rem; color: var(--soft); }
nav a { margin-right: 1rem; white-space: nowrap; }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
figcaption p { margin: .3rem 0; }
figcaption, .note { font-size: .9rem; color: var(--soft); max-width: 46rem; margin-top: .5rem; }
.warning { border-left: .25rem solid var(--bad); padding: .4rem .8rem; background: var(--bad-wash); max-width: 46rem; }
.wide { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; vertical-align: top; white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; font-weight: 600; color: var(--soft); }
thead th { border-bottom: 2px solid var(--rule); }
tbody th { font-weight: 400; text-align: left; position: sticky; left: 0; background: var(--ground); padding-left: 0; }
thead th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--ground); }
tbody tr { border-bottom: 1px solid var(--rule); }
tr.group th { font-weight: 600; padding-top: .9rem; }
td.left { text-align: left; white-space: normal; min-width: 12rem; overflow-wrap: anywhere; }
.ours { color: var(--ours); font-weight: 600 !important; }
.best { font-weight: 700; background: var(--wash); box-shadow: inset 0 -2px var(--ours); }
.lower { color: var(--good); background: var(--good-wash); }
.higher { color: var(--bad); background: var(--bad-wash); }
.absent { color: var(--bad); }
td:first-child { text-align: left; padding-left: 0; }
.quiet { color: var(--soft); }
small { display: block; font-size: .78rem; font-weight: 400; color: var(--soft); }
.lower small, .higher small, .absent small { color: inherit; }
.absent small { white-space: normal; min-width: 9rem; max-width: 14rem; margin-left: auto; }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
code { font-size: .9em; background: var(--wash); padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  body { padding-top: 1rem; }
  h1 { font-size: 1.5rem; }
  th, td { padding: .3rem .45rem; }
}
"""
