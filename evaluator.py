"""Judges: whether an episode has done its task.

A judge is asked after each step whose screen changed, and answers for the screen as it is now:

    judge = RuleJudge()
    judge.reset(task, observation)          # the episode's first screen
    verdict = judge(task, observation)      # Verdict(success=True, reason="results for 'capital of Chile'")

An observation has `.image`, uint8 [H, W, 3], and `.ui()`, which asks the phone for its UI state (`package`,
`activity`, `texts`) at its first call. One judge belongs to one phone: it keeps the episode's screens, which
other tasks must not see.

Departs from the paper: its judge is Gemini-1.5-Pro on the last screenshot. `RuleJudge` applies the task's own
rule (`task.is_done(screens)`) to the UI state: no key, no network, the same verdict each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """`success` is None when the judge cannot tell: that is no failure. `raw`: its answer as given."""

    success: bool | None
    reason: str = ""
    raw: str = ""


class RuleJudge:
    """Applies `task.is_done` to the screens of the episode so far."""

    def __init__(self) -> None:
        self.screens: list[Any] = []        # UI states, oldest first; a screen in a row only once
        self._task: Any = None

    def reset(self, task: Any, observation: Any) -> None:
        """A new episode; its first screen counts as seen."""
        self._task, self.screens = task, [observation.ui()]

    def __call__(self, task: Any, observation: Any) -> Verdict:
        """Raises ValueError before `reset`, and what the phone raises when it cannot be read."""
        if task is not self._task:
            raise ValueError(f"judge asked about {task.instruction!r} before reset(task, observation) for it")
        now = observation.ui()
        if now != self.screens[-1]:
            self.screens.append(now)
        if not now.texts:
            return Verdict(None, f"{now.package} shows no text that could be read")
        done, reason = task.is_done(self.screens)
        return Verdict(done, reason, reason)
