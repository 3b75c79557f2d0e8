"""Several runs in one page: their curves, their results with intervals, what was set otherwise.

    python report.py --compare runs/A runs/B ...        # compare.html beside the first run's folder; --out elsewhere

The difference p2 - p1 of two success rates carries Newcombe's 95 % interval, from Wilson's (l, u) of each rate:

    p2 - p1 - sqrt((p2 - l2)^2 + (u1 - p1)^2)   to   p2 - p1 + sqrt((u2 - p2)^2 + (p1 - l1)^2)

It knows nothing of how much runs of different seeds differ: for claims about methods, `reproduce/` runs several seeds.
"""

import html
import math
from pathlib import Path

from report_curves import draw_comparison
from report_page import assemble, cell, flatten, images, table
from run_data import Run, evaluations, phase_of, read_run, wilson_interval, write_whole

Rate = tuple[float, float, float]  # rate, low, high


def difference(one: Rate, two: Rate) -> Rate:
    """`two` less `one`, each (rate, low, high), with Newcombe's interval."""
    (p1, l1, u1), (p2, l2, u2) = one, two
    return p2 - p1, p2 - p1 - math.hypot(p2 - l2, u1 - p1), p2 - p1 + math.hypot(u2 - p2, p1 - l1)


def write_comparison(folders: list[Path], out: Path | None = None) -> Path:
    """Writes the page; returns its path. Raises FileNotFoundError: one of the folders is no run's."""
    runs = [read_run(folder) for folder in folders]
    out = out or folders[0].resolve().parent / "compare.html"
    write_whole(out, comparison(runs).encode("utf-8", "replace"))
    return out


def names_of(runs: list[Run]) -> list[str]:
    """The folders' names, with as much of the path before them as tells them apart."""
    paths = [run.folder.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            break
    return names


def comparison(runs: list[Run]) -> str:
    """The page."""
    names = names_of(runs)
    notes = [f"{name}: {note}" for run, name in zip(runs, names, strict=True) for note in run.notes]
    notes += unlike(runs, names)
    top = "".join(f'<p class="note">{html.escape(note)}</p>' for note in notes)
    sections = [
        ("Results", result_table(runs, names)),
        ("Curves", images(draw_comparison(runs, names), 2)),
        ("Success by task family", family_table(runs, names)),
        ("What was set otherwise", settings(runs, names)),
    ]
    return assemble("comparison", f"{len(runs)} runs compared", [pair for pair in sections if pair[1]], top=top)


def rate_of(run: Run, mode: str) -> Rate | None:
    """(rate, low, high) of the run's final evaluation; greedy: of its last one, when there is no final one."""
    found = phase_of(run.results, mode, "final")
    if found.get("success_rate") is not None:
        p, n = found["success_rate"], found.get("n") or 0
        return (p, *(found.get("ci95") or wilson_interval(p * n, n)))
    points = [point for point in evaluations(run) if point[5] != "before"] if mode == "greedy" else []
    return points[-1][2:5] if points else None


def result_table(runs: list[Run], names: list[str]) -> str:
    """A line a run."""
    rows, base = [], {mode: rate_of(runs[0], mode) for mode in ("greedy", "sampled")}
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        line = [cell(name, "text"), cell((run.config.get("algorithm") or {}).get("algo", "")),
                cell(_percent(run.results.get("warmup_success_rate")), "number")]  # fmt: skip
        for mode in ("greedy", "sampled"):
            rate = rate_of(run, mode)
            line.append(cell(f"{rate[0]:.1%} ({rate[1]:.0%} to {rate[2]:.0%})" if rate else "", "number"))
            if not number or not rate or not base[mode]:
                line.append(cell("" if number else "–", "quiet"))
                continue
            by, low, high = (100 * value for value in difference(base[mode], rate))
            line.append(cell(f"{by:+.1f} ({low:+.0f} to {high:+.0f})", "number"))
        clock = max((row.get("wall_seconds", 0) for row in run.metrics), default=0)
        seed = run.results.get("seed", (run.config.get("run") or {}).get("seed", ""))
        minutes = f"{(run.results.get('train_seconds') or clock) / 60:.1f}"
        line += [cell(value, "number") for value in (run.results.get("n", ""), len(run.training()), minutes, seed)]
        rows.append(line)
    head = ["run", "method", "before", "after, greedy (95 %)", "points", "after, sampled (95 %)", "points", "n",
            "trajectories", "minutes", "seed"]  # fmt: skip
    note = ("Points: the difference from the first run, with its 95 % interval; one that holds 0 shows nothing. "
            "Minutes: of training.")
    return f"<p>{note}</p>{table(head, rows)}"


def family_table(runs: list[Run], names: list[str]) -> str:
    """Success after training, a column a run."""
    families = sorted({family for run in runs for family in run.results.get("families") or {}})
    rows = []
    for family in families:
        found = [(run.results.get("families") or {}).get(family) or {} for run in runs]
        counts = dict.fromkeys(str(value["n"]) for value in found if value.get("n"))
        rows.append([cell(family), *(cell(_percent(value.get("final")), "number") for value in found),
                     cell(" / ".join(counts), "number quiet")])  # fmt: skip
    return table(["family", *names, "n"], rows) if rows else ""


def unlike(runs: list[Run], names: list[str]) -> list[str]:
    """What makes the results no fair comparison."""
    def tasks(run: Run) -> str | None:
        return (run.results.get("task_set") or {}).get("eval_sha256") if run.results.get("families") else None

    kinds = (("evaluated on different tasks", tasks),
             ("judged by different judges", lambda r: r.results.get("judge")),
             ("played on different phones", lambda r: r.results.get("phones")))  # fmt: skip
    found = []
    for what, get in kinds:
        values = [get(run) for run in runs]
        others = [name for name, value in zip(names, values, strict=True) if value and values[0] and value != values[0]]
        if others:
            found.append(f"{what} than {names[0]}: {', '.join(others)}")
    return found


def settings(runs: list[Run], names: list[str]) -> str:
    """The flags that are not the same everywhere."""
    flat = [dict(flatten(run.config)) for run in runs]
    keys = [key for key in dict.fromkeys(key for values in flat for key in values)
            if len({repr(values.get(key)) for values in flat}) > 1]  # fmt: skip
    rows = [[cell(key), *(cell(values.get(key, "")) for values in flat)] for key in keys]
    return table(["flag", *names], rows) if rows else "<p>Nothing: the same flags everywhere.</p>"


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1%}"
