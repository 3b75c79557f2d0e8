"""What a run achieved: the evaluations before and after training as numbers, and as a table to read.

An evaluation is a list of (family, greedy, success) rows, success None where the judge could not tell.

    results = summarise(warmup_rows, final_rows)     # the head of results.json
    print(table(results, folder))
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from report import wilson_interval
from tasks import Task

Row = tuple[str, bool, bool | None]


def rate(rows: Sequence[Row]) -> dict:
    """Success rate with its 95 % Wilson interval; rows without a verdict are counted apart, never as failures."""
    judged = [success for _, _, success in rows if success is not None]
    successes = sum(judged)
    return {
        "success_rate": successes / len(judged) if judged else None,
        "ci95": list(wilson_interval(successes, len(judged))) if judged else None,
        "n": len(judged),
        "unjudged": len(rows) - len(judged),
    }


def summarise(warmup: Sequence[Row], final: Sequence[Row]) -> dict:
    """Headline numbers (greedy decoding), then greedy and sampled apart, then by family over both."""
    phases = {"warmup": warmup, "final": final}
    modes = {
        name: {phase: rate([row for row in rows if row[1] == greedy]) for phase, rows in phases.items()}
        for name, greedy in (("greedy", True), ("sampled", False))
    }
    families = {}
    for family in dict.fromkeys(row[0] for row in [*warmup, *final]):
        rates = {phase: rate([row for row in rows if row[0] == family]) for phase, rows in phases.items()}
        families[family] = {phase: r["success_rate"] for phase, r in rates.items()} | {"n": rates["final"]["n"]}
    return {
        "warmup_success_rate": modes["greedy"]["warmup"]["success_rate"],
        **modes["greedy"]["final"],
        **modes,
        "families": dict(sorted(families.items())),
    }


def task_hash(tasks: Sequence[Task]) -> str:
    """Names a task set: sha256 of its instructions in order."""
    return hashlib.sha256("\n".join(task.instruction for task in tasks).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Versions of what computed the result."""
    packages = ("torch", "transformers", "numpy", "adbutils")
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in packages}}


def table(results: dict, folder: Path) -> str:
    """The results for the eyes: by family, greedy and sampled, and where to look next."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f}%"

    lines = ["", f"{'family':<16}{'before':>8}{'after':>8}{'n':>6}"]
    for family, row in results["families"].items():
        lines.append(f"{family:<16}{percent(row['warmup']):>8}{percent(row['final']):>8}{row['n']:>6}")
    for mode in ("greedy", "sampled"):
        before, after = results[mode]["warmup"], results[mode]["final"]
        line = f"{'all, ' + mode:<16}{percent(before['success_rate']):>8}{percent(after['success_rate']):>8}{after['n']:>6}"
        if after["ci95"]:
            line += f"   95 % interval {percent(after['ci95'][0])} to {percent(after['ci95'][1])}"
        lines.append(line)
    return "\n".join(lines) + (
        f"\n\nSuccess on held-out tasks {percent(results['warmup_success_rate'])} -> {percent(results['success_rate'])} "
        f"(greedy) after {results['trajectories']} trajectories and {results['wall_seconds'] / 60:.1f} minutes on "
        f"simulated phones.\nLook at {folder / 'report.html'} and {folder / 'curves.png'}; numbers in {folder / 'results.json'}."
    )
