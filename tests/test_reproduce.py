"""The comparisons' runs: commands, what is skipped and resumed, tasks for generalisation. Tables: test_plot.py."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_learner import small
from test_run import Program

from args import Args
from tasks import app_of, generate_tasks, load_tasks, novelty, overlap

ROOT = Path(__file__).resolve().parent.parent


def test_every_method_is_made_of_flags_that_there_are(scripts):
    run, _ = scripts
    known = {name for group in vars(Args()).values() for name in vars(group)}
    for name, (label, flags) in run.METHODS.items():
        assert label and set(flags) <= known, name
    assert all(set(methods) <= run.METHODS.keys() for methods in run.EXPERIMENTS.values())
    used = {method for methods in run.EXPERIMENTS.values() for method in methods}
    assert used == run.METHODS.keys()  # nothing that no one runs
    assert all(set(flags) <= known for flags, _ in run.BUDGETS.values())


def test_commands(scripts, tmp_path):
    run, _ = scripts
    folder, line = run.command("digirl_sync", 2, "small", tmp_path, ["--judge", "gemini", "--train-minutes", "9"])
    assert folder == tmp_path / "small" / "digirl_sync" / "2"
    assert line == ["run_distrl.py", "--exp-name", "digirl_sync", "--seed", "2", "--runs-dir", str(folder),
                    "--eval-episodes", "64", "--eval-train", "32", "--eval-tasks", f"{tmp_path}/small/tasks/eval.txt",
                    "--eval-repeats", "2", "--eval-every", "0", "--algo", "digirl", "--gamma", "0.5",
                    "--updates-per-trajectory", "1.25", "--replay-capacity", "20000", "--sync",
                    "--judge", "gemini", "--train-minutes", "9"]  # fmt: skip
    _, line = run.command("aride", 1, "full", tmp_path, [])
    assert " ".join(line[7:]) == ("--train-minutes 3 --eval-episodes 192 --eval-train 64 "
                                  f"--eval-tasks {tmp_path}/full/tasks/eval.txt --eval-repeats 2 --eval-every 0")
    _, line = run.command("priority_weights_1_0_0", 1, "full", tmp_path, [])
    assert line[-4:] == ["--priority-weights", "1", "0", "0"]
    _, line = run.command("unseen", 1, "full", tmp_path, [])
    assert f"{tmp_path}/full/tasks/train.txt" in line and f"{tmp_path}/full/tasks/test.txt" in line
    assert not any("eval.txt" in word for word in line)
    _, line = run.command("collect_4", 1, "full", tmp_path, [])  # the generator's tasks, one of them, once
    assert not {"--eval-tasks", "--eval-repeats", "--eval-train"} & set(line) and "None" not in line
    line = run.command("pilot_both", 1, "full", tmp_path, [])[1]
    assert " ".join(line[-9:]) == ("--algo digirl --gamma 0.5 --sync --updates-per-trajectory 1.25 "
                                   "--replay-capacity 20000")


def test_commands_name_no_folder_of_this_machine(scripts):
    run, _ = scripts
    folder, line = run.command("unseen", 1, "full", ROOT / "runs" / "reproduce", [])
    assert folder == ROOT / "runs" / "reproduce" / "full" / "unseen" / "1" and str(ROOT) not in shlex.join(line)
    assert "runs/reproduce/full/unseen/1" in line and "runs/reproduce/full/tasks/train.txt" in line


def fake_play(codes: dict, played: list):
    """In the place of `run.play`: makes a run's folder, with results.json where the code is 0."""

    def play(folder, line, run):
        played.append((folder.parent.name, folder.name, run is not None))
        code = codes.get(folder.parent.name, 0)
        run = run or folder / "sim__x"
        run.mkdir(parents=True, exist_ok=True)
        (folder / "command.txt").write_text(" ".join(line) + "\n")
        (run / "config.json").write_text("{}")
        if code == 0:
            (run / "results.json").write_text("{}")
        return code

    return play


def test_what_is_done_is_skipped_what_was_stopped_is_resumed(scripts, tmp_path, monkeypatch, capsys):
    run, _ = scripts
    written: list = []
    monkeypatch.setattr(run, "write_held_out", written.append)

    def call(*words, **codes):
        played: list = []
        monkeypatch.setattr(run, "play", fake_play(codes, played))
        monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), *words])
        return run.main(), played

    some = ("--experiment", "table1", "--budget", "small", "--methods", "aride", "vtrace", "--seeds", "1", "2")
    assert call(*some, "--dry-run") == (0, []) and not list(tmp_path.iterdir())
    assert capsys.readouterr().out.count("$ python run_distrl.py --exp-name") == 4
    assert not written
    code, played = call(*some, vtrace=130)
    assert code == 130 and played == [("aride", "1", False), ("vtrace", "1", False)]
    assert written == [tmp_path / "small" / "tasks"]
    assert "V-trace (IMPALA), asynchronous, seed 1: stopped with exit code 130" in capsys.readouterr().err
    code, played = call(*some)
    assert code == 0 and played == [("vtrace", "1", True), ("aride", "2", False), ("vtrace", "2", False)]
    assert call(*some) == (0, [])
    code, played = call("--experiment", "efficiency", "--budget", "small", "--methods", "aride", "--seeds", "1", "2")
    assert (code, played) == (0, [])  # the same runs
    assert call(*some, "--judge", "gemini")[0] == 2  # other flags: not the same run
    assert "was made by another command" in capsys.readouterr().err
    for flag, known in {"--seed": "--seed", "--algo=vtrace": "--algo", "--replay_capacity": "--replay-capacity",
                        "--sync": "--sync", "--no-sync": "--sync"}.items():  # would make one method of two
        with pytest.raises(SystemExit):
            call(*some, flag)
        assert f"{known} is what is compared" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        call("--experiment", "table1", "--methods", "collect_4")


def test_play_notes_its_command_and_returns_the_exit_code(scripts, tmp_path):
    run, _ = scripts
    line = ["-c", "import sys; sys.exit(3)"]
    assert run.play(tmp_path / "a", line, None) == 3
    assert run.state(tmp_path / "a", line) == ("new", None)
    assert run.state(tmp_path / "a", ["-c", "other"]) == ("new", None)  # nothing has begun there
    (tmp_path / "a" / "sim__x").mkdir()
    (tmp_path / "a" / "sim__x" / "config.json").write_text("{}")
    assert run.state(tmp_path / "a", line) == ("stopped", tmp_path / "a" / "sim__x")
    assert run.state(tmp_path / "a", ["-c", "other"]) == ("other flags", None)


@pytest.mark.parametrize(("few", "many"), [("--max-judge-calls 9", "--max-judge-calls 20"), ("--max_judge_calls 9", ""),
                                           ("--max-judge-calls=9", "--max_judge_calls=20")])  # fmt: skip
def test_a_run_that_used_up_its_judges_calls_goes_on_with_more(scripts, tmp_path, monkeypatch, few, many):
    run, _ = scripts
    (tmp_path / "sim__x").mkdir()
    (tmp_path / "sim__x" / "config.json").write_text("{}")
    (tmp_path / "command.txt").write_text(f"run_distrl.py {few} --judge gemini\n")
    line = ["run_distrl.py", *many.split(), "--judge", "gemini"]
    assert run.state(tmp_path, [*line, "--seed", "1"]) == ("other flags", None)
    assert run.state(tmp_path, line) == ("stopped", tmp_path / "sim__x")
    started: list = []
    process = SimpleNamespace(wait=lambda: 0)
    monkeypatch.setattr(run.subprocess, "Popen", lambda words, **how: started.append(words[2:]) or process)
    assert run.play(tmp_path, line, tmp_path / "sim__x") == 0
    assert started == [["run_distrl.py", "--resume", str(tmp_path / "sim__x"), *many.split()]]


def test_a_pause_is_no_end_and_what_is_named_twice_is_run_once(scripts, tmp_path, monkeypatch, capsys):
    run, _ = scripts
    monkeypatch.setattr(run, "write_held_out", lambda folder: None)
    monkeypatch.setattr(run, "play", lambda folder, line, run: 0)  # without results.json
    words = "--experiment table1 --methods aride aride --seeds 1 1 --judge gemini --max-judge-calls 9".split()
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), *words])
    assert run.main() == 1
    out, err = capsys.readouterr()
    assert "seed 1: paused: the same command with a larger --max-judge-calls goes on" in err
    assert out.count("$ python") == 1 and "run 1 of 1" in out


def test_held_out_tasks_are_of_both_sets_alike_all_different_and_in_no_training_list(scripts, tmp_path):
    run, _ = scripts
    run.write_held_out(tmp_path)
    held, tuned = load_tasks(tmp_path / "eval.txt"), load_tasks(tmp_path / "tune.txt")
    for tasks in (held, tuned):
        assert len(tasks) == len(set(tasks)) == 192
        assert [task.family.startswith("web_") for task in tasks] == [False, True] * 96
    assert not set(held) & set(tuned)
    train = [task for seed in (1, 2, 3) for task in generate_tasks("train", 8000, seed)]
    assert overlap(train, held)["exact"] == overlap(train, tuned)["exact"] == 0


def test_generalisation_keeps_instances_templates_and_apps_apart(scripts, tmp_path):
    run, _ = scripts
    run.write_unseen(tmp_path, each=20)
    train, test = load_tasks(tmp_path / "train.txt"), load_tasks(tmp_path / "test.txt")
    assert novelty(train, test) == ["instance", "template", "app"] * 20
    assert overlap(train, test) == {"exact": 0, "template": 20 + sum(
        task.template in {t.template for t in train} for task in test[2::3])}  # fmt: skip
    assert not {app_of(task) for task in train} & set(run.HELD_APPS)
    assert not {task.template for task in train} & run.held_templates()
    assert len(train) > 1000 and len({task.family for task in train}) >= 15
    assert len({task.family for task in test[1::3]}) >= 8  # templates of many families
    before = (tmp_path / "test.txt").read_text()
    run.write_unseen(tmp_path, each=20)
    assert (tmp_path / "test.txt").read_text() == before


# ---------------------------------------------------------------------- both, as their users start them


@pytest.mark.slow
def test_a_comparison_that_is_cut_short_goes_on_and_is_drawn(tmp_path):
    small().save(tmp_path / "p.safetensors")
    words = f"""--experiment efficiency --budget small --methods digirl_sync aride --seeds 1 --out {tmp_path}
        --num-workers 2 --latency 0 --policy {tmp_path}/p.safetensors --train-minutes 0.1 --eval-episodes 4
        --eval-train 2 --horizon 3
        --learning-starts 4 --critic-warmup 2 --batch-trajectories 2""".split()
    script = Program(*words, start=("reproduce/run.py",))
    for _ in range(2):  # the second run's
        script.until("Training ...")
    os.killpg(script.process.pid, signal.SIGINT)  # Ctrl-C: to all that run in this terminal
    code, out, err = script.end(60)
    assert code == 130 and "A-RIDE, asynchronous (DistRL), seed 1: stopped with exit code 130" in err, (out, err)
    assert (tmp_path / "small" / "tasks" / "eval.txt").read_text().count("\n") == 192

    code, out, err = Program(*words, start=("reproduce/run.py",)).end(120)
    assert code == 0 and err == "", (out, err)
    assert "# DigiRL, synchronous, seed 1: done" in out and "# A-RIDE, asynchronous (DistRL), seed 1: stopped" in out
    for method in ("digirl_sync", "aride"):
        (path,) = (tmp_path / "small" / method / "1").glob("*/results.json")
        found = json.loads(path.read_text())
        sets, final = found["sets"], found["greedy"]["final"]
        assert [x["train"]["n"] + x["train"]["unjudged"] for x in sets.values()] == [2, 2]
        assert found["card"]["repeats"] == 2 and final["n"] + final["unjudged"] == 8 and found["card"]["flips"]["pairs"]
        assert found["greedy"]["warmup"]["n"] + found["greedy"]["warmup"]["unjudged"] == 4
        assert found["card"]["policy_sha256"] and found["task_set"]["eval_different"] == 4

    plot = ("--experiment", "efficiency", "--budget", "small", "--out", tmp_path, "--to", tmp_path / "results")
    code, out, err = Program(*plot, start=("reproduce/plot.py",)).end(60)
    assert code == 0 and "2 runs" in out and "Not run: digirl, aride_sync." in out, (out, err)
    outcomes = (tmp_path / "results" / "raw" / "aride__1.outcomes.csv").read_text().splitlines()
    assert len(outcomes) > 5 and float(outcomes[-1].split(",")[0]) <= 0.1
