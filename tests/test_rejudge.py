"""What had no verdict gets one later, with the reward that follows from it, and returns to training."""

import base64
import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from android_env import Action, format_action
from args import Args, JudgeArgs
from evaluator import JudgeConfig, Verdict, VisionJudge
from journal import Journal
from judge_clients import Answer
from judge_ledger import Ledger
from rejudge import settle
from replay import Trajectory
from run_folder import held


def trajectory(unjudged=None, **info) -> Trajectory:
    """Four actions, penalties on the first and the last, cut by the horizon."""
    if unjudged is not None:
        info["unjudged"] = [[step, [base64.b64encode(png).decode()]] for step, png in unjudged]
    return Trajectory(
        "Open the clock", "open_app", [f"p{i}" for i in range(5)], np.arange(10).reshape(5, 2), ["a", "b", "c", "d"],
        token_ids=[[1], [2, 3], [4], [5]], logprobs=[[-1.0], [-2.0, -3.0], [-4.0], [-5.0]],
        rewards=[-0.5, 0.0, 0.0, -0.25], invalid=[True, False, False, True], policy_version=[3, 3, 4, 4],
        terminated=False, truncated=True, success=None, info={"worker": 0, "reason": "503", **info},
    )  # fmt: skip


def store(journal: Journal, t: Trajectory, split: str = "train") -> int:
    return journal.append(
        instruction=t.instruction, family=t.family, success=t.success, reward=t.return_, length=len(t),
        policy_version=3, worker=0, split=split, reason=t.info["reason"], data=t.to_bytes())


class Verdicts:
    def __init__(self, **by_screen):
        self.by_screen, self.asked = by_screen, []

    def judge(self, task, actions, pngs):
        self.asked.append((task.instruction, task.family, list(actions), pngs))
        return Verdict(self.by_screen[pngs[-1].decode()], f"saw {pngs[-1].decode()}")


def test_B4_unknown_trajectories_are_settled_and_listed_for_training(tmp_path):
    with Journal(tmp_path / "journal.sqlite") as journal:
        late = store(journal, trajectory([(2, b"no"), (3, b"yes")]))
        failed = store(journal, trajectory([(1, b"no")]))
        still = store(journal, trajectory([(1, b"no"), (4, b"unknown")]))
        outage = store(journal, trajectory())
        held_out = store(journal, trajectory([(4, b"yes")]), split="final")
    judge = Verdicts(no=False, yes=True, unknown=None)
    assert settle(tmp_path, judge) == {"success": 1, "failure": 1, "unknown": 1, "no screens": 1, "evaluation": 1}
    assert judge.asked[1] == ("Open the clock", "open_app", ["a", "b", "c"], [b"yes"])
    with Journal(tmp_path / "journal.sqlite") as journal:
        entry, found = journal.get(late), Trajectory.from_bytes(journal.get(late).data)
        # It would have ended with the third action.
        assert entry.success is True and entry.reward == 0.5 and entry.length == 3 and "saw yes" in entry.reason
        assert found.rewards.tolist() == [-0.5, 0.0, 1.0] and found.actions == ["a", "b", "c"]
        assert len(found.prompts) == 4
        assert found.terminated and not found.truncated and found.success is True and "unjudged" not in found.info
        assert found.features.shape == (4, 2) and [ids.tolist() for ids in found.token_ids] == [[1], [2, 3], [4]]
        entry, found = journal.get(failed), Trajectory.from_bytes(journal.get(failed).data)
        assert entry.success is False and entry.reward == -0.75 and len(found) == 4 and found.truncated
        assert [journal.get(id).success for id in (still, outage)] == [None, None]
        assert Trajectory.from_bytes(journal.get(still).data).info["unjudged"]
        assert journal.meta["settled"] == [late, failed] and journal.get(held_out).success is None
    assert settle(tmp_path, Verdicts(no=False, unknown=False)) == {"failure": 1, "no screens": 1, "evaluation": 1}
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert journal.meta["settled"] == [late, failed, still]


def test_a_task_that_was_done_before_the_first_action_is_not_rewarded_later(tmp_path):
    """Case B11, when the first screens had no verdict at once."""
    with Journal(tmp_path / "journal.sqlite") as journal:
        done = store(journal, trajectory([(0, b"yes"), (1, b"yes")]))
        store(journal, trajectory([(0, b"no"), (2, b"yes")]))
    assert settle(tmp_path, Verdicts(no=False, yes=True)) == {"unknown": 1, "success": 1}
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert journal.get(done).success is None


def test_the_judge_is_told_the_actions_as_it_would_have_been_at_once(tmp_path):
    tap = format_action(Action("DUAL_POINT", (0.5, 0.25), (0.5, 0.25)))
    raw = trajectory([(3, b"no")])
    raw.actions[:3] = ["Action Plan: [DUAL_POINT, TYPE], " + tap, "x" * 1000, tap.replace("0.2500", "0.25")]
    with Journal(tmp_path / "journal.sqlite") as journal:
        id = store(journal, raw)
    judge = Verdicts(no=False)
    settle(tmp_path, judge)
    assert judge.asked[0][2] == [tap, "x" * 300, tap]
    with Journal(tmp_path / "journal.sqlite") as journal:  # what the policy wrote stays what it wrote
        assert Trajectory.from_bytes(journal.get(id).data).actions == raw.actions


def test_limits_of_the_command_count_for_the_runs_own_judge(tmp_path, monkeypatch):
    from calibrate import main
    from run_folder import make_folder

    args, seen = Args(), []
    args.judge = JudgeArgs("openai", "m", "http://127.0.0.1:1", judge_rpm=60.0, max_judge_calls=9)
    run = make_folder(tmp_path, "run", args)
    Journal(run / "journal.sqlite").close()
    monkeypatch.setattr("rejudge.settle", lambda run, judge: seen.append(judge.config) or Counter())
    for flags in ([], ["--judge-rpm", "5"], ["--judge-votes", "3", "--max-judge-calls", "0"],
                  ["--judge", "openai:n@http://127.0.0.1:1", "--judge-rpm", "2"]):  # fmt: skip
        assert main(["--rejudge", str(run), *flags]) == 0
    assert [(c.model, c.rpm, c.max_calls, c.votes) for c in seen] == [
        ("m", 60.0, 9, 1), ("m", 5.0, 9, 1), ("m", 60.0, 0, 3), ("n", 2.0, 0, 1)]
    assert {c.ledger for c in seen} == {str(run / "judge.sqlite")}
    assert main(["--rejudge", str(run), "--judge-rpm", "-1"]) == 2
    assert main(["--rejudge", str(run), "--judge", "gemini", "openai:n@http://127.0.0.1:1"]) == 2
    # Refused, as another process is at work there: the pause that a server asked that one for stays.
    ledger = Ledger(str(run / "judge.sqlite"))
    ledger.stop("quota", "used up")
    with held(run):
        assert main(["--rejudge", str(run)]) == 2
    assert ledger.stopped().kind == "quota" and len(seen) == 4


def test_an_outage_at_rejudging_leaves_everything_as_it_was(tmp_path):
    with Journal(tmp_path / "journal.sqlite") as journal:
        id = store(journal, trajectory([(4, b"screen")]))
        before = journal.get(id)
    answers = [Answer("no status line"), Answer("Done.\nStatus: success")]
    judge = VisionJudge(JudgeConfig("openai", "m", ledger=str(tmp_path / "judge.sqlite")),
                        ask=lambda *_, **__: answers.pop(0), sleep=lambda _: None)
    assert settle(tmp_path, judge) == {"unknown": 1}
    with Journal(tmp_path / "journal.sqlite") as journal:
        assert journal.get(id) == before and "settled" not in journal.meta
    assert settle(tmp_path, judge) == {"success": 1}


@pytest.mark.parametrize("checkpoint", [True, False])
def test_what_was_settled_returns_to_training_once_at_the_next_resume(tmp_path, checkpoint, monkeypatch):
    from policy import AutoUIPolicy
    from run_distrl import Experiment
    from tasks import parse_task

    tasks, args = [parse_task("Open the clock")], Args()

    def experiment() -> Experiment:
        policy = AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64)
        found = Experiment(args, tmp_path, tasks, tasks, policy)
        found.pool = SimpleNamespace(error=None)
        return found

    def whole(t: Trajectory) -> Trajectory:
        t.features = np.zeros((5, 1408), np.float16)
        return t

    first = experiment()
    for t in (whole(trajectory([(2, b"yes")])), whole(trajectory([(1, b"no")])), whole(trajectory())):
        first.on_trajectory(SimpleNamespace(split="train", task=tasks[0], greedy=False), t.to_bytes())
    first.journal.close()
    while first.receive():
        pass
    assert first.unknown == 3 and len(first.learner.replay) == 0
    if checkpoint:
        first.save()
    settle(tmp_path, Verdicts(yes=True, no=False))
    second = experiment()
    second.load()
    assert second.trajectories == 3 and second.unknown == 1 and len(second.learner.replay) == 2
    _, drawn, _ = second.learner.replay.sample(50)
    assert {(t.success, t.return_) for t in drawn} == {(True, 0.5), (False, -0.75)}
    second.save()
    third = experiment()
    third.load()
    assert third.trajectories == 3 and third.unknown == 1 and len(third.learner.replay) == 2


def test_the_command_names_what_is_missing(tmp_path, capsys):
    from calibrate import main
    from run_folder import make_folder

    assert main(["--rejudge", str(tmp_path)]) == 2
    assert f"--rejudge {tmp_path}: not a run's folder" in capsys.readouterr().err
    run = make_folder(tmp_path, "run", Args())
    assert main(["--rejudge", str(run)]) == 2
    assert "name one with --judge" in capsys.readouterr().err
    config = json.loads((run / "config.json").read_text())
    del config["judge"]  # a run of before there were judges
    (run / "config.json").write_text(json.dumps(config))
    assert main(["--rejudge", str(run), "--judge", "openai:m@http://127.0.0.1:1"]) == 2
    assert "no journal there" in capsys.readouterr().err
    (run / "journal.sqlite").write_bytes(b"no journal " * 1000)
    assert main(["--rejudge", str(run), "--judge", "openai:m@http://127.0.0.1:1"]) == 2
    said = capsys.readouterr().err
    assert "journal.sqlite: not a journal" in said and "move it away" in said and said.count("\n") == 1
