"""Compare the rankings of methods by `vitviz arena` for several seeds: do they agree, and does the arena say where not?

    for seed in 0 1 2 3 4; do vitviz arena --data photos --seed $seed -o ranking/$seed; done
    python benchmarks/ranking.py ranking/*/arena.json

Prints the mean and minimum of Kendall's tau over all pairs of seeds, and the pairs of methods whose order is not the
same for all seeds, with the number of seeds for which the confidence intervals of their scores overlap.
"""

import argparse
import sys
from itertools import combinations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs from a checkout that is not installed

from vitviz.evaluation.standings import Standings, kendall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="two or more files arena.json")
    found = [Standings.load(path) for path in parser.parse_args().files]
    rows = [{row.method: row for row in each.rows} for each in found]
    methods = [row.method for row in found[0].rows if all(row.method in each for each in rows)]
    scores = np.array([[each[method].numbers["score"] for method in methods] for each in rows])  # (seeds, M)
    taus = [kendall(*pair) for pair in combinations(scores, 2)]
    for each in found:
        print(f"seed {each.settings['seed']}: {each.describe()} Tau to bootstrap samples: {each.agreement:.2f}.")
    print(f"Kendall's tau of {len(taus)} pairs of seeds: mean {np.mean(taus):.2f}, minimum {np.min(taus):.2f}")
    for first, second in combinations(range(len(methods)), 2):
        above = int((scores[:, first] > scores[:, second]).sum())
        if 0 < above < len(found):
            pairs = [(each[methods[first]], each[methods[second]]) for each in rows]
            overlapping = sum(one.low <= other.high and other.low <= one.high for one, other in pairs)
            print(
                f"{methods[first]} above {methods[second]} for {above} of {len(found)} seeds, "
                f"intervals overlap for {overlapping}"
            )


if __name__ == "__main__":
    main()
