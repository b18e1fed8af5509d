"""The candidates of a campaign as they came: what each is called, and its columns; those looked at last are kept."""

import sqlite3
import threading
import zlib
from collections.abc import Sequence

from dkaf.campaign.packing import unpacked_columns
from dkaf.campaign.store import Block, Store

MOST_BLOCKS = 4  # of the pool's columns in memory


class Rows:
    """They never change, so what was read once holds."""

    def __init__(self, store: Store) -> None:
        self._store, self._lock = store, threading.Lock()
        self._ids: dict[int, str] = {}
        self._blocks: dict[int, dict[str, list[str]]] = {}

    def id_of(self, db: sqlite3.Connection, row: int) -> str:
        """What a candidate is called."""
        if row not in self._ids:
            self._ids[row] = self._store.id_of(db, row)
        return self._ids[row]

    def columns(self, db: sqlite3.Connection, rows: Sequence[int]) -> list[dict[str, str]]:
        """Rows of the pool; each block of it is unpacked once."""
        found: dict[int, dict[str, str]] = {}
        for row in sorted(rows):
            if row in found:
                continue
            first, columns = self._block_of(db, row)
            size = len(next(iter(columns.values()), []))
            for other in rows:
                if first <= other < first + size:
                    found[other] = {name: str(values[other - first]) for name, values in columns.items()}
            if row not in found:
                raise self._store.damaged(f"candidate {row} is missing")
        return [found[row] for row in rows]

    def _block_of(self, db: sqlite3.Connection, row: int) -> tuple[int, dict[str, list[str]]]:
        """The columns of the rows around a row, from the first of them on."""
        first = self._store.first_of(db, row)
        with self._lock:
            if first not in self._blocks:
                (block,) = self._store.blocks(db, row)
                while len(self._blocks) >= MOST_BLOCKS:
                    self._blocks.pop(next(iter(self._blocks)))
                self._blocks[first] = self._unpacked(block, row)
            return first, self._blocks[first]

    def _unpacked(self, block: Block, row: int) -> dict[str, list[str]]:
        try:
            columns = unpacked_columns(block.columns)
            if any(len(column) != len(next(iter(columns.values()))) for column in columns.values()):
                raise ValueError("columns of different lengths")
        except (zlib.error, ValueError) as error:
            raise self._store.damaged(f"candidate {row} cannot be read") from error
        return columns
