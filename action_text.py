"""Auto-UI's actions as text: what the policy writes, and what is done on the phone.

An action is this text, on one line, y first, both in [0, 1], -1.0 where unused; an `Action Plan: [...]` may precede it:

    Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.7852, 0.6779]", "lift_point":
    "[0.7852, 0.6779]", "typed_text": ""

    parse_action(text)      # Action("DUAL_POINT", (0.7852, 0.6779), (0.7852, 0.6779)); never an exception
    format_action(action)   # the text again

Departs from the authors' code: text that cannot be parsed is an invalid action with a reason (there: an exception, or
another action); typed text may hold quotes, commas and colons.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

KINDS = ("DUAL_POINT", "TYPE", "PRESS_BACK", "PRESS_HOME", "PRESS_ENTER", "STATUS_TASK_COMPLETE",
         "STATUS_TASK_IMPOSSIBLE")
UNUSED = (-1.0, -1.0)
TAP_DISTANCE = 0.04        # touch and lift closer than this are a tap (Android in the Wild)
_ACTION = re.compile(r'Action Decision:\s*"action_type"\s*:\s*"([^"]*)"\s*,\s*"touch_point"\s*:\s*"([^"]*)"'
                     r'\s*,\s*"lift_point"\s*:\s*"([^"]*)"\s*,\s*"typed_text"\s*:\s*"(.*)"[^"]*\Z', re.DOTALL)


@dataclass(frozen=True)
class Action:
    """`kind` is one of `KINDS`, or "INVALID" with a `reason`; `touch` and `lift` are (y, x) in [0, 1], or
    `UNUSED`."""

    kind: str
    touch: tuple[float, float] = UNUSED
    lift: tuple[float, float] = UNUSED
    text: str = ""
    reason: str = ""

    @property
    def is_tap(self) -> bool:
        return self.kind == "DUAL_POINT" and math.dist(self.touch, self.lift) <= TAP_DISTANCE + 1e-9


def format_action(action: Action) -> str:
    """The action's text, coordinates rounded to four decimals. `parse_action` gives the same action back."""
    points = (action.touch, action.lift)
    touch, lift = (", ".join("-1.0" if v == -1 else f"{v:.4f}" for v in point) for point in points)
    return (f'Action Decision: "action_type": "{action.kind}", "touch_point": "[{touch}]", '
            f'"lift_point": "[{lift}]", "typed_text": "{action.text}"')


def parse_action(text: str) -> Action:
    """The action in a model's `text`; what is none is `Action("INVALID", reason=...)`, never an exception."""
    found = _ACTION.search(text)
    if not found:
        what = "incomplete or misspelt fields" if "Action Decision:" in text else "no 'Action Decision:'"
        return Action("INVALID", reason=f"{what} in {text[:200]!r}")
    kind, touch_text, lift_text, typed = found.groups()
    if kind not in KINDS:
        return Action("INVALID", reason=f"unknown action_type {kind[:40]!r}, want one of {', '.join(KINDS)}")
    points = []
    for name, point in (("touch_point", touch_text), ("lift_point", lift_text)):
        parts = point.strip().removeprefix("[").removesuffix("]").split(",")
        try:
            y, x = (float(part) for part in parts)
        except ValueError:
            return Action("INVALID", reason=f"{name} {point[:40]!r} is not '[y, x]'")
        if not (0 <= y <= 1 and 0 <= x <= 1 if kind == "DUAL_POINT" else math.isfinite(y + x)):
            return Action("INVALID", reason=f"{name} {point[:40]!r} is outside [0, 1]")
        points.append((y, x))
    return Action(kind, points[0], points[1], typed)


def shown_action(text: str) -> str:
    """What prompts and judges are told of a model's `text`: its action, no more; or its beginning when it is none."""
    action = parse_action(text)
    return text[:300] if action.kind == "INVALID" else format_action(action)


def make_prompt(instruction: str, last_action_text: str = "") -> str:
    """What the policy reads: the last action and the goal, with the end-of-sequence token written out."""
    return f"Previous Actions: {last_action_text} Goal: {instruction}</s>"


def to_pixel(point: tuple[float, float], size: tuple[int, int]) -> tuple[int, int]:
    """(x, y) in pixels of a (y, x) in [0, 1] on a screen of `size` (width, height)."""
    (y, x), (width, height) = point, size
    return min(round(x * width), width - 1), min(round(y * height), height - 1)
