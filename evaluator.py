"""Judges: whether an episode has done its task.

A judge is asked after each step whose screen changed, and answers for the screen as it is now:

    judge = make_judge(JudgeConfig("gemini"))   # RuleJudge() for "rules"; VisionJudge for "gemini" and "openai"
    judge.reset(task, observation)              # -> Verdict on the episode's first screen
    verdict = judge(task, observation)          # Verdict(success=True, reason="results for 'capital of Chile'")

    python evaluator.py --calibrate FOLDER --judge gemini openai:qwen2.5-vl@http://127.0.0.1:8000     # calibrate.py
    python evaluator.py --rejudge runs/NAME                                                           # rejudge.py

An observation has `.image`, uint8 [H, W, 3], `.last_actions`, and `.ui()`, which asks the phone for its UI state
(`package`, `activity`, `texts`) at its first call. One judge belongs to one phone: it keeps the episode's screens,
which other tasks must not see. Calls, rate, budget and verdicts are shared over all processes in judge_ledger.py.

`success` is None when a judge cannot tell: an outage, a filter, an answer without a status line. An episode that had
such a screen is no failure, whatever its last screen shows: its `unjudged` screens are kept for --rejudge.

Departs from the paper: its judge is Gemini-1.5-Pro on the last screenshot. `RuleJudge` applies the task's own rule
(`task.is_done(screens)`) to the UI state: no key, no network, the same verdict each time. Departs from the authors'
code: the last status line decides and nothing else does (there "success" anywhere, so "unsuccessful" too); an error is
no failure; one screen, since more made the paper's judge hallucinate (`JudgeConfig.screens`); an action is invalid when
the judge says "invalid" (there also when it says "valid").
"""

from __future__ import annotations

import hashlib
import io
import json
import queue
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Verdict:
    """`success` is None when the judge cannot tell: that is no failure. `raw`: its answer as given."""

    success: bool | None
    reason: str = ""
    raw: str = ""


@dataclass(frozen=True)
class JudgeConfig:
    """All that a worker needs to build its judge, and no key: those come from the environment."""

    kind: str = "rules"  # "rules", "gemini" or "openai"
    model: str = ""
    url: str = ""
    rpm: float = 0.0  # calls a minute over all workers; 0: no limit
    max_calls: int = 0  # calls of the whole run; 0: no limit
    votes: int = 1
    validity: bool = False
    screens: int = 1  # how many of the last screens are shown
    timeout: float = 30.0  # seconds of one call
    ledger: str = ":memory:"  # the run's judge.sqlite

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.model}" if self.model else self.kind


class RuleJudge:
    """Applies `task.is_done` to the screens of the episode so far."""

    def __init__(self) -> None:
        self.screens: list[Any] = []        # UI states, oldest first; a screen in a row only once
        self._task: Any = None

    def reset(self, task: Any, observation: Any) -> Verdict:
        """A new episode; its first screen counts as seen."""
        self._task, self.screens = task, [observation.ui()]
        return self(task, observation)

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


def make_judge(config: JudgeConfig, heartbeat: Callable[[], None] = lambda: None) -> RuleJudge | VisionJudge:
    """The judge of one worker; it calls `heartbeat` while it waits. Raises judge_clients.MissingClient."""
    return RuleJudge() if config.kind == "rules" else VisionJudge(config, heartbeat=heartbeat)


# ---------------------------------------------------------------------- what is asked, and how the answer is read

RUBRICS = {
    "search": "Done means: a page of results for that very request is shown. Typed words or suggestions are not it.",
    "web_open": "Done means: that site's own page has loaded. A typed address, or an error page, is not it.",
    "web_search": "Done means: that shop's own results for that very item are shown. Suggestions, or results of "
                  "another site, are not it.",
    "web_select": "Done means: the page of the first entry of that shop's results is open, with a way to buy it. The "
                  "list of results is not it.",
    "install": "Done means: the app's page offers to open or uninstall it. A page that offers to install it, or shows "
               "it being installed, is not it.",
    "alarm": "Done means: the list of alarms holds that very time (mind AM and PM) and its switch is on.",
    "": "Done means: the screen itself shows that what was asked for is there. The right app is not enough when "
        "the task asks for something in it; another name, place, time or item is not it.",
}  # fmt: skip
_SEARCHES = frozenset("question news places products travel maps directions video".split())

PROMPT = """You check whether a task on an Android phone is done.
Task: {task}
{rubric}
Last actions of the user, oldest first: {actions}
{images} Go by what is visible there, not by what the actions intended.
Write at most two sentences of reason, then end with one line that is exactly one of these:
Status: success
Status: failure"""

VALIDITY_PROMPT = """You check one action of a user on an Android phone.
Task: {task}
Previous actions, oldest first: {actions}
The image is the phone's screen. The action: {action}
Points are [y, x] from the top left corner, between 0 and 1. The action is invalid when it cannot have an effect on this
screen (nothing is there to tap, no field has the focus to type into); a poor choice is still valid.
Write one sentence of reason, then end with one line that is exactly one of these:
Status: valid
Status: invalid"""

WORDS = ({"success", "successful"}, {"failure", "fail", "failed", "unsuccessful", "not success", "not successful"})
VALIDITY_WORDS = ({"valid"}, {"invalid", "not valid"})
_STATUS = re.compile(r"status[\s*_`\"']*:", re.IGNORECASE)


def one_line(text: str, limit: int = 300) -> str:
    """Quoted, on one line, cut: what a model wrote must not look like a part of the prompt."""
    return json.dumps(text[:limit], ensure_ascii=False)


def make_prompt(task: Any, actions: Sequence[str] = (), screens: int = 1) -> str:
    """The question about `task` (with `.instruction` and maybe `.family`); its last two `actions` are told."""
    family = getattr(task, "family", "")
    rubric = RUBRICS["search" if family in _SEARCHES else family if family in RUBRICS else ""]
    images = "The image is the phone's screen now." if screens == 1 else (
        f"The {screens} images are the last screens, oldest first; the last one is the phone's screen now and decides.")
    return PROMPT.format(task=one_line(task.instruction, 500), rubric=rubric, images=images,
                         actions=", ".join(map(one_line, actions[-2:])) or "none")


def parse_status(text: str, words: tuple[set[str], set[str]] = WORDS) -> bool | None:
    """What the last line, "Status: ...", says; None when it is no such line, or not plainly one or the other."""
    lines = [line.strip().lstrip("*_#>`\"'- ") for line in text.splitlines()]
    lines = [line for line in lines if line]
    if not lines or not _STATUS.match(lines[-1]):  # what follows a status may take it back
        return None
    *earlier, value = (" ".join(re.sub(r"[*_`\"'.!]", " ", part).lower().split()) for part in _STATUS.split(lines[-1]))
    success = True if value in words[0] else False if value in words[1] else None
    other = "|".join(words[success is True])
    said = [part for part in earlier if not re.search(r"\bor\b|[|/]", part)]  # that echoes the question
    return None if any(re.search(rf"\b({other})\b", part) for part in said) else success


def encode_screen(image: np.ndarray, longest: int = 1024) -> bytes:
    """uint8 [H, W, 3] as PNG, its longer side at most `longest` pixels. Raises TypeError for anything else."""
    from PIL import Image

    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        what = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise TypeError(f"a judge looks at one uint8 array [H, W, 3], got {what}")
    picture, buffer = Image.fromarray(image), io.BytesIO()
    if max(picture.size) > longest:
        picture.thumbnail((longest, longest))
    picture.save(buffer, "PNG")
    return buffer.getvalue()


# ---------------------------------------------------------------------- a vision-language model as the judge

# How often one question is asked in all, by the last error's kind; kinds that are not here: once.
TRIES = {"limit": 5, "unavailable": 4, "silent": 2, "empty": 2, "cut": 2}
FATAL = ("quota", "key", "model")  # no call of this run can succeed
LONGEST_DELAY = 120.0  # seconds: a server that asks for more has no answer for now


class VisionJudge:
    """Asks a vision-language model; see the module's docstring. `ask` and `sleep` can be replaced for tests.

    unjudged: (number of actions so far, [PNG, ...]) of each screen of the episode without a verdict, the first with 0.
    """

    def __init__(self, config: JudgeConfig, *, ask=None, ledger=None, heartbeat: Callable[[], None] = lambda: None,
                 sleep: Callable[[float], None] = time.sleep):
        from judge_clients import make_client
        from judge_ledger import Ledger

        self.config = config
        self.ledger = ledger or Ledger(config.ledger, config.rpm, config.max_calls)
        self.unjudged: list[tuple[int, list[bytes]]] = []
        self._ask_once = ask or make_client(config.kind, config.model, config.url)
        self._heartbeat, self._sleep = heartbeat, sleep
        self._random = random.Random()  # jitter only: no stream that a run's seed decides is touched
        self._pngs: list[bytes] = []
        self._task: Any = None

    def reset(self, task: Any, observation: Any) -> Verdict:
        """A new episode. The verdict on its first screen tells tasks that are done before anything was."""
        self._task, self._pngs, self.unjudged = task, [encode_screen(observation.image)], []
        verdict = self.judge(task, observation.last_actions, self._pngs)
        if verdict.success is None:
            self.unjudged.append((0, list(self._pngs)))
        return verdict

    def __call__(self, task: Any, observation: Any) -> Verdict:
        """The verdict on the episode with this screen as its last. Raises ValueError before `reset`, TypeError for an
        image that is none."""
        if task is not self._task:
            raise ValueError(f"judge asked about {task.instruction!r} before reset(task, observation) for it")
        png = encode_screen(observation.image)
        if png != self._pngs[-1]:
            self._pngs = [*self._pngs, png][-max(1, self.config.screens):]
        shown = list(self._pngs)
        verdict = self.judge(task, observation.last_actions, shown)
        if verdict.success is None:
            self.unjudged.append((len(observation.last_actions), shown))
        else:  # the same screen again, now with a verdict
            self.unjudged = [item for item in self.unjudged if item[1] != shown]
        if verdict.success is False and (later := [step for step, _ in self.unjudged if step]):
            when = ", ".join(map(str, later))
            return Verdict(None, f"no verdict after action {when}; now: {verdict.reason}", verdict.raw)
        return verdict

    def judge(self, task: Any, actions: Sequence[str], pngs: list[bytes]) -> Verdict:
        """The verdict on these screens alone, the last one the present: votes, from the ledger when it has it."""
        prompt = make_prompt(task, actions, len(pngs))
        return self._decide(prompt, pngs, WORDS, self._key("task", task.instruction, *pngs))

    def valid(self, task: Any, image: np.ndarray, actions: Sequence[str], action: str) -> float:
        """The penalty of an action on this screen, taken before it: 1.0 when the judge calls it invalid, 0.0 when it
        calls it valid or cannot tell (with a warning)."""
        told = ", ".join(map(one_line, actions[-2:])) or "none"
        prompt = VALIDITY_PROMPT.format(task=one_line(task.instruction, 500), actions=told, action=one_line(action))
        pngs = [encode_screen(image)]
        verdict = self._decide(prompt, pngs, VALIDITY_WORDS, self._key("action", task.instruction, action, *pngs))
        if verdict.success is None:
            why = "no plain status line" if verdict.raw else verdict.reason.split(":")[0]  # few texts: each shows once
            warnings.warn(f"--validity-judge: no verdict ({why}): counted as valid", RuntimeWarning, stacklevel=2)
        return 1.0 if verdict.success is False else 0.0

    def _key(self, what: str, *parts: str | bytes) -> str:
        """Names a question: the judge, the task and its screens; nothing is shared between two tasks."""
        config = self.config
        mark = hashlib.sha256(f"{what} {config.name} {config.votes} {PROMPT} {VALIDITY_PROMPT} {RUBRICS}".encode())
        for part in parts:
            data = part if isinstance(part, bytes) else part.encode("utf-8", "replace")
            mark.update(len(data).to_bytes(8, "big") + data)
        return mark.hexdigest()

    def _decide(self, prompt: str, pngs: list[bytes], words, key: str) -> Verdict:
        """More than half of the votes, or unknown."""
        from judge_clients import JudgeError
        from judge_ledger import LedgerError, Stopped

        votes: list[bool | None] = []
        reason = raw = ""
        try:
            if stored := self.ledger.verdict(key):
                return Verdict(*stored)
            while len(votes) < self.config.votes:
                try:
                    text = self.ask(prompt, pngs)
                    vote = parse_status(text, words)
                    votes.append(vote)
                    if vote is None:
                        reason, raw = f"no plain status line in {text[-200:]!r}", text
                except JudgeError as error:
                    votes.append(None)
                    reason, raw = f"{error.kind}: {error}", ""
                    if error.kind in FATAL:
                        break
                for side in (True, False):
                    if 2 * votes.count(side) > self.config.votes:
                        why = " ".join(text.split())[:300]
                        if self.config.votes > 1:
                            why = f"{votes.count(side)} of {len(votes)} votes: {why}"
                        self.ledger.put(key, side, why, text)
                        return Verdict(side, why, text)
        except (Stopped, LedgerError) as error:  # no more calls; its disk is full
            votes.append(None)
            reason = str(error)
        tie = f"votes {votes.count(True)} to {votes.count(False)}"
        return Verdict(None, reason if None in votes else tie, raw)

    def ask(self, prompt: str, pngs: list[bytes]) -> str:
        """One answer's text, asked for again where that may help. Raises JudgeError, and judge_ledger.Stopped when
        this run may not call any more."""
        from judge_clients import JudgeError

        model, tries = self.config.model, 0
        while True:
            wait = self.ledger.reserve(model)
            self._wait(wait if self.ledger.rpm else wait * (1 + self._random.random() / 8))  # not all in one moment
            try:
                answer = self._within(prompt, pngs)
            except JudgeError as error:
                tries += 1
                self.ledger.count(model, error.kind, *error.tokens)
                if error.kind in FATAL:
                    self.ledger.stop(error.kind, str(error))
                backoff = min(60.0, 2.0 ** (tries - 1)) * (1 + self._random.random())
                delay = backoff if error.delay is None else max(error.delay, min(backoff, 5.0))
                if tries >= TRIES.get(error.kind, 1) or delay > LONGEST_DELAY:
                    raise
                if error.kind == "limit":
                    self.ledger.hold(delay)  # everybody's next call waits; ours too
                else:
                    self._wait(delay)
            else:
                self.ledger.count(model, "answered", answer.input_tokens, answer.output_tokens)
                return answer.text

    def _wait(self, seconds: float) -> None:
        while seconds > 0:
            self._heartbeat()
            self._sleep(min(seconds, 5.0))
            seconds -= 5.0

    def _within(self, prompt: str, pngs: list[bytes]):
        """One call, in a thread: a server that sends a byte now and then does not hold this one beyond the time."""
        from judge_clients import JudgeError

        done: queue.SimpleQueue = queue.SimpleQueue()
        temperature = 0.0 if self.config.votes == 1 else 0.7  # votes that must agree are no votes

        def call() -> None:
            try:
                done.put(self._ask_once(prompt, pngs, timeout=self.config.timeout, temperature=temperature))
            except BaseException as error:  # raised again below, on the thread that asked
                done.put(error)

        threading.Thread(target=call, name="judge", daemon=True).start()
        deadline = time.monotonic() + self.config.timeout + 0.5
        while (left := deadline - time.monotonic()) > 0:
            self._heartbeat()
            try:
                answer = done.get(timeout=min(left, 5.0))
            except queue.Empty:
                continue
            if isinstance(answer, BaseException):
                raise answer
            return answer
        raise JudgeError("silent", f"no answer in {self.config.timeout:g} s")


def check(config: JudgeConfig) -> str:
    """One real call, to see that model, key and server are what a run needs. Returns the answer's text.

    Raises judge_clients.JudgeError (once, without retries), MissingClient, or judge_ledger.Stopped.
    """
    from judge_clients import JudgeError

    judge = VisionJudge(replace(config, timeout=max(config.timeout, 120.0)))  # a local server may load its model first
    try:
        judge._wait(judge.ledger.reserve(config.model))
        white = encode_screen(np.full((64, 64, 3), 255, np.uint8))
        answer = judge._within('Reply with the line "Status: success".', [white])
        judge.ledger.count(config.model, "answered", answer.input_tokens, answer.output_tokens)
    except JudgeError as error:
        judge.ledger.count(config.model, error.kind, *error.tokens)
        raise
    finally:
        judge.ledger.close()
    return answer.text


if __name__ == "__main__":
    from calibrate import main

    sys.exit(main())
