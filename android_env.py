"""One Android phone as a reinforcement-learning environment.

`AndroidEnv`: episodes in the style of Gymnasium (`reset(seed=)`, `step`, `terminated` apart from `truncated`) over a
phone of `adb_phone.py`, whose actions are Auto-UI's text (`action_text.py`).

    env = AndroidEnv(AdbPhone("emulator-5554"), tasks, judge)  # judge(task, observation) -> Verdict
    obs, info = env.reset(seed=1, options={"task": tasks[0]})  # {"image": uint8 [H, W, 3], "prompt": str}
    obs, reward, terminated, truncated, info = env.step(format_action(Action("PRESS_HOME")))

Departs from the authors' code: the prompt's last action stays the last one that was done: garbage in the prompt breeds
more of it; STATUS_TASK_IMPOSSIBLE ends the episode (there: idles); penalties are floats, off by default (there:
truncated to integers); the horizon truncates and does not terminate; an outage ends the episode as truncated with
`info["error"]`; `reset` undoes what the last episode did on the phone (stops and clears the apps it used, uninstalls
what it installed) instead of restarting an emulator from a snapshot.
"""

from __future__ import annotations

import contextlib
import random
import re
import shlex
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np

from action_text import (  # noqa: F401  (these names, and the phone's, are part of this module's interface)
    KINDS,
    TAP_DISTANCE,
    UNUSED,
    Action,
    format_action,
    make_prompt,
    parse_action,
    shown_action,
    to_pixel,
)
from adb_phone import (  # noqa: F401
    LOCK_COMMAND,
    AdbPhone,
    AdbTimeout,
    AndroidEnvError,
    DeviceOffline,
    DeviceUnauthorized,
    ScreenLocked,
    ScreenshotError,
    ScreenUnreadable,
    list_devices,
)
from ui_state import Node, UiState, is_locked  # noqa: F401

_KEYS = {"PRESS_BACK": 4, "PRESS_HOME": 3, "PRESS_ENTER": 66}


@dataclass
class Observation:
    """What a judge sees. `ui()` asks the phone at its first call and remembers the answer; a judge that looks
    at the image only costs no dump."""

    image: np.ndarray                                   # uint8 [H, W, 3]
    instruction: str
    last_actions: tuple[str, ...]                       # all of this episode, oldest first
    _fetch: Callable[[], UiState] = field(repr=False)

    @cached_property
    def _ui(self) -> UiState:
        return self._fetch()

    def ui(self) -> UiState:
        return self._ui

    @property
    def fetched(self) -> UiState | None:
        """The UI state, if someone asked for it."""
        return self.__dict__.get("_ui")


# Never stopped or cleared: parts of the system; also the home app, which `_home` names.
_SYSTEM = frozenset({
    "", "android", "com.android.systemui", "com.google.android.gms", "com.google.android.inputmethod.latin",
    "com.android.permissioncontroller", "com.google.android.permissioncontroller",
    "com.android.packageinstaller", "com.google.android.packageinstaller", "com.android.adbkeyboard"})

_TOUCHED_FILE = "/data/local/tmp/distrl-touched"    # on the phone: a line "touched PACKAGE" each


_HOME_COMMAND = ("cmd package resolve-activity --brief -a android.intent.action.MAIN "
                 "-c android.intent.category.HOME")


def third_party_packages(phone: AdbPhone) -> set[str]:
    """What is installed besides the system. AndroidEnvError when the phone cannot say."""
    return set(re.findall(r"^package:([\w.]+)", phone.shell("pm list packages -3", check=True), re.MULTILINE))


class AndroidEnv:
    """Episodes on one phone. `tasks`: objects with `instruction` and `horizon`; `reset` may name another.

    judge: `judge.reset(task, observation)`, then `judge(task, observation)` -> an object with `success`
        (True, False, None: cannot tell) and `reason`; asked after STATUS_* and steps that changed the screen.
        `reset` may return one too: a first screen with the task done is `info["trivial_success"]`.
    horizon: steps until an episode is truncated, instead of the task's own.
    reset_mode: "stop" stops the apps of the last episode; "clear" also empties their data and uninstalls what
        was installed since the first reset. On a phone with anything of value on it use "stop". "snapshot" puts an
        emulator of this machine back to its snapshot, or clears, with a warning, when it refuses to. What no episode
        used, but was open at the first reset, is only stopped.
    installed: the third-party packages that belong on the phone, instead of those found at the first reset: a worker
        that takes over from one that died in mid-episode would take the episode's for the phone's own.
    settle: seconds that a step waits at most for two equal screenshots in a row: 0 on a simulated phone,
        about 2 on others.
    Penalties, all >= 0, are subtracted from the reward: `repetition_penalty` times k for the k-th repetition
        in a row of the same action (paper: accumulating; authors' code: 0.4), `empty_type_penalty` for a TYPE
        of blanks (there: 1.0), `invalid_penalty` for text that is no action.
    """

    def __init__(self, phone: AdbPhone, tasks: Sequence[Any] | None, judge: Any, horizon: int | None = None,
                 reset_mode: str = "clear", *, installed: Collection[str] | None = None, settle: float = 0.0,
                 repetition_penalty: float = 0.0, empty_type_penalty: float = 0.0, invalid_penalty: float = 0.0):
        if reset_mode not in ("stop", "clear", "snapshot"):
            raise ValueError(f"reset_mode is {reset_mode!r}, want 'stop', 'clear' or 'snapshot'")
        if horizon is not None and horizon < 1:
            raise ValueError(f"horizon is {horizon}, want at least 1, or None for the task's own")
        if min(repetition_penalty, empty_type_penalty, invalid_penalty) < 0:
            raise ValueError("penalties are subtracted: give them as numbers >= 0")
        self.phone, self.tasks, self.judge = phone, tasks, judge
        self.horizon, self.reset_mode, self.settle = horizon, reset_mode, settle
        self.repetition_penalty, self.empty_type_penalty = repetition_penalty, empty_type_penalty
        self.invalid_penalty = invalid_penalty
        self.seconds: dict[str, float] = {}             # of this episode: reset, input, screen, judge
        self.task: Any = None
        self._image: np.ndarray | None = None           # what the policy saw last
        self._verdict: Any = None                       # the judge's last one in this episode
        self._random = random.Random(0)
        self._touched: set[str] = set()                 # packages that had the focus since the last reset: `_note`
        self._keep = set(_SYSTEM)
        self._installed = None if installed is None else set(installed)     # third-party packages that stay
        self._first = True                              # no reset yet
        self._broken = False                            # the last episode ended in an outage
        self._last: tuple | None = None                 # what the last step of an ended episode returned

    # ---- reset

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """(obs, info) of a new episode: the phone as it was at the first reset, on its home screen. An outage
        is recovered from once; then the error is raised. `seed` also seeds a simulated phone."""
        if seed is not None:
            self._random = random.Random(seed)
        self.task = (options or {}).get("task")
        if self.task is None:
            if not self.tasks:
                raise ValueError("no task: give AndroidEnv tasks, or reset options={'task': task}")
            self.task = self._random.choice(self.tasks)
        self.seconds = {}
        with self._timed("reset"):
            try:
                if self._broken:
                    self.phone.recover()
                self._begin(seed)
            except AndroidEnvError:
                self._broken = True
                self.phone.recover()
                self._begin(seed)
        self._broken = False
        return self._obs(), self._info(Action(""), False, 0.0)

    @contextlib.contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Adds what is done inside to `seconds`."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began

    def _begin(self, seed: int | None) -> None:
        self._restore(seed)
        self._boot = self._boot_time()
        self._steps, self._repeats, self._actions, self._last_action = 0, 0, [], ""
        self._verdict, self._last = None, None
        first = self.judge.reset(self.task, self._observe())
        self._trivial = bool(first and first.success)
        self._doubtful = first is not None and first.success is None    # it may have been done before the first action
        self._over = False                              # done, before the first action or since: nobody knows
        self._unread = ""                               # why no verdict on a screen of this episode can be had

    def _boot_time(self) -> str:
        """Another one after a reboot, "" where the phone does not say."""
        said = self.phone.shell("getprop ro.boottime.init").strip()
        return said if said.isdigit() else ""

    def _restore(self, seed: int | None) -> None:
        if self.reset_mode == "snapshot":
            from emulator import load_snapshot  # only here: the rest of this file needs no emulator

            if refused := load_snapshot(self.phone):
                warnings.warn(f"{refused}: apps are stopped and cleared instead", stacklevel=2)
                self.reset_mode = "clear"
            else:
                self._touched = set()
        commands = []
        if self.reset_mode != "stop":
            installed = third_party_packages(self.phone)
            if self._installed is None:
                self._installed = installed
            if self.reset_mode == "clear":
                commands += [f"pm uninstall {package}" for package in sorted(installed - self._installed)]
        # Also apps that a dialog hides; and whether the screen is locked, which is looked at again with each judgement.
        noted = f"cat {_TOUCHED_FILE} 2>/dev/null"
        out = self.phone.shell(f"dumpsys activity activities | grep -E 'Hist'; {noted}; {LOCK_COMMAND}")
        if is_locked(out):
            self.phone.unlock()
        self._touched.update(re.findall(r"^touched ([\w.]+)$", out, re.MULTILINE))
        in_front = set(re.findall(r"ActivityRecord\{\S+ \S+ ([\w.]+)/", out))
        if self._first:                                  # left there by someone else, whose data it is
            in_front.update(self.phone.foreground()[::2])
            self._keep.add(self._home())
        else:
            self._touched |= in_front
        for package in sorted((self._touched | in_front) - self._keep):
            commands.append(f"am force-stop {package}")
            if self.reset_mode == "clear" and package in self._touched:
                commands.append(f"pm clear {package}")
        commands.append(f"rm -f {_TOUCHED_FILE}")
        if seed is not None:
            commands.append(f"setprop debug.distrl.seed {seed}")
        self.phone.shell("; ".join([*commands, "input keyevent 3"]), timeout=60, check=True)
        self._touched, self._first = set(), False
        self._image = self._settled()

    def _home(self) -> str:
        """The home app's package: asked for, as after its key the screen takes its time to change."""
        found = re.findall(r"^([\w.]+)/", self.phone.shell(_HOME_COMMAND), re.MULTILINE)
        if found and found[-1] != "android":             # which asks the user for one of several
            return found[-1]
        self.phone.key(3)
        self._settled()
        return self.phone.foreground()[0]

    # ---- step

    def step(self, action_text: str) -> tuple[dict, float, bool, bool, dict]:
        """Does the action in `action_text`; (obs, reward, terminated, truncated, info). info: action,
        invalid, reason, success (the last verdict: True, False, or None when the judge cannot tell),
        verdict_reason, screen_changed, steps_seconds, trivial_success, doubtful_success; error after an outage,
        unsupported_text when the phone cannot type it. After the end of an episode nothing is done and the last
        answer comes again, with reward 0."""
        if self._image is None:
            raise RuntimeError("step before reset: call env.reset() first")
        if self._last:
            obs, _, terminated, truncated, info = self._last
            return obs, 0.0, terminated, truncated, info
        started = time.monotonic()
        action = parse_action(action_text)
        text = shown_action(action_text)
        self._repeats = self._repeats + 1 if self._actions and self._actions[-1] == text else 0
        self._actions.append(text)
        if action.kind != "INVALID":                    # the prompt's last action is one that was done
            self._last_action = text
        self._steps += 1
        reward = -self.repetition_penalty * self._repeats
        reward -= self.invalid_penalty * (action.kind == "INVALID")
        reward -= self.empty_type_penalty * (action.kind == "TYPE" and not action.text.strip())
        ends, changed, extra = action.kind.startswith("STATUS_"), False, {}
        terminated, truncated = False, self._steps >= (self.horizon or self.task.horizon)
        try:
            with self._timed("input"):
                if not self._act(action):
                    extra["unsupported_text"] = True
            with self._timed("screen"):
                before, self._image = self._image, self._settled()
            changed = not np.array_equal(before, self._image)
            if changed or ends or truncated and self._verdict is None:
                with self._timed("judge"):
                    self._ask_judge()
            terminated = ends or self._over or bool(self._verdict and self._verdict.success)
            truncated = truncated and not terminated
            if (terminated or truncated) and self._boot_time() != self._boot:   # while a judge was waited for
                raise DeviceOffline(self.phone.serial, "restarted in the middle of an episode", "see why")
            reward += bool(self._verdict and self._verdict.success)
        except ScreenUnreadable as error:                # nobody's fault: no verdict, no outage
            truncated, self._verdict = True, SimpleNamespace(success=None, reason=str(error))
        except AndroidEnvError as error:
            self._broken, terminated, truncated, extra["error"] = True, False, True, str(error)
        info = self._info(action, changed, time.monotonic() - started) | extra
        if "error" in info:                              # an outage is not a failure of the policy
            info |= {"success": None, "verdict_reason": info["error"]}
        answer = self._obs(), float(reward), terminated, truncated, info
        self._last = answer if terminated or truncated else None
        return answer

    def _act(self, action: Action) -> bool:
        """False: the phone cannot type this text."""
        if action.kind == "DUAL_POINT":
            start = to_pixel(action.touch, self.phone.size)
            if action.is_tap:
                self.phone.tap(*start)
            else:
                self.phone.swipe(*start, *to_pixel(action.lift, self.phone.size))
        elif action.kind == "TYPE":
            return self.phone.type_text(action.text)
        elif action.kind in _KEYS:
            self.phone.key(_KEYS[action.kind])
        return True

    def _settled(self) -> np.ndarray:
        image, deadline = self.phone.screenshot(), time.monotonic() + self.settle
        while time.monotonic() < deadline:
            before, image = image, self.phone.screenshot()
            if np.array_equal(before, image):
                break
        return image

    def _ask_judge(self) -> None:
        observation = self._observe()
        try:
            self._verdict = self.judge(self.task, observation)
        except ScreenUnreadable as error:
            self._unread = str(error)
        if self._unread and not (self._verdict and self._verdict.success):
            self._verdict = SimpleNamespace(success=None, reason=self._unread)
        if self._doubtful and self._verdict.success:
            reason = f"there was no verdict on the first screen; now: {self._verdict.reason}"
            self._verdict, self._over = SimpleNamespace(success=None, reason=reason), True
        state = observation.fetched
        package, app = (state.package, state.app) if state else self.phone.foreground()[::2]
        self._note({package, app} - self._touched - {"", None})

    def _note(self, packages: set[str]) -> None:
        """Also on the phone: who goes on there when this process is killed must know what to clear, or a permission
        that was given, an alarm that was set, would be there in the next episode."""
        if packages:
            self.phone.shell("; ".join(f"echo touched {shlex.quote(p)} >> {_TOUCHED_FILE}" for p in sorted(packages)))
            self._touched |= packages

    def _observe(self) -> Observation:
        return Observation(self._image, self.task.instruction, tuple(self._actions), self.phone.ui)

    def _obs(self) -> dict:
        return {"image": self._image, "prompt": make_prompt(self.task.instruction, self._last_action)}

    def _info(self, action: Action, changed: bool, seconds: float) -> dict:
        verdict = self._verdict
        return {"action": action, "invalid": action.kind == "INVALID", "reason": action.reason,
                "success": verdict.success if verdict else False,
                "verdict_reason": verdict.reason if verdict else "not judged yet",
                "screen_changed": changed, "steps_seconds": seconds, "trivial_success": self._trivial,
                "doubtful_success": self._over}
