"""Rows as tables: for the terminal, and for docs/performance.md."""

from collections.abc import Sequence

from benchmarks.comparison import Row

HEAD = ("what", "ours", "peer", "peer's", "ratio", "quartiles", "memory, ours / peer's")


def cells(row: Row) -> tuple[str, ...]:
    memory = "-" if row.ours_mib is None or row.peer_mib is None else f"{row.ours_mib:,.0f} / {row.peer_mib:,.0f} MiB"
    return (
        row.what,
        seconds(row.ours_seconds),
        row.name,
        seconds(row.peer_seconds),
        number(row.ratio),
        f"{number(row.low)} to {number(row.high)}",
        memory,
    )


def text(rows: Sequence[Row]) -> str:
    """Aligned columns."""
    lines = [HEAD, *map(cells, rows)]
    wide = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    left = (0, 2)
    return "\n".join(
        "  ".join(
            f"{cell:<{w}}" if n in left else f"{cell:>{w}}" for n, (cell, w) in enumerate(zip(line, wide, strict=True))
        )
        for line in lines
    )


def markdown(rows: Sequence[Row]) -> str:
    """Without times, which are of one machine: a ratio is what compares."""
    lines = ["| what | peer | times faster | quartiles | memory, ours / peer's |", "|---|---|---|---|---|"]
    for row in rows:
        what, _, name, _, ratio, quartiles, memory = cells(row)
        lines.append(f"| {what} | {name} | **{ratio}** | {quartiles} | {memory} |")
    return "\n".join(lines)


def number(value: float) -> str:
    """Three digits at most.

    >>> number(3.04), number(33.21), number(240.3)
    ('3.0', '33', '240')
    """
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def seconds(value: float) -> str:
    """In units that suit it.

    >>> seconds(0.00123), seconds(0.0123), seconds(12.3)
    ('1.2 ms', '12 ms', '12 s')
    """
    return f"{number(value)} s" if value >= 1 else f"{number(1000 * value)} ms"
