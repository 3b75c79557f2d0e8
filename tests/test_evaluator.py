"""Verdicts, and the judge that applies a task's own rule."""

from dataclasses import dataclass, field

import pytest

from evaluator import RuleJudge, Verdict
from tasks import parse_task


@dataclass
class State:
    package: str
    texts: list[str]
    activity: str = ".Main"


@dataclass
class Seen:
    """An observation that counts how often the phone is asked."""

    state: State
    asked: list = field(default_factory=list)

    def ui(self) -> State:
        self.asked.append(1)
        return self.state


SETTINGS, TASK = "com.android.settings", parse_task("Toggle notifications for the Google Maps app")


def at(state: str) -> Seen:
    return Seen(State(SETTINGS, ["App notifications", "Maps", "All Maps notifications", state]))


def test_the_judge_remembers_the_episode_and_forgets_it_at_reset():
    judge = RuleJudge()
    judge.reset(TASK, Seen(State("home", ["Search"])))
    assert judge(TASK, at("ON")).success is False
    verdict = judge(TASK, at("OFF"))
    assert verdict == Verdict(True, verdict.reason, verdict.reason) and "first on" in verdict.reason
    judge.reset(TASK, Seen(State("home", ["Search"])))
    assert judge(TASK, at("OFF")).success is False


def test_the_first_screen_counts_as_seen_and_a_screen_that_stays_counts_once():
    judge = RuleJudge()
    judge.reset(TASK, at("ON"))
    assert judge(TASK, at("ON")).success is False
    assert len(judge.screens) == 1
    assert judge(TASK, at("OFF")).success is True


def test_one_judge_does_not_leak_into_another():
    first, second = RuleJudge(), RuleJudge()
    first.reset(TASK, at("ON"))
    second.reset(TASK, at("OFF"))
    assert first(TASK, at("OFF")).success is True
    assert second(TASK, at("OFF")).success is False


def test_a_screen_without_text_is_neither_success_nor_failure():
    judge = RuleJudge()
    judge.reset(TASK, at("ON"))
    verdict = judge(TASK, Seen(State("com.android.camera2", [])))
    assert verdict.success is None and "no text" in verdict.reason


def test_the_judge_needs_its_reset():
    with pytest.raises(ValueError, match="before reset"):
        RuleJudge()(TASK, at("ON"))


def test_errors_of_the_phone_are_raised_and_not_a_failure():
    class Broken:
        def ui(self):
            raise ConnectionError("device offline")

    judge = RuleJudge()
    judge.reset(TASK, at("ON"))
    with pytest.raises(ConnectionError, match="device offline"):
        judge(TASK, Broken())
