"""A campaign as a table: what it measured, beside the pool's own columns."""

import csv
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from dkaf.campaign.campaign import Campaign
from dkaf.errors import InputError
from dkaf.files import whole_file
from dkaf.sources.tables import Column, Table

ADDED = ("id", "value", "measurements", "status", "at")


def rows(campaign: Campaign) -> tuple[list[str], list[list[Any]]]:
    """A header and a row for each candidate that something happened to, in the order it did."""
    state, ids = campaign.observations()
    values: dict[int, list[float]] = {}
    when: dict[int, str] = {}
    for told in state.told:
        values.setdefault(told.row, []).append(told.value)
        when[told.row] = told.at
    for row, event in (*state.pending.items(), *state.failed.items()):
        when.setdefault(row, event.at)
    places = [*values, *(row for row in (*state.pending, *state.failed) if row not in values)]
    columns = campaign.columns_of(places)
    own = list(columns[0]) if columns else []
    header = list(ADDED)
    for name in own:
        while name in header:
            name = f"pool {name}"
        header.append(name)
    lines = []
    for row, fields in zip(places, columns, strict=True):
        several = values.get(row, [])
        status = "measured" if several else "failed" if row in state.failed else "pending"
        mean = sum(several) / len(several) if several else ""
        lines.append([ids[row], mean, len(several), status, when[row], *fields.values()])
    return header, lines


def measured_table(campaign: Campaign, response: str) -> Table:
    """The candidates that were measured; a column of the pool that has the response's name gives way."""
    state, _ = campaign.observations()
    values: dict[int, list[float]] = {}
    for told in state.told:
        values.setdefault(told.row, []).append(told.value)
    if not values:
        raise InputError(f"a past task has measurements, the campaign {campaign.path} has none; leave it out")
    fields = campaign.columns_of(list(values))
    columns: dict[str, Column] = {name: [row[name] for row in fields] for name in fields[0]}
    columns[response] = np.array([np.mean(several) for several in values.values()], dtype=np.float64)
    return Table(campaign.path, columns, len(values))


def write_csv(campaign: Campaign, path: str | os.PathLike[str] | None) -> str:
    """Write it whole or not at all; the text itself."""
    text = io.StringIO(newline="")
    header, lines = rows(campaign)
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    if path is not None:
        if Path(path).suffix.lower() not in (".csv", ""):
            raise InputError(f"an export is a .csv file, {path} came; name one")
        with whole_file(path) as file:
            file.write(text.getvalue().encode())
    return text.getvalue()
