"""The comparisons' figures: curves with a band over seeds, success with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from finished import Done
from measure import HELD_OUT, arms, over
from run import METHODS

COLOURS = ("#2563eb", "#ea580c", "#15803d", "#9333ea", "#0891b2", "#be123c")
LINES = [{"color": colour, "linestyle": style} for style in ("-", "--", ":") for colour in COLOURS]
Curve = Callable[[Done], tuple[list[float], list[float]]]


def figure(panels: int, sharey: bool = False, height: float = 4.2):
    """(figure, its axes): three panels a row, each so many inches high; `sharey` gives all of them one scale."""
    from matplotlib.figure import Figure

    columns, rows = min(panels, 3), -(-panels // 3)
    made = Figure(figsize=(6.2 * columns, height * rows), dpi=110, layout="constrained")
    axes = made.subplots(rows, columns, squeeze=False, sharey=sharey).flatten()
    for spare in axes[panels:]:
        spare.remove()
    for one in axes[:panels]:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
    return made, axes[:panels]


def draw_curves(axes, runs: dict[str, list[Done]], curve: Curve) -> None:
    """Mean over seeds where all of them have values; the band is one standard deviation."""
    import numpy as np

    for line, (method, done) in zip(LINES, runs.items(), strict=False):
        curves = [found for found in map(curve, done) if len(found[0]) > 1]
        if not curves:
            continue
        start, end = max(found[0][0] for found in curves), min(found[0][-1] for found in curves)
        grid = np.linspace(start, end, 200)
        values = np.array([np.interp(grid, *found) for found in curves])
        mean, deviation = values.mean(0), values.std(0, ddof=1) if len(values) > 1 else 0 * grid
        axes.plot(grid, mean, **line, label=f"{METHODS[method][0]} (n {len(curves)})")
        axes.fill_between(grid, mean - deviation, mean + deviation, color=line["color"], alpha=0.15, linewidth=0)
    axes.set_xlim(left=0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False)


def draw_rates(axes, labels: Sequence[str], groups: Sequence[Sequence[Done]], *path: str) -> None:
    """Success of each group, on all held-out tasks or at another place of results.json: its mean with the 95 % interval
    of `rate`, and every run as a dot. A group of fewer seeds than the others says how many."""
    path = path or HELD_OUT
    found = [over(runs, *path) for runs in groups]
    most = max(one.n for one in found)
    labels = [f"{label}, n {one.n}" if 0 < one.n < most else label for label, one in zip(labels, found, strict=True)]
    axes.set_xlim(-0.5, len(groups) - 0.5)
    for place, (runs, one) in enumerate(zip(groups, found, strict=True)):
        if one.n:
            reach = [[arm] for arm in arms(runs, *path)]
            axes.errorbar(place, one.mean, yerr=reach, fmt="o", capsize=4, color=COLOURS[0])
            values = [run.percent(*path) for run in runs]
            axes.plot([place] * len(values), values, ".", color=COLOURS[1], markersize=4, zorder=3)
    turned = {"rotation": 20 if len(labels) < 7 else 40, "ha": "right", "rotation_mode": "anchor"}
    turned = turned if max(map(len, labels)) > 8 else {}
    axes.set_xticks(range(len(labels)), labels, fontsize=8, **turned)
    axes.set_ylabel("held-out success, %")
