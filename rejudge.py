"""Verdicts for what a judge could not judge: the journal's trajectories without one are asked about again.

    python evaluator.py --rejudge runs/NAME                 # the run's own judge; --judge for another
    settle(Path("runs/NAME"), judge)                              # {"success": 3, "failure": 8, "unknown": 1}

A trajectory without a verdict keeps each screen that had none, as PNG, with the number of actions before it. The first
of them that is a success ends the trajectory there with reward 1, as it would have ended then, unless it is the screen
before the first action: that says nothing about the policy. When all are failures it is a failure as it stands. One
that is still unknown leaves it as it was, for another time; verdicts that were given are in the run's judge.sqlite and
are not asked for twice. What is settled loses its screens, so that the journal stays small, and is returned to training
at the next --resume, whatever its age: its log-probs tell how far off-policy it is.

Departs from the authors' code: there, what could not be judged is a failure for ever.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from action_text import shown_action
from journal import Journal
from replay import Trajectory


def settle(folder: Path, judge) -> Counter:
    """Ask `judge.judge(task, actions, pngs)` about every training trajectory without a verdict that has its screens.

    Returns how many became "success" and "failure", how many stay "unknown", how many had "no screens" (episodes that
    an outage of their phone ended, and those whose task was done before the first action), and how many of an
    "evaluation" are left as they are: no result would take them in; `--eval` plays them again.
    """
    counts: Counter = Counter()
    with Journal(folder / "journal.sqlite") as journal:
        for entry in [row for row in journal.rows() if row.success is None]:
            if entry.split != "train":
                counts["evaluation"] += 1
                continue
            trajectory = Trajectory.from_bytes(journal.get(entry.id).data)
            if not trajectory.info.get("unjudged"):
                counts["no screens"] += 1
                continue
            settled, reason = judged(trajectory, judge)
            if settled is None:
                counts["unknown"] += 1
                continue
            counts["success" if settled.success else "failure"] += 1
            # First the list, then the verdict: a kill in between leaves it listed and unknown. The next resume passes
            # over it, the next --rejudge lists it again.
            journal.meta["settled"] = [*journal.meta.get("settled", []), entry.id]
            journal.set_verdict(entry.id, settled.success, settled.return_, reason=reason, length=len(settled),
                                data=settled.to_bytes())
    return counts


def judged(trajectory: Trajectory, judge) -> tuple[Trajectory | None, str]:
    """(the trajectory with its verdict, None when that is still unknown; why)."""
    task = SimpleNamespace(instruction=trajectory.instruction, family=trajectory.family)
    reason = ""
    for step, screens in trajectory.info["unjudged"]:
        done = [shown_action(text) for text in trajectory.actions[:step]]  # as the judge would have been told at once
        verdict = judge.judge(task, done, [base64.b64decode(png) for png in screens])
        reason = f"judged later: {verdict.reason}"
        if verdict.success is None:
            return None, verdict.reason
        if verdict.success and not step:
            return None, "done before the first action"
        if verdict.success:
            return _ends_in_success(trajectory, step), reason
    return dataclasses.replace(trajectory, success=False, info=_without_screens(trajectory)), reason


def _ends_in_success(trajectory: Trajectory, step: int) -> Trajectory:
    """The first `step` actions, the last of them rewarded."""
    rewards = trajectory.rewards[:step].copy()
    rewards[-1] += 1.0
    return dataclasses.replace(
        trajectory, success=True, terminated=True, truncated=False, rewards=rewards, info=_without_screens(trajectory),
        prompts=trajectory.prompts[: step + 1], features=trajectory.features[: step + 1],
        actions=trajectory.actions[:step], token_ids=trajectory.token_ids[:step],
        logprobs=trajectory.logprobs[:step], invalid=trajectory.invalid[:step],
        policy_version=trajectory.policy_version[:step],
    )  # fmt: skip


def _without_screens(trajectory: Trajectory) -> dict:
    return {name: value for name, value in trajectory.info.items() if name != "unjudged"}
