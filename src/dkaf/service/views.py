"""What a person looks at: why a candidate, and the numbers behind the plots."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from dkaf.campaign.campaign import GP, Campaign
from dkaf.campaign.plots import MAPPED, RANKED, picture
from dkaf.campaign.store import Store
from dkaf.errors import InputError
from dkaf.service.problems import Refusal

NEAR = 5
MOST_ATOMS, LONGEST_SMILES = 200, 2000
WIDTH, HEIGHT = 360, 260


def row_of(campaign: Campaign, candidate: str) -> int:
    """Where a candidate is in the pool."""
    store = Store(Path(campaign.path))
    with store.reading() as db:
        try:
            return store.row_of(db, candidate)
        except InputError as error:
            raise Refusal(404, str(error)) from None


def ids_of(campaign: Campaign, rows: list[int]) -> list[str]:
    """What candidates are called."""
    store = Store(Path(campaign.path))
    with store.reading() as db:
        return [store.id_of(db, row) for row in rows]


def why(campaign: Campaign, row: int) -> dict[str, Any]:
    """What is expected of a candidate, and the measured ones that are nearest as the policy sees them."""
    if not 0 <= row < len(campaign):
        raise Refusal(404, f"the pool's rows go from 0 to {len(campaign) - 1}, {row} came; name one of them")
    search, (state, _) = campaign.search(), campaign.observations()
    several: dict[int, list[float]] = {}
    for told in state.told:
        several.setdefault(told.row, []).append(told.value)
    beliefs = search.believe([row]) if state.told or not _is_own(campaign) else None
    others = [other for other in several if other != row]
    near: list[dict[str, Any]] = []
    if others:
        z = search.representations([row, *others])
        distances = np.linalg.norm(z[1:] - z[0], axis=1)
        nearest = np.argsort(distances, kind="stable")[:NEAR].tolist()
        near = [
            {"id": name, "value": float(np.mean(several[others[place]])), "distance": float(distances[place])}
            for name, place in zip(ids_of(campaign, [others[place] for place in nearest]), nearest, strict=True)
        ]
    (columns,) = campaign.columns_of([row])
    return {
        "id": ids_of(campaign, [row])[0],
        "columns": columns,
        "mean": None if beliefs is None else campaign.signed(float(beliefs[0][0])),
        "deviation": None if beliefs is None else float(beliefs[1][0]),
        "near": near,
        "svg": _molecule(campaign, columns),
    }


def plots(campaign: Campaign) -> dict[str, Any]:
    """The numbers behind the plots."""
    shown = picture(campaign)
    mean, deviation = shown.mean, shown.deviation
    if _is_own(campaign) and not shown.measured:  # it was fitted to nothing
        mean = deviation = None
    ranking: list[dict[str, Any]] = []
    if mean is not None and deviation is not None:
        order = np.argsort(mean if campaign.minimise else -mean, kind="stable")[:RANKED].tolist()
        ranking = [
            {"id": name, "mean": float(mean[row]), "deviation": float(deviation[row]), "value": shown.values.get(row)}
            for name, row in zip(ids_of(campaign, order), order, strict=True)
        ]
    rows, pending = shown.mapped[:MAPPED], set(shown.pending)
    return {
        "measured": shown.measured,
        "best": shown.best,
        "ranking": ranking,
        "map": [
            {
                "id": name,
                "x": float(x),
                "y": float(y),
                "mean": None if mean is None else float(mean[row]),
                "state": "measured" if row in shown.values else "pending" if row in pending else "other",
            }
            for name, row, (x, y) in zip(ids_of(campaign, rows), rows, shown.places, strict=False)
        ],
    }


def finite(value: Any) -> Any:
    """The same as strict JSON: a number that is none is null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _is_own(campaign: Campaign) -> bool:
    return bool(campaign.status()["policy"] == GP)


def _molecule(campaign: Campaign, columns: dict[str, str]) -> str | None:
    """The candidate drawn, where a column is a molecule and RDKit is here."""
    words = campaign.columns_in_words()
    named = [name for name in columns if words[name].startswith("molecules") or re.search("smiles", name, re.I)]
    text = columns[named[0]].strip() if named else ""
    if not text or not text.isascii() or len(text) > LONGEST_SMILES:
        return None
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError:
        return None
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(text)
        if molecule is None or molecule.GetNumAtoms() > MOST_ATOMS:
            return None
        drawing = rdMolDraw2D.MolDraw2DSVG(WIDTH, HEIGHT)
        options: Any = drawing.drawOptions()
        options.clearBackground = False
        rdMolDraw2D.PrepareAndDrawMolecule(drawing, molecule)
        drawing.FinishDrawing()
    svg = str(drawing.GetDrawingText())
    svg = svg[svg.index("<svg") :]
    return re.sub(r"style='([^']*)'", lambda match: _attributes(match[1]), svg)


def _attributes(style: str) -> str:
    """Styles as attributes: the page's content policy allows no inline styles."""
    pairs = [part.split(":", 1) for part in style.split(";") if ":" in part]
    return " ".join(f"{name.strip()}='{value.strip()}'" for name, value in pairs)
