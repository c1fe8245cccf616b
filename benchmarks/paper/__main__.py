"""`make paper`: run every experiment of the paper's section 5 and write the page of results.

    python benchmarks/paper [--quick] [--only table1 slices ...] [--data FOLDER] [--work FOLDER] [--out FOLDER]

Finished work is kept in the work folder and not repeated; delete the folder to start over. The page, the figures and
the numbers go to docs/results, those of a quick run to the work folder.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # FAISS: waiting threads must not keep a core busy

import page
from experiments import EXPERIMENTS
from ledger import Ledger
from protocol import DATA, ROOT, Plan


def main() -> None:
    """Run the chosen experiments, and write the page once all of them are complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a subset of the sets and two seeds: minutes")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the data sets (default: ../shared/data)")
    parser.add_argument("--work", type=Path, help="finished work (default: benchmarks/results/paper[-quick])")
    parser.add_argument(
        "--out", type=Path, help="page, figures and numbers (default: docs/results; quick: the work folder)"
    )
    args = parser.parse_args()
    work = args.work or ROOT / "benchmarks" / "results" / ("paper-quick" if args.quick else "paper")
    out = args.out or (work if args.quick else ROOT / "docs" / "results")
    plan = Plan(args.data, args.quick)
    ledger = Ledger(work / "done.jsonl", str(args.data.resolve()))
    try:
        ledger.run([unit for name in args.only or EXPERIMENTS for unit in EXPERIMENTS[name](plan)])
    except KeyboardInterrupt:
        sys.exit(f"\nStopped. Finished work is in {ledger.path}; run the same command to continue.")
    except FileNotFoundError as error:
        sys.exit(f"\n{error}")
    missing = [unit.key for units in EXPERIMENTS.values() for unit in units(plan) if unit.key not in ledger.results]
    if missing:
        print(f"{len(missing)} units of work remain before the page can be written, starting with {missing[0]}")
        return
    page.write(out, ledger, plan)


if __name__ == "__main__":
    main()
