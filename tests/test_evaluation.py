"""Evaluations: of a policy alone, in the file's order; what is kept of episodes and updates; the tracker's videos."""

import dataclasses
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_experiment import TASKS, begin
from test_learner import TAPS, play, small
from test_run import TINY, Program

import evaluation
from args import Args, JudgeArgs, check_phones, check_unused, parse
from journal import Journal
from loaders import load_policy
from replay import Trajectory
from results import start_tracking
from run_data import evaluations, read_run, wilson_interval
from run_distrl import go_on
from run_folder import UsageError, make_folder, read_args, write_args
from schedule import Schedule
from tasks import generate_tasks, two_sets
from worker import Episode, rollout, small_jpeg


def scripted(run, outcomes):
    """As --serial plays: the schedule's episodes, with these outcomes in turn. Returns those that were asked for."""
    asked, policy, left = [], small(), iter(outcomes)

    def pump():
        episode = run.schedule.next()
        asked.append(episode)
        screens = [small_jpeg(np.full((96, 54, 3), 80 * k, np.uint8)) for k in range(2)]
        info = {"worker": 0, "reason": "said", "serial": "x", "number": episode.number}
        info |= {"screens": screens} if episode.screens else {}
        played = play(policy, next(left), actions=TAPS[:1], seed=episode.number)
        task = episode.task
        played = dataclasses.replace(played, instruction=task.instruction, family=task.family, info=info)
        run.on_trajectory(episode, played.to_bytes())

    run.args.run.serial, run.pool = True, SimpleNamespace(
        pump=pump, error=None, version=1, env_steps=0, restarts=0, phone_restarts=0, server_restarts=0, last_error=""
    )
    return asked


# ---------------------------------------------------------------------- what --eval names


@pytest.fixture
def base(tmp_path):
    """A run with a checkpoint whose weights are not those that it began with."""
    args = Args()
    args.policy.policy, args.tasks.horizon, args.phones.num_workers = tmp_path / "start.safetensors", 7, 3
    small().save(args.policy.policy)
    folder = make_folder(tmp_path, "base", args)
    run = begin(folder, small(seed=1))
    run.save()
    Journal(folder / "journal.sqlite").close()
    return folder


def line(monkeypatch, *words) -> Args:
    monkeypatch.setattr("sys.argv", ["run_distrl.py", *map(str, words)])
    return parse("about")


def test_the_runs_flags_hold_but_for_those_given_and_tasks_are_those_to_evaluate_on(base, monkeypatch):
    args = line(monkeypatch, "--eval", base, "--tasks", "file.txt", "--episodes", "128", "--num-workers", "2")
    assert (args.tasks.tasks, str(args.tasks.eval_tasks), args.tasks.eval_episodes) == (None, "file.txt", 128)
    assert (args.tasks.horizon, args.phones.num_workers, args.run.eval) == (7, 2, base)
    assert line(monkeypatch, "--eval", base, "--eval-tasks", "file.txt").tasks.tasks is None
    args = line(monkeypatch, "--eval", base.parent / "start.safetensors", "--eval-tasks", "file.txt")
    assert args.policy.policy == args.run.eval and args.tasks.horizon is None  # no run's
    with pytest.raises(UsageError, match="leave out --replay"):
        line(monkeypatch, "--eval", base, "--replay", base)
    with pytest.raises(UsageError, match=f"^--eval {base.parent}/none: no such file or folder: give a run,"):
        line(monkeypatch, "--eval", base.parent / "none")
    (base.parent / "text").mkdir()
    with pytest.raises(UsageError, match=f"^--eval {base.parent}/text: .*text has no config.json"):
        load_policy(line(monkeypatch, "--eval", base.parent / "text"))


def test_an_evaluation_has_its_own_repeats_and_may_have_another_judge(tmp_path, monkeypatch):
    args = Args()
    args.tasks.tasks, args.tasks.eval_repeats, args.tasks.eval_train = tmp_path / "train.txt", 2, 64
    args.judge = JudgeArgs("gemini", "gemini-x", judge_rpm=60.0, judge_votes=3)
    base = make_folder(tmp_path, "base", args)
    Journal(base / "journal.sqlite").close()
    found = line(monkeypatch, "--eval", base, f"--tasks={tmp_path}/train.txt", "--episodes=16")
    assert found.tasks.eval_tasks == args.tasks.tasks and found.tasks.eval_episodes == 16  # though it is the training's
    assert (found.tasks.eval_repeats, found.tasks.eval_train, found.judge) == (1, 0, args.judge)
    assert line(monkeypatch, "--eval", base, "--eval-repeats", "3").tasks.eval_repeats == 3
    found = line(monkeypatch, "--eval", base, "--tasks", "a.txt", "--eval-tasks", "b.txt").tasks
    assert (str(found.tasks), str(found.eval_tasks)) == ("a.txt", "b.txt")
    assert line(monkeypatch, "--eval", base, "--judge", "rules").judge == JudgeArgs()


def test_flags_of_the_run_that_say_nothing_beside_those_given_are_not_held_against_them(base, tmp_path, monkeypatch):
    args = read_args(base, Args)
    args.phones.latency, args.phones.dialogs, args.algorithm.retrace_lambda = 0.0, 0.5, 1.0
    write_args(base, args)
    found = line(monkeypatch, "--eval", base, "--devices", "emulator-5554")
    check_phones(found.phones)
    assert line(monkeypatch, "--eval", base).phones.dialogs == 0.5
    with pytest.raises(UsageError, match="--dialogs is for simulated phones"):
        check_phones(line(monkeypatch, "--eval", base, "--devices", "emulator-5554", "--dialogs", "0.1").phones)
    check_unused(line(monkeypatch, "--replay", base, "--algo", "digirl").algorithm)
    with pytest.raises(UsageError, match="--retrace-lambda: --algo digirl does not use it"):
        check_unused(line(monkeypatch, "--replay", base, "--algo", "digirl", "--retrace_lambda", "0.9").algorithm)


def test_what_eval_names_is_the_policy(base, monkeypatch):
    small().save(base / "policy.safetensors")
    (base.parent / "start.safetensors").unlink()  # it is not needed
    assert line(monkeypatch, "--eval", base).policy.policy == base / "policy.safetensors"
    with pytest.raises(UsageError, match=f"--eval {base} is the policy: leave out --policy other"):
        line(monkeypatch, "--eval", base, "--policy", "other")
    (checkpoint,) = (base / "checkpoints").glob("*.pt")
    monkeypatch.chdir(checkpoint.parent)
    assert line(monkeypatch, "--eval", checkpoint.name).tasks.horizon == 7  # its run's flags


def test_the_only_list_that_is_given_is_the_one_to_evaluate_on(base, monkeypatch):
    other = base.parent / "start.safetensors"
    tasks = line(monkeypatch, "--eval", other, "--tasks", "file.txt").tasks
    assert (tasks.tasks, str(tasks.eval_tasks)) == (None, "file.txt")
    tasks = line(monkeypatch, "--eval", other, "--tasks", "a.txt", "--eval_tasks", "b.txt").tasks
    assert (str(tasks.tasks), str(tasks.eval_tasks)) == ("a.txt", "b.txt")


def test_what_an_evaluation_that_was_cut_short_is_told(base):
    args = Args()
    assert go_on(args, base) == f"Go on with: python run_distrl.py --resume {base}"
    args.run.eval = base / "policy.safetensors"
    assert "Begin it again" in go_on(args, base) and f"--eval {args.run.eval}" in go_on(args, base)


def test_the_policy_is_the_runs_or_a_checkpoints(base, tmp_path, monkeypatch):
    def taken(path):
        args = line(monkeypatch, "--eval", path)
        folder = make_folder(tmp_path, "evaluation", args)
        evaluation.take_policy(args, folder)
        assert json.loads((folder / "config.json").read_text())["policy"]["policy"] == str(args.policy.policy)
        return [p.tolist() for p in evaluation_policy(args.policy.policy)]

    def evaluation_policy(path):
        from policy import AutoUIPolicy

        return AutoUIPolicy.load(path).parameters()

    trained, (checkpoint,) = [p.tolist() for p in small(seed=1).parameters()], (base / "checkpoints").iterdir()
    assert taken(base) == taken(checkpoint) == trained
    small(seed=2).save(base / "policy.safetensors")  # the run has ended since
    last = [p.tolist() for p in small(seed=2).parameters()]
    assert taken(base) == taken(base / "policy.safetensors") == last and taken(checkpoint) == trained
    checkpoint.write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"--eval .*\.pt: no checkpoint of a run"):
        taken(checkpoint)


def test_tasks_are_played_in_their_order_in_both_ways_and_every_screen_is_kept(base, tmp_path, monkeypatch):
    run = begin(tmp_path / "evaluation", small())
    run.args.run.eval, run.eval_tasks = base, generate_tasks("test", 5)
    run.schedule = Schedule(TASKS, 1, (0.1, 1.0))
    asked = scripted(run, [True, False, None, True, True] * 2)
    latencies = []
    evaluation.phases(run, SimpleNamespace(set_latency=latencies.append))
    assert [episode.task for episode in asked] == run.eval_tasks * 2
    assert [episode.greedy for episode in asked] == [True] * 5 + [False] * 5
    results = run.finish()
    assert (results["success_rate"], results["n"], results["unjudged"]) == (0.75, 4, 1)
    assert results["warmup_success_rate"] is None and results["evaluated"] == str(base)
    names = {path.name for path in run.folder.iterdir()}
    assert {"results.json", "report.html", "curves.png", "config.json"} <= names
    page = (run.folder / "report.html").read_text()
    assert "Screens of 10 of 10 trajectories are in this page (10 as" in page and "no metrics.csv" not in page


def test_repeats_are_played_after_training_with_other_seeds_and_their_flips_are_counted(tmp_path):
    run = begin(tmp_path / "run", small())
    run.eval_tasks, run.args.tasks.eval_repeats = TASKS[:3], 2
    scripted(run, [True] * 6)
    evaluation.play(run, "warmup")
    assert evaluation.complete(run, "warmup") and len(run.evaluations["warmup"]) == 6  # once, greedy and sampled
    # Greedy, sampled, again.
    verdicts = [True, True, False], [True, True, True], [True, False, False], [True, True, None]
    asked = scripted(run, [success for mode in verdicts for success in mode])
    evaluation.play(run, "final")
    assert evaluation.complete(run, "final") and [e.greedy for e in asked] == [*[True] * 3, *[False] * 3] * 2
    assert [e.task for e in asked] == TASKS[:3] * 4 and asked[0].seed == asked[3].seed
    assert len({e.seed for e in asked}) == 6 and not {e.seed for e in asked[:6]} & {e.seed for e in asked[6:]}
    found = evaluation.results(run)
    assert found["card"]["flips"] == {"share": 1 / 5, "pairs": 5}  # of six pairs one has no verdict
    assert found["n"] == 6 and found["card"]["repeats"] == 2


def test_a_short_list_that_is_played_again_and_again_is_no_more_tasks(tmp_path):
    run = begin(tmp_path / "run", small())
    run.eval_tasks = [TASKS[i % 2] for i in range(24)]  # as --eval-episodes 24 makes of two
    run.evaluations["final"] = [(task.family, True, i % 2 == 0, i) for i, task in enumerate(run.eval_tasks)]
    Journal(run.journal_path).close()
    found = evaluation.results(run)
    assert (found["n"], found["ci95"]) == (24, list(wilson_interval(1, 2)))  # one of two, not 12 of 24
    assert found["card"]["flips"] == {"share": 0.0, "pairs": 2 * 12 * 11 // 2}


def test_evaluations_on_the_way_that_end_together_are_all_told_with_when_they_were_asked_for(tmp_path, capsys):
    run = begin(tmp_path / "run", small())
    run.eval_tasks, run.pool = TASKS[:2], SimpleNamespace(env_steps=0)
    for name, outcomes in (("after 20", (True, False)), ("after 40", (True, True)), ("after 60", (True,))):
        run.evaluations[name] = [("alarm", True, success, number) for number, success in enumerate(outcomes)]
    last = evaluation.on_the_way(run)
    assert last == {"eval/success_rate": 1.0, "eval/n": 2, "eval/trajectories": 40}
    run.record(last)
    assert list(run.evaluations) == ["after 60"] and evaluation.on_the_way(run) == {}
    assert [point[1:3] for point in evaluations(read_run(run.folder))] == [(20, 0.5), (40, 1.0)]
    assert "greedy, after 20 trajectories: 0.50 (n 2)" in capsys.readouterr().out


def test_a_budget_that_ends_with_an_evaluations_last_episodes_pauses_it(tmp_path):
    run = begin(tmp_path / "run", small())
    run.eval_tasks, run.asked_judge = TASKS[:2], time.monotonic()  # the ledger was looked at a moment ago
    run.ledger = SimpleNamespace(stopped=lambda: "the budget is used up", summary=dict)
    scripted(run, [True, None, True, None])
    evaluation.play(run, "final")
    assert run.paused and run.stopping and run.evaluations["final"] == [] and not evaluation.complete(run, "final")


def test_training_tasks_are_played_greedily_at_the_end_and_are_the_column_train(base, tmp_path):
    run = begin(tmp_path / "run", small())
    run.args.run.eval, run.eval_tasks, run.args.tasks.eval_train = base, generate_tasks("test", 2), 2
    asked = scripted(run, [True] * 4 + [False, True, True, True])
    evaluation.phases(run, SimpleNamespace(set_latency=lambda latency: None))
    played = [e for e in asked if e.split == "final_train"]
    assert [e.task for e in played] == two_sets(run.train_tasks, 2) and all(e.greedy for e in played)
    assert [e.task.family.startswith("web_") for e in played] == [False, True] * 2 and asked[-4:] == played
    found = run.finish()
    assert {name: (x["train"]["success_rate"], x["train"]["n"]) for name, x in found["sets"].items()} == {
        "General": (0.5, 2), "Web Shopping": (1.0, 2)}  # fmt: skip
    assert found["success_rate"] == 1.0 and found["n"] == 2 and found["trajectories"] == 0  # in no other number
    assert found["card"]["train_success"].startswith("greedy, after training, the first 2 training tasks")
    page = (run.folder / "report.html").read_text()
    assert "“final_train” failed" not in page  # the worst tasks are the held-out ones


# ---------------------------------------------------------------------- what is kept to be looked at


def test_shares_of_training_and_evaluation_episodes_keep_their_screens():
    schedule, kept = Schedule(TASKS, 1, (0.25, 1.0)), []
    schedule.training = True
    kept = [schedule.next() for _ in range(400)]
    assert 70 < sum(episode.screens for episode in kept) < 130
    assert len({episode.task.family for episode in kept if episode.screens}) == len({task.family for task in TASKS})
    schedule.evaluate(TASKS, "final", (True,), 1)
    assert all(schedule.next().screens for _ in TASKS)
    plain = Schedule(TASKS, 1)
    plain.training = True
    again = [plain.next() for _ in range(400)]  # the same tasks and seeds, whatever is kept
    assert [(a.task, a.seed) for a in again] == [(b.task, b.seed) for b in kept] and not any(a.screens for a in again)


def test_an_episode_keeps_its_screens_and_where_its_seconds_went(phone):
    from android_env import Action, AndroidEnv, format_action
    from evaluator import RuleJudge
    from worker import Sample

    texts = iter([format_action(Action("PRESS_HOME")), "garbage", format_action(Action("STATUS_TASK_COMPLETE"))])

    def act(prompt, feature, greedy):
        return Sample(next(texts), np.array([1], np.int32), np.array([-1.0], np.float32), 1)

    env = AndroidEnv(phone, None, RuleJudge())
    played = rollout(env, Episode(TASKS[0], seed=1, screens=True), act)
    played = Trajectory.from_bytes(played.to_bytes())
    assert len(played.info["screens"]) == 4
    parts = played.info["parts"]
    assert set(parts) == {"reset", "input", "screen", "judge", "policy"} and all(value > 0 for value in parts.values())
    assert 0.5 * played.info["seconds"] < sum(parts.values()) <= played.info["seconds"]


def test_the_journal_knows_what_the_last_update_made_of_a_trajectory(tmp_path):
    run = begin(tmp_path / "run", policy := small())
    for seed in range(2):
        info = {"worker": 0, "reason": "", "serial": "x", "screens": ["x"]}
        played = play(policy, bool(seed), steps=3, seed=seed)
        played = dataclasses.replace(played, info=info, invalid=[False, True, False])
        run.on_trajectory(Episode(TASKS[0], seed=0), played.to_bytes())
        run.receive()
    _, held = run.learner.replay.get(run.learner.replay.ids)
    assert not any("screens" in trajectory.info for trajectory in held)  # the journal has them
    run.journal.close()
    for _ in range(2):
        run.learner.update()
    with torch.no_grad():
        batch = run.learner._batch(held, run.learner.replay.ids)
        _, values = run.learner._values(batch)  # the critics have not moved since
    run.note_learnt()
    with Journal(run.journal_path, readonly=True) as journal:
        found = journal.learnt()
    assert found and run.learner.learnt == {}
    for id, (update, text) in found.items():
        known, advantages = json.loads(text)
        assert update in (1, 2) and len(known) == len(advantages) == 3
        assert advantages[1] == 0 != advantages[0]  # an invalid action has none
        if update == 2:
            assert known == pytest.approx(values[4 * (id - 1) : 4 * id - 1].tolist(), abs=1e-3)


# ---------------------------------------------------------------------- the tracker


def test_a_tracked_evaluation_shows_a_success_and_a_failure_in_one_run_when_resumed_too(tmp_path, monkeypatch):
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("GEMINI_API_KEY", "secret-of-mine")):
        monkeypatch.setenv(name, value)
    run = begin(tmp_path / "run", small())
    run.eval_tasks, run.schedule = TASKS[:2], Schedule(TASKS, 1, (0.0, 1.0))
    ids = []
    for split in ("warmup", "final"):  # two sessions of a run
        scripted(run, [True, False] * 2)
        run.tracker = start_tracking(run.args, run.folder)
        ids.append(run.tracker.id)
        evaluation.play(run, split)
        run.tracker.finish()
    assert ids[0] == ids[1]
    assert sorted(path.name for path in (run.folder / "videos").iterdir()) == sorted(
        f"{split}-{outcome}.gif" for split in ("warmup", "final") for outcome in ("success", "failure"))
    files = list(run.folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    deadline = time.monotonic() + 20  # wandb's own process writes them, and `finish` does not wait for it offline
    while not all(b"videos/failure" in path.read_bytes() for path in files) and time.monotonic() < deadline:
        time.sleep(0.05)
    for data in (path.read_bytes() for path in files):
        assert b"eval/success_rate" in data and b"videos/success" in data and b"videos/failure" in data
        assert b"learning_rate" in data and b"secret-of-mine" not in data
    assert len(list(run.folder.glob("wandb/offline-run-*/files/media/videos/videos/*.gif"))) == 4


@pytest.mark.slow
def test_eval_as_its_users_start_it(tmp_path):
    """A run, then its policy alone on a file's tasks; whole programs."""
    small().save(tmp_path / "p.safetensors")
    flags = [*TINY, "--policy", tmp_path / "p.safetensors", "--keep-screens", "1", "--total-trajectories", "12"]
    code, out, err = Program(*flags, "--runs-dir", tmp_path / "runs").end(120)
    assert code == 0 and err == "", (out, err)
    (folder,) = (tmp_path / "runs").iterdir()
    page = (folder / "report.html").read_text()
    assert "as the phone showed them" in page and "Timing" in page
    (tmp_path / "tasks.txt").write_text("\n".join(task.instruction for task in generate_tasks("test", 3)) + "\n")
    words = ["--eval", folder, "--tasks", tmp_path / "tasks.txt", "--episodes", "4", "--runs-dir", tmp_path / "evals"]
    code, out, err = Program(*words).end(120)
    assert code == 0 and err == "" and "(0 in training" in out and f": {folder}, " in out, (out, err)
    (found,) = (tmp_path / "evals").iterdir()
    results = json.loads((found / "results.json").read_text())
    assert results["n"] + results["unjudged"] == 4 and results["task_set"]["eval_different"] == 3
    assert results["card"]["step_budget"] == [3]  # the run's
    with Journal(found / "journal.sqlite", readonly=True) as journal:
        assert journal.count("final") == 8 == journal.count()


