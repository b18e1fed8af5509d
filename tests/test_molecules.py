"""Fingerprints of molecules."""

import builtins

import numpy as np
import pytest

import dkaf

chem = pytest.importorskip("rdkit.Chem", reason="needs the extra dkaf[chem]")

ETHANOL, BENZENE = "CCO", "c1ccccc1"


def test_counts_are_rdkits_own() -> None:
    from rdkit.Chem import rdFingerprintGenerator

    generator = rdFingerprintGenerator.GetMorganGenerator(radius=1, fpSize=64)
    expected = [generator.GetCountFingerprintAsNumPy(chem.MolFromSmiles(text)) for text in (ETHANOL, BENZENE)]
    np.testing.assert_array_equal(
        dkaf.morgan_fingerprints([ETHANOL, BENZENE], radius=1, bits=64).toarray(), np.array(expected)
    )


def test_one_molecule_written_in_two_ways_is_one_row() -> None:
    rows = dkaf.morgan_fingerprints(["CCO", "OCC"]).toarray()
    np.testing.assert_array_equal(rows[0], rows[1])
    assert rows.sum() > 0


@pytest.mark.parametrize("bad", ["not a molecule", "", "   ", "C1CC", "C\ud800"])
def test_what_is_no_molecule_is_refused_with_its_row(bad: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(dkaf.InputError, match="row 1 is"):
        dkaf.morgan_fingerprints([ETHANOL, bad])
    assert capfd.readouterr().err == ""


def test_one_text_and_odd_sizes_are_refused() -> None:
    with pytest.raises(dkaf.InputError, match="a list"):
        dkaf.morgan_fingerprints(ETHANOL)
    for odd in ({"bits": 0}, {"bits": 2**32}, {"radius": -1}, {"radius": 2**40}):
        with pytest.raises(dkaf.InputError, match="1 to 16777216 bits"):
            dkaf.morgan_fingerprints([ETHANOL], **odd)


def test_no_molecules_are_no_rows() -> None:
    assert dkaf.morgan_fingerprints([]).shape == (0, 2048)


def test_without_rdkit_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.startswith("rdkit"):
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(dkaf.InputError, match=r"dkaf\[chem\]"):
        dkaf.morgan_fingerprints([ETHANOL])
