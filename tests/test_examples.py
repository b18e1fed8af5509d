"""The worked examples of the docs, run in small on the real data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_molecules_are_searched_from_csv_to_the_best(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="needs the extra dkaf[chem]")
    data = Path(os.environ.get("DKAF_DATA", "nowhere")) / "moleculeace.tar.xz"
    if not data.is_file():
        pytest.skip("DKAF_DATA names no folder with moleculeace.tar.xz")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "molecules.py", "--data", data, "--out", tmp_path, "--small"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    shares = dict(re.findall(r"^(past assays|gp, no past|chance).* top ([\d.]+)%", done.stdout, re.MULTILINE))
    assert shares.keys() == {"past assays", "gp, no past", "chance"}
    assert (tmp_path / "CHEMBL244_Ki-past.png").read_bytes().startswith(b"\x89PNG")
