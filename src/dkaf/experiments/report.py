"""The demo's results for a person: in the terminal, and as one page with its figures inside."""

import base64
import html
import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import rankdata

import dkaf
from dkaf.evaluation import standard_error
from dkaf.experiments import page
from dkaf.experiments.demo import STARTS, TEST, TRAIN, VALIDATION, Demo, MethodRow
from dkaf.experiments.names import COLOURS, NAMES
from dkaf.files import whole_file
from dkaf.tasks import FloatArray

SHOWN = ("dkaf", "dkl", "random")


def terminal_report(demo: Demo) -> None:
    """The table, the curves, and what was found."""
    console = Console()
    table = Table(title=f"{TEST} unseen tasks, {STARTS} searches each; lower is better")
    for column in ("method", "cumulative gap", "standard error", "training seconds"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for row in demo.rows:
        result = row.result
        table.add_row(
            NAMES[row.method], f"{result.cumulative_gap:.2f}", f"{result.standard_error:.2f}", f"{row.seconds:.1f}"
        )
    console.print(table)
    console.print(text_curves(demo), highlight=False, markup=False)
    for line in demo.findings():
        console.print(line, highlight=False, soft_wrap=True)


def text_curves(demo: Demo, height: int = 14, step: int = 6) -> str:
    """Gap against queries, a letter a method; where several meet, the one listed first is seen."""
    curves = {row.method: _curve(row) for row in demo.rows}
    top = max(float(curve.max()) for curve in curves.values()) or 1.0
    width = step * (len(next(iter(curves.values()))) - 1) + 1
    canvas = [[" "] * width for _ in range(height + 1)]
    for method in reversed(curves):
        smooth = np.interp(np.arange(width) / step, np.arange(len(curves[method])), curves[method])
        for x, gap in enumerate(smooth):
            on_query = x % step == 0
            canvas[height - round(gap / top * height)][x] = LETTERS[method] if on_query else "·"
    lines = [f"{top * (height - i) / height:7.1f} │{''.join(row)}" for i, row in enumerate(canvas)]
    axis = "".join(f"{query:<{step}}" for query in range(len(next(iter(curves.values())))))
    legend = "   ".join(f"{LETTERS[method]} {NAMES[method]}" for method in curves)
    return "\n".join(
        ["gap after each query", *lines, f"        └{'─' * width}", f"         {axis}", f"         {legend}"]
    )


LETTERS = {"dkaf": "O", "dkl": "D", "gp": "G", "rl": "L", "metabo": "M", "random": "R"}


def write_report(demo: Demo, folder: Path) -> Path:
    """One page that needs nothing else."""
    figures = [
        (
            "The gap after each query",
            _curves_figure(demo),
            "Bars are standard errors over tasks. Query 0 is the start.",
        ),
        ("One search, as pictures", *_pictures(demo)),
    ]
    path = folder / "report.html"
    with whole_file(path) as file:
        file.write(_page(demo, figures).encode())
    return path


def _curve(row: MethodRow) -> FloatArray:
    """The gap at the start, then after each query."""
    return np.concatenate(([row.result.start_gaps.mean()], row.result.gaps.mean(axis=0)))


def _curves_figure(demo: Demo) -> bytes:
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    for row in reversed(demo.rows):
        gaps = np.column_stack((row.result.start_gaps, row.result.gaps))
        by_task = gaps.reshape(-1, row.result.starts, gaps.shape[1]).mean(axis=1)
        error = [standard_error(column) for column in by_task.T]
        axes.errorbar(
            range(gaps.shape[1]),
            gaps.mean(axis=0),
            error,
            label=NAMES[row.method],
            color=COLOURS[row.method],
            linewidth=2.6 if row.method == "dkaf" else 1.5,
            capsize=2,
            elinewidth=1,
        )
    axes.set(xlabel="queries", ylabel="gap to the best candidate", ylim=(0, None), xticks=range(gaps.shape[1]))
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False)
    return _png(figure)


def _pictures(demo: Demo) -> tuple[bytes, str]:
    """The hidden digit, and what three methods looked at, in order."""
    search = typical_search(demo)
    task = search // demo.row("dkaf").result.starts
    pool, responses = demo.tasks[task]
    looks = demo.row("dkaf").result.chosen.shape[1]
    figure = plt.figure(figsize=(looks + 2.4, 1.4 * len(SHOWN)), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[2, looks], squeeze=False)[0]
    if demo.tasks.targets is not None:
        _picture(left.subplots(), demo.tasks.features[demo.tasks.targets[task]], "the hidden digit")
    grid = right.subplots(len(SHOWN), looks)
    for method, line in zip(SHOWN, grid, strict=True):
        picks = demo.row(method).result.chosen[search]
        best = int(np.argmax(responses[picks]))
        line[0].set_ylabel(NAMES[method], fontsize=12)
        for look, (pick, axes) in enumerate(zip(picks, line, strict=True)):
            gap = responses.max() - responses[pick]
            label = f"gap {gap:.1f}" if gap > 0 else "the best"
            _picture(axes, demo.tasks.features[pool[pick]], label, framed=look == best)
            if method == SHOWN[0]:
                axes.set_title("start" if look == 0 else f"query {look}", fontsize=9)
    caption = (
        f"Searched for: the candidate most like the hidden digit, among {len(pool)}. Framed: the best that each method "
        f"found. Of all {len(demo.row('dkaf').result.gaps)} searches this is the one where all three come nearest to "
        "their median gaps, by rank."
    )
    return _png(figure), caption


def _picture(axes: Any, pixels: Any, label: str, *, framed: bool = False) -> None:
    axes.imshow(pixels.reshape(8, 8), cmap="gray_r")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(label, fontsize=9)
    for spine in axes.spines.values():
        spine.set(visible=framed, color=COLOURS["dkaf"], linewidth=3)


def typical_search(demo: Demo) -> int:
    """Where every method shown does as it usually does: nearest to the medians of their gaps, by rank."""
    gaps = np.array([demo.row(method).result.gaps.mean(axis=1) for method in SHOWN])
    ranks = rankdata(gaps, axis=1)  # of equals, the mean of their ranks
    return int(np.abs(ranks - (1 + gaps.shape[1]) / 2).sum(axis=0).argmin())


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=160)
    plt.close(figure)
    return buffer.getvalue()


def _page(demo: Demo, figures: list[tuple[str, bytes, str]]) -> str:
    rows = "\n".join(
        f"<tr{' class=ours' if row.method == 'dkaf' else ''}><td>{NAMES[row.method]}</td>"
        f"<td>{row.result.cumulative_gap:.2f}</td><td>{row.result.standard_error:.2f}</td>"
        f"<td>{row.seconds:.1f}</td></tr>"
        for row in demo.rows
    )
    found = "\n".join(f"<li>{html.escape(line)}</li>" for line in demo.findings())
    drawn = "\n".join(
        f"<h2>{html.escape(title)}</h2>\n<figure><img alt='{html.escape(title)}' "
        f"src='data:image/png;base64,{base64.b64encode(png).decode()}'>"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for title, png, caption in figures
    )
    body = BODY.format(
        rows=rows,
        found=found,
        drawn=drawn,
        command=f"dkaf demo --seed {demo.seed}",
        version=dkaf.__version__,
        train=TRAIN,
        validation=VALIDATION,
        test=TEST,
        starts=STARTS,
    )
    return page.page("dkaf demo", body)


BODY = """<h1>Finding the digit somebody has in mind</h1>
<p>A hidden handwritten digit, 500 others to choose from, and ten looks. Each look tells how similar that digit is to
the hidden one. How close does each method come? It has learned from {train} earlier searches ({validation} more were
held out to tune it by) and now makes {test} new ones, each from {starts} starting
points.</p>
<ul>
{found}
</ul>
<table>
<tr><th>method</th><th>cumulative gap</th><th>standard error</th><th>training seconds</th></tr>
{rows}
</table>
<p>The gap is the response of the best candidate minus the best found so far; the cumulative gap is its mean over the
ten queries and all searches. Ours, DKL and GP each
take the acquisition function with which they searched the held-out tasks best.</p>
{drawn}
<footer class="note"><p>Made by <code>{command}</code>, dkaf {version}, recipe <code>default</code>.</p></footer>"""
