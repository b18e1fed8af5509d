"""Molecules as features: Morgan fingerprints by RDKit, the extra `dkaf[chem]`."""

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp

from dkaf.errors import InputError, whole_number

RADIUS, BITS = 2, 2048
MOST_RADIUS, MOST_BITS = 16, 2**24


class MoleculeError(InputError):
    """A text that is no molecule; `row` is where it stands, from 0."""

    def __init__(self, row: int, text: object) -> None:
        super().__init__(f"every molecule is a SMILES string, row {row} is {text!r}; mend or drop it")
        self.row = row


def morgan_fingerprints(smiles: Iterable[str], *, radius: int = RADIUS, bits: int = BITS) -> sp.csr_array:
    """Of each molecule how often every circular neighbourhood of its atoms occurs, hashed to `bits` columns.

    Sparse counts, one row a molecule, ready for `TaskSet.from_arrays`. Needs `pip install dkaf[chem]`.

    >>> import dkaf
    >>> dkaf.morgan_fingerprints(["CCO", "c1ccccc1"], bits=1024).shape
    (2, 1024)
    """
    radius, bits = whole_number("radius", radius), whole_number("bits", bits)
    if not 0 <= radius <= MOST_RADIUS or not 1 <= bits <= MOST_BITS:
        raise InputError(
            f"a fingerprint has a radius of 0 to {MOST_RADIUS} and 1 to {MOST_BITS} bits, {radius} and {bits} came"
        )
    if isinstance(smiles, str) or not isinstance(smiles, Iterable):
        raise InputError(f"smiles are many texts, {smiles!r} came; pass a list of them")
    need_rdkit()
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=bits)
    columns: list[int] = []
    counts: list[int] = []
    ends = [0]
    with rdBase.BlockLogs():  # what RDKit prints of a bad one is said below
        for number, text in enumerate(smiles):
            readable = isinstance(text, str) and text.strip() and text.isascii()
            molecule = Chem.MolFromSmiles(text) if readable else None
            if molecule is None:
                raise MoleculeError(number, text)
            found = generator.GetCountFingerprint(molecule).GetNonzeroElements()
            columns += found.keys()
            counts += found.values()
            ends.append(len(columns))
    matrix = sp.csr_array(
        (np.array(counts, dtype=np.float64), np.array(columns, dtype=np.int64), np.array(ends)),
        shape=(len(ends) - 1, bits),
    )
    matrix.sort_indices()
    return matrix


def need_rdkit() -> None:
    """Refuse where RDKit is not installed."""
    try:
        import rdkit  # noqa: F401
    except ImportError:
        raise InputError("molecules need RDKit, which is not here; pip install dkaf[chem]") from None


def are_molecules(texts: Iterable[str]) -> bool:
    """Whether each text can be read as a molecule; false where RDKit is not installed."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        return False
    with rdBase.BlockLogs():
        return all(text.isascii() and Chem.MolFromSmiles(text) is not None for text in texts)
