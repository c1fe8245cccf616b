"""`make paper`: every experiment of the paper's section 5, and the page of results.

    python benchmarks/paper [--quick] [--only table1 slices ...] [--data FOLDER] [--work FOLDER] [--out FOLDER]

What is done is kept in the work folder, and not done again; remove it to begin anew. The page, the figures and the
numbers go to docs/results (a quick run: to the work folder).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # FAISS: threads that wait must not keep a core busy

import page
from experiments import EXPERIMENTS
from ledger import Ledger
from protocol import DATA, ROOT, Plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="minutes: some of the sets, two seeds, the same code")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the data sets (default: ../shared/data)")
    parser.add_argument("--work", type=Path, help="what is done so far (default: benchmarks/results/paper[-quick])")
    parser.add_argument(
        "--out", type=Path, help="page, figures and numbers (default: docs/results; quick: the work folder)"
    )
    args = parser.parse_args()
    work = args.work or ROOT / "benchmarks" / "results" / ("paper-quick" if args.quick else "paper")
    out = args.out or (work if args.quick else ROOT / "docs" / "results")
    plan = Plan(args.data, args.quick)
    ledger = Ledger(work / "done.jsonl", str(args.data.resolve()))
    chosen = args.only or list(EXPERIMENTS)
    try:
        ledger.run([unit for name in chosen for unit in EXPERIMENTS[name](plan)])
    except KeyboardInterrupt:
        sys.exit(f"\nStopped. What is done is in {ledger.path}; the same command goes on from there.")
    except FileNotFoundError as error:
        sys.exit(f"\n{error}")
    missing = [u.key for name in EXPERIMENTS for u in EXPERIMENTS[name](plan) if u.key not in ledger.results]
    if missing:
        print(f"{len(missing)} pieces of work are left before the page can be written, {missing[0]} the first")
        return
    page.write(out, ledger, plan)


if __name__ == "__main__":
    main()
