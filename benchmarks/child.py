"""One comparison in this process: `python -m benchmarks.child NAME ANSWER [TURNS]` writes what came of it as JSON."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any


def compared(name: str, turns: int | None) -> dict[str, Any]:
    from benchmarks.comparison import DisagreementError, measure
    from benchmarks.registry import COMPARISONS

    comparison = COMPARISONS[name]
    if turns is not None:
        comparison = dataclasses.replace(comparison, turns=turns)
    case = comparison.case()
    try:
        rows = measure(comparison, case)
    except DisagreementError as error:
        return {"size": case.size, "disagreement": str(error)}
    finally:
        case.close()
    return {"size": case.size, "rows": [dataclasses.asdict(row) for row in rows]}


def scaled() -> dict[str, Any]:
    from benchmarks import scaling

    curves = [(axis.across, [dataclasses.asdict(c) for c in scaling.measure(axis)]) for axis in scaling.AXES]
    return {"curves": curves}


def main() -> None:
    name, answer, *turns = sys.argv[1:]
    try:  # imports are inside, since they take seconds in which Ctrl-C may come
        import torch

        torch.set_num_threads(1)
        found = scaled() if name == "scaling" else compared(name, int(turns[0]) if turns else None)
    except KeyboardInterrupt:
        sys.exit(130)
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
