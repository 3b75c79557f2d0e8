"""Curves of runs as PNG pictures: success over time and over experience, losses, lag, speed. matplotlib, Pillow.

    png, panels = draw_curves(run)     # all of one run in one picture: curves.png; the same, [(title, png)], one by one
    draw_comparison(runs, names)       # success of several runs

`run` is what `run_data.read_run` gives.
"""

import io
from collections.abc import Callable

from PIL import Image

from run_data import Run, evaluations, headline, minutes_of, moving_success

BLUE, ORANGE = "#2563eb", "#ea580c"
COLOURS = (BLUE, ORANGE, "#15803d", "#9333ea", "#b91c1c", "#0891b2", "#a16207", "#4b5563")  # of runs, then again
PANELS = (  # title, ((column, label), ...): drawn when at least one of the columns was measured
    ("trajectories / min", (("charts/trajectories_per_minute", ""),)),
    ("mean episode length (steps)", (("charts/episodic_length", ""),)),
    ("policy lag (versions)", (("stats/policy_lag_mean", "mean"), ("stats/policy_lag_max", "max"))),
    ("importance ratio: clipped, effective", (("stats/rho_clipfrac", "clipped"), ("stats/ess", "effective size"))),
    ("policy loss", (("losses/policy_loss", ""),)),
    ("critic losses", (("losses/value_loss", "V_step"), ("losses/trajectory_value_loss", "V_traj"))),
    ("entropy (nats a token)", (("losses/entropy", ""),)),
    ("gradient norm", (("losses/grad_norm", ""),)),
    ("invalid-action penalty", (("losses/invalid_penalty", ""),)),
    ("waiting (share of time)", (("stats/phone_idle", "phones"), ("stats/learner_idle", "learner"))),
)
SIDES = ("minutes of training", "training trajectories")


class _Success:
    """A run's success, to be drawn over one of `SIDES`."""

    def __init__(self, run: Run):
        entries = run.training()
        self.minutes, self.points = minutes_of(run, entries), evaluations(run)
        self.window = max(40, min(200, len(entries) // 10))
        self.curve = moving_success(entries, self.window)

    def draw(self, axes, side: int) -> None:
        """Training and evaluations of the one run, explained."""
        self.line(axes, side, BLUE, f"training (sampled actions), mean of the last {self.window}")
        label = "held-out tasks, 95 % interval"
        for *at, rate, low, high, text in self.points:
            axes.errorbar(at[side], rate, yerr=[[max(0, rate - low)], [max(0, high - rate)]], fmt="o", capsize=4,
                          color=ORANGE, markersize=9 if text else 5, zorder=5, label=label, clip_on=False)
            label = None
            if text:
                above = low < 0.1  # below, where the training curve is not
                axes.annotate(f"{text} {rate:.1%}", (at[side], high if above else low), textcoords="offset points",
                              xytext=(0, 7 if above else -7), ha="right" if text == "after" else "left", zorder=6,
                              va="bottom" if above else "top", color=ORANGE, fontsize=12, fontweight="bold",
                              bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5})
        _frame(axes, side)
        if self.curve or self.points:
            axes.legend(loc="lower right", frameon=False, fontsize=9)

    def line(self, axes, side: int, colour: str, label: str) -> None:
        """The training curve with its interval."""
        if self.curve:
            where = [self.minutes[i] if side == 0 else i + 1 for i, *_ in self.curve]
            _, rates, lows, highs = zip(*self.curve, strict=True)
            axes.fill_between(where, lows, highs, color=colour, alpha=0.12, linewidth=0)
            axes.plot(where, rates, color=colour, linewidth=1.8, label=label)


def _frame(axes, side: int) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set(xlabel=SIDES[side], ylim=(0, 1), ylabel="episodes judged a success",
             title=f"Success over {('time', 'experience')[side]}")
    axes.yaxis.set_major_formatter(PercentFormatter(1))


def _panels(run: Run) -> list[tuple[str, list]]:
    """(title, [((x, y), label), ...]) of those that were measured."""
    panels = [(title, [(run.series(column), label) for column, label in columns if run.series(column)[1]])
              for title, columns in PANELS]
    return [(title, lines) for title, lines in panels if lines]


def _panel(axes, title: str, lines: list) -> None:
    for ((x, y), text), colour in zip(lines, (BLUE, ORANGE), strict=False):
        axes.plot(x, y, color=colour, linewidth=1.2, label=text or None, marker="." if len(x) == 1 else "")
    axes.set_title(title, fontsize=10)
    if title.startswith(("trajectories", "policy lag", "mean episode", "waiting")):
        axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    if len(lines) > 1:
        axes.legend(fontsize=8, frameon=False)


def _png(figure) -> bytes:
    for axes in figure.axes:
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _figure(draw: Callable, width: float, height: float) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    draw(figure.add_subplot())
    return _png(figure)


def draw_curves(run: Run) -> tuple[bytes, list[tuple[str, bytes]]]:
    """All curves of a run in one picture, and cut out of it each by itself, with its title: PNG bytes."""
    from matplotlib.figure import Figure

    panels, success = _panels(run), _Success(run)
    rows = -(-len(panels) // 4)
    figure = Figure(figsize=(13, 5.2 + 2.1 * rows), dpi=120, layout="constrained")
    grid = figure.add_gridspec(1 + rows, 4, height_ratios=[2.1] + [1] * rows)
    figure.get_layout_engine().set(h_pad=0.08, hspace=0.04)
    figure.suptitle(headline(run), fontsize=15, fontweight="bold")
    titles = [f"success over {side}" for side in SIDES] + [title for title, _ in panels]
    for side in range(2):
        success.draw(figure.add_subplot(grid[0, 2 * side: 2 * side + 2]), side)
    for k, (title, lines) in enumerate(panels):
        axes = figure.add_subplot(grid[1 + k // 4, k % 4])
        _panel(axes, title, lines)
        axes.set_xlabel("training trajectories", fontsize=8)
    png = _png(figure)
    whole, cut = Image.open(io.BytesIO(png)), []
    for title, axes in zip(titles, figure.axes, strict=True):
        box, file = axes.get_tightbbox().padded(6), io.BytesIO()  # y from below
        whole.crop((int(box.x0), int(whole.height - box.y1), int(box.x1), int(whole.height - box.y0))).save(file, "PNG")
        cut.append((title, file.getvalue()))
    return png, cut


def draw_comparison(runs: list[Run], names: list[str]) -> list[tuple[str, bytes]]:
    """Success of several runs over time and over experience; (title, PNG bytes) each."""
    drawn = [_Success(run) for run in runs]
    names = ["\u200b" * name.startswith("_") + name.replace("$", r"\$") for name in names]  # else no label, or formulas

    def draw(axes, side: int) -> None:
        for number, (success, name) in enumerate(zip(drawn, names, strict=True)):
            colour = COLOURS[number % len(COLOURS)]
            success.line(axes, side, colour, name)
            for *at, rate, low, high, _ in success.points:
                axes.errorbar(at[side], rate, yerr=[[max(0, rate - low)], [max(0, high - rate)]], fmt="o", capsize=3,
                              color=colour, markersize=6, zorder=5, clip_on=False,
                              label=None if success.curve else name)
                name = None if not success.curve else name
        _frame(axes, side)
        axes.set_xlim(left=0)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="lower right", frameon=False, fontsize=8)

    return [(f"success over {SIDES[side]}", _figure(lambda axes, side=side: draw(axes, side), 6.4, 4.2))
            for side in range(2)]
