"""Finding potent molecules with what earlier assays taught: from CSV files to the best molecule of a new library.

    python examples/molecules.py --data moleculeace --out runs/molecules

`--data` is a folder of MoleculeACE's assays (a CSV file each, columns smiles and y [pEC50/pKi]; the PyPI package
MoleculeACE carries them), or an archive of it. Some assays are past campaigns, the others are searched as if they had
not been measured: each answer comes from its file. `--small` does the same with few molecules and little training.
"""

import argparse
import csv
import random
import statistics
import tarfile
from pathlib import Path

import torch

import dkaf
from dkaf.campaign.plots import write_plot

SMILES, POTENCY = "smiles", "y [pEC50/pKi]"
SEARCHED = ("CHEMBL244_Ki", "CHEMBL204_Ki", "CHEMBL4005_Ki", "CHEMBL237_Ki", "CHEMBL287_Ki")
BUDGET = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/molecules"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    assays = write_tables(options)

    past = [file for name, file in assays.items() if name not in SEARCHED]
    tasks = dkaf.read_tasks(past, response="potency", id="smiles")
    print(f"learning from {tasks!r}")
    held_out = len(tasks) // 6
    train, validation = tasks.split(len(tasks) - held_out, held_out)
    little = {"pretrain_updates": 60, "updates": 5, "scale_updates": 5} if options.small else {}
    policy = dkaf.fit(train, validation, seed=options.seed, **little)
    policy.save(options.out / "assays.safetensors")
    print(policy.training_log.in_words())

    found: dict[str, list[float]] = {"past assays": [], "gp, no past": [], "chance": []}
    for name in [name for name in SEARCHED if name in assays][: 1 if options.small else None]:
        truth = read(assays[name])
        for what, chooser in (("past assays", policy), ("gp, no past", "gp")):
            best = search(options.out / f"{name}-{what.split()[0]}.db", truth, chooser, options.seed)
            found[what].append(rank(best, truth))
        draw = random.Random(options.seed)
        chance = [max(draw.sample(list(truth.values()), BUDGET)) for _ in range(1000)]
        found["chance"].append(statistics.mean(rank(best, truth) for best in chance))
        print(name, f"{len(truth)} molecules:", {what: f"top {100 * ranks[-1]:.2f}%" for what, ranks in found.items()})
    for what, ranks in found.items():
        share = 100 * statistics.mean(ranks)
        print(f"{what:<12} the best of {BUDGET} molecules is in the top {share:.2f}% (mean of {len(ranks)} assays)")


def write_tables(options: argparse.Namespace) -> dict[str, Path]:
    """A table an assay, as a laboratory would have it: the molecule and its potency."""
    data = options.data
    if data.is_file():
        with tarfile.open(data) as archive:
            archive.extractall(options.out / "data", filter="data")
        data = options.out / "data"
    files = sorted(data.rglob("CHEMBL*.csv"))
    if not files:
        raise SystemExit(f"--data has files CHEMBL*.csv, {data} has none; name the folder that does")
    if options.small:
        files = [file for file in files if file.stem in SEARCHED[:1]] + [f for f in files if f.stem not in SEARCHED][:7]
    (options.out / "assays").mkdir(exist_ok=True)
    tables = {}
    for file in files:
        with open(file, newline="") as source:
            rows = [(row[SMILES], row[POTENCY]) for row in csv.DictReader(source)]
        tables[file.stem] = options.out / "assays" / file.name
        with open(tables[file.stem], "w", newline="") as target:
            csv.writer(target).writerows([("smiles", "potency"), *(rows[:120] if options.small else rows)])
    return tables


def read(file: Path) -> dict[str, float]:
    with open(file, newline="") as source:
        return {row["smiles"]: float(row["potency"]) for row in csv.DictReader(source)}


def search(path: Path, truth: dict[str, float], policy: "dkaf.Policy | str", seed: int) -> float:
    """A campaign on the assay's molecules, four at a time; the potency of the best that it found."""
    library = path.with_suffix(".csv")
    with open(library, "w", newline="") as file:
        csv.writer(file).writerows([["smiles"], *([smiles] for smiles in truth)])
    path.unlink(missing_ok=True)
    campaign = dkaf.Campaign.create(path, library, policy, id="smiles", budget=BUDGET, seed=seed)
    while campaign.left:
        for candidate in campaign.ask(4):
            campaign.tell(candidate.id, truth[candidate.id])
    write_plot(campaign, path.with_suffix(".png"))
    assert campaign.best is not None
    return campaign.best.value


def rank(best: float, truth: dict[str, float]) -> float:
    """The share of molecules that are at least as good."""
    return sum(value >= best for value in truth.values()) / len(truth)


if __name__ == "__main__":
    main()
