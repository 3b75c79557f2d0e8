"""Success over runs: mean, deviation, interval; differences seed by seed; what of them is noise.

An interval is Student's over seeds, all on one list of tasks, and never narrower than what flipping verdicts do:

    1.96 sqrt(f / verdicts),    f: the share of verdicts that differ between two plays of a task (card.flips)

which is the 95 % reach of a difference of two methods by chance alone: a verdict's variance is f / 2, and each has so
many. Of one seed it is Wilson's over its tasks. Runs of one seed count as one. Fewer than three seeds are no ground for
a claim.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from finished import Done, at

HELD_OUT = ("greedy", "final")  # where results.json has success on all held-out tasks after training
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)  # Student's, 1 to 10 degrees of freedom


@dataclass
class Number:
    """Mean, standard deviation and 95 % interval of one value a run; half: half the interval, None for one run."""

    mean: float
    deviation: float
    half: float | None
    n: int
    most: float = math.inf  # what the value can be: 100 %, as it can be 0 at least

    @property
    def interval(self) -> tuple[float, float]:
        half = self.half or 0.0
        return max(0.0, self.mean - half), min(self.most, self.mean + half)

    @property
    def reach(self) -> tuple[float, float]:
        """Of the interval, below and above the mean: an error bar. NaN, no bar, for one run."""
        low, high = self.interval if self.half is not None else (math.nan, math.nan)
        return self.mean - low, high - self.mean

    def __str__(self) -> str:
        if self.n == 0:
            return "-"
        if self.half is None:
            return f"{self.mean:.1f}"
        return "{:.1f} ± {:.1f} [{:.1f}, {:.1f}]".format(self.mean, self.deviation, *self.interval)


def number(values: Sequence[float], least: float = 0.0, most: float = math.inf) -> Number:
    """Over runs; NaN ones are left out. The interval is Student's, beyond 11 runs a little too wide; half of it is not
    less than `least`."""
    known = [value for value in values if math.isfinite(value)]
    n = len(known)
    if not n:
        return Number(math.nan, math.nan, None, 0)
    if n == 1:
        return Number(known[0], math.nan, None, 1, most)
    deviation = statistics.stdev(known)
    half = T95[min(n - 1, len(T95)) - 1] * deviation / math.sqrt(n)
    return Number(statistics.mean(known), deviation, max(half, least), n, most)


def chance(runs: Sequence[Done], *path: str) -> float:
    """Points that flipping verdicts reach at this place of these runs' results; 0 where nothing was repeated."""
    shares = [share for run in runs if (share := at(run.results, ["card", "flips"]).get("share")) is not None]
    counts = [at(run.results, path).get("n") or 0 for run in runs]
    if not shares or not sum(counts):
        return 0.0
    return 196 * math.sqrt(statistics.mean(shares) / sum(counts))


def by_seed(runs: Sequence[Done], *path: str) -> dict[int, float]:
    """{seed: the success rate at this place of the results, in %}: the mean of the seed's runs."""
    seeds = dict.fromkeys(run.seed for run in runs)
    return {seed: statistics.mean(run.percent(*path) for run in runs if run.seed == seed) for seed in seeds}


def over(runs: Sequence[Done], *path: str) -> Number:
    """The success rate at this place of the results, over seeds, in %."""
    return number(list(by_seed(runs, *path).values()), chance(runs, *path), most=100.0)


def rate(runs: Sequence[Done], *path: str) -> str:
    """The same as text; for one seed with Wilson's interval over a run's episodes."""
    found = over(runs, *path)
    return "{:.1f} [{:.1f}, {:.1f}]".format(found.mean, *wilson(runs, *path)) if found.n == 1 else str(found)


def arms(runs: Sequence[Done], *path: str) -> tuple[float, float]:
    """How far the interval of `rate` goes below and above the mean, for an error bar. NaN, no bar, for two seeds:
    theirs goes nearly everywhere."""
    found = over(runs, *path)
    if found.n == 2:
        return math.nan, math.nan
    low, high = wilson(runs, *path) if found.n == 1 else found.interval
    return max(0.0, found.mean - low), max(0.0, high - found.mean)  # rounding makes -1e-14 at 100 %


def wilson(runs: Sequence[Done], *path: str) -> tuple[float, float]:
    """The interval, in %, of one seed's runs: the mean of theirs, as they play the same tasks."""
    ends = [at(run.results, path)["ci95"] for run in runs if math.isfinite(run.percent(*path))]
    low, high = map(statistics.mean, zip(*ends, strict=True))
    return 100 * low, 100 * high


def difference(runs: Sequence[Done], others: Sequence[Done], *path: str) -> str:
    """Greedy success on all held-out tasks, or at another place of the results, in points, of `runs` minus that of
    `others`, seed by seed, with its interval; "within noise" where that holds 0; n where one of them has more seeds."""
    path = path or HELD_OUT
    ours, theirs = by_seed(runs, *path), by_seed(others, *path)
    both = [run for run in (*runs, *others) if run.seed in ours and run.seed in theirs]
    least = chance(both, *path) * math.sqrt(2)  # each has half of the verdicts
    found = number([ours[seed] - theirs[seed] for seed in ours if seed in theirs], least)
    if not found.n:
        return "-"
    if found.n < 3:
        return f"{found.mean:+.1f}, {'2 seeds' if found.n == 2 else 'one seed'}: no claim"
    low, high = found.mean - found.half, found.mean + found.half
    fewer = f", n {found.n}" if found.n < max(len(ours), len(theirs)) else ""
    return f"{found.mean:+.1f} [{low:+.1f}, {high:+.1f}]{', within noise' if low <= 0 <= high else ''}{fewer}"


def table(head: Sequence[str], rows: Sequence[Sequence]) -> str:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"
