"""Pieces of a pool as bytes in which nothing can run."""

import io
import json
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dkaf.tasks import FeatureMatrix


def packed_columns(columns: dict[str, list[str]]) -> bytes:
    """Columns of texts."""
    return zlib.compress(json.dumps(columns).encode(), 3)


def unpacked_columns(data: bytes) -> dict[str, list[str]]:
    """What `packed_columns` packed."""
    columns = json.loads(zlib.decompress(data))
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        raise ValueError("not columns")
    return columns


def packed_features(features: Any) -> bytes:
    """A matrix in single precision, as bytes without code."""
    import numpy as np
    import scipy.sparse as sp

    file = io.BytesIO()
    if sp.issparse(features):
        matrix = sp.csr_array(features)
        np.savez(
            file, data=matrix.data.astype(np.float32), indices=matrix.indices, indptr=matrix.indptr, shape=matrix.shape
        )
    else:
        np.savez(file, dense=np.asarray(features, dtype=np.float32))
    return zlib.compress(file.getvalue(), 3)


def unpacked_features(data: bytes) -> "FeatureMatrix":
    """What `packed_features` packed."""
    import numpy as np
    import scipy.sparse as sp

    with np.load(io.BytesIO(zlib.decompress(data)), allow_pickle=False) as arrays:
        if "dense" in arrays.files:
            dense: FeatureMatrix = arrays["dense"]
            if dense.ndim != 2 or dense.dtype != np.float32:
                raise ValueError("not a matrix")
            return dense
        parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
        matrix = sp.csr_array(parts, shape=tuple(arrays["shape"].tolist()))
        matrix.check_format(full_check=True)
        return matrix
