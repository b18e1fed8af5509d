"""Molecules as features: Morgan fingerprints by RDKit, the extra `dkaf[chem]`."""

from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp

from dkaf.errors import InputError, whole_number

MOST_RADIUS, MOST_BITS = 16, 2**24


def morgan_fingerprints(smiles: Iterable[str], *, radius: int = 2, bits: int = 2048) -> sp.csr_array:
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
    try:
        from rdkit import Chem, rdBase
        from rdkit.Chem import rdFingerprintGenerator
    except ImportError:
        raise InputError("molecules need RDKit, which is not here; pip install dkaf[chem]") from None
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=radius, fpSize=bits)
    columns: list[int] = []
    counts: list[int] = []
    ends = [0]
    with rdBase.BlockLogs():  # what RDKit prints of a bad one is said below
        for number, text in enumerate(smiles):
            readable = isinstance(text, str) and text.strip() and text.isascii()
            molecule = Chem.MolFromSmiles(text) if readable else None
            if molecule is None:
                raise InputError(f"every molecule is a SMILES string, row {number} is {text!r}; mend or drop it")
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
