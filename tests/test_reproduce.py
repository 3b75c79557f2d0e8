"""The comparisons' scripts: commands, what is skipped and resumed, tasks for generalisation, tables from runs."""

import csv
import importlib
import json
import math
import os
import shlex
import signal
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_learner import small
from test_run import Program

from args import Args
from journal import LIGHT, Journal
from run_data import wilson_interval
from tasks import app_of, generate_tasks, load_tasks, novelty, overlap

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def scripts():
    """(run, plot), the two scripts as modules."""
    sys.path.insert(0, str(ROOT / "reproduce"))
    try:
        yield importlib.import_module("run"), importlib.import_module("plot")
    finally:
        sys.path.remove(str(ROOT / "reproduce"))


# ---------------------------------------------------------------------- run.py


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


# ---------------------------------------------------------------------- plot.py


def rate(successes: int, n: int = 100) -> dict:
    return {"success_rate": successes / n, "n": n, "ci95": list(wilson_interval(successes, n))}


def write_journal(path: Path, successes: list[bool | None], minutes: float) -> None:
    """Training episodes that ended as often a minute; then some that were on their way at the end, and evaluations."""
    Journal(path).close()
    rows = [(60 * minutes * (i + 1) / len(successes), success, "train") for i, success in enumerate(successes)]
    rows += [(60 * minutes + i, True, split) for split in ("train", "final", "final_train") for i in range(1, 31)]
    with sqlite3.connect(path) as database:
        columns = LIGHT.removeprefix("id, ") + ", data"
        marks = "?, 'x', 'x', ?, 0, 1, 0, 0, ?, '', x''"
        database.executemany(f"INSERT INTO trajectories ({columns}) VALUES ({marks})", rows)
    database.close()


def write_run(folder: Path, method: str, seed: int, successes: int, end: float, a_minute: int = 100) -> None:
    """A finished run as run.py leaves it: 10 minutes whose success rises to `end` in ten steps. Each of its rates is
    another number, made from `successes`, so that a table with two of them exchanged is seen."""
    place = folder / method / str(seed) / "sim__x"
    place.mkdir(parents=True)
    line = f"run_distrl.py --exp-name {method} --seed {seed} --runs-dir runs/{method}\n"
    (place.parent / "command.txt").write_text(line)
    config = {"tasks": {"train_minutes": 10.0}, "run": {"runs_dir": f"/another/clone/runs/{method}"}}
    (place / "config.json").write_text(json.dumps(config))
    n = 10 * a_minute
    results = {
        "seed": seed, "trajectories": n + 30, "updates": 7, "stale": n // 20, "train_seconds": 601.0,
        "wall_seconds": 1200.0, "judge": "rules", "phones": "simulated", "date": "2026-01-01",
        "greedy": {"warmup": rate(48), "final": rate(successes)},
        "sampled": {"warmup": rate(30), "final": rate(successes - 7)},
        "sets": {"General": {"warmup": rate(41), "final": rate(successes + 3), "train": rate(91)},
                 "Web Shopping": {"warmup": rate(43), "final": rate(successes - 5), "train": rate(88)}},
        "new": {kind: {"warmup": rate(31 + i), "final": rate(successes + 1 + i)}
                for i, kind in enumerate(("instance", "template", "app"))},
        "task_set": {"eval": "/another/clone/eval.txt", "eval_different": 96, "overlap": {"exact": 0, "template": 9}},
        "card": {"machine": "m", "code_sha256": "a" * 64, "eval_sha256": "b" * 64, "policy_sha256": "c" * 64,
                 "judge_error": "0 by definition", "train_success": "greedy", "repeats": 2, "git_commit": "d",
                 "flips": {"share": 0.1, "pairs": 100}, "load": {"start": [0.5, 0.5, 0.5]}},
    }  # fmt: skip
    (place / "results.json").write_text(json.dumps(results))
    with (place / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        names = "stats/rho_mean stats/policy_lag_mean losses/entropy stats/ess stats/priority_ess".split()
        writer.writerow(["wall_seconds", "trajectories", *names])
        writer.writerows([60 * i, a_minute * i, 1.0, 2.0, 0.5, 0.9, 0.8] for i in range(1, 11))
    # In each minute as many of every 20 episodes succeed: 2, 4, ... of them for end = 1.
    write_journal(place / "journal.sqlite", [i % 20 < 2 * end * (i * 10 // n + 1) for i in range(n)], 10)


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs" / "full"
    for seed, (good, poor) in enumerate([(80, 60), (84, 61), (82, 65)], 1):
        write_run(folder, "aride", seed, good, 1.0)
        write_run(folder, "digirl_sync", seed, poor, 0.5)
    return tmp_path


def cells(text: str, label: str) -> list[str]:
    """The means in the table's first row that has this label."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
    return [cell.strip().split(" ± ")[0] for cell in line.split("|")[2:-1]]


def test_numbers_by_hand(scripts):
    _, plot = scripts
    found = plot.number([80.0, 84.0, 82.0])
    assert (found.mean, found.deviation, found.n) == (82.0, 2.0, 3)
    assert found.half == pytest.approx(4.303 * 2 / math.sqrt(3)) and str(found) == "82.0 ± 2.0 [77.0, 87.0]"
    assert str(plot.number([80.0, math.nan])) == "80.0" and str(plot.number([])) == "-"
    assert str(plot.number([80.0, 84.0, 82.0], least=6.0)) == "82.0 ± 2.0 [76.0, 88.0]"
    assert str(plot.number([80.0, 84.0, 82.0], least=90.0, most=100.0)) == "82.0 ± 2.0 [0.0, 100.0]"


def test_differences_are_taken_seed_by_seed_and_noise_is_called_noise(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync", "vtrace"])
    assert list(done) == ["aride", "digirl_sync"] and [run.seed for run in done["aride"]] == [1, 2, 3]
    found = plot.difference(done["aride"], done["digirl_sync"])  # 20, 23, 17
    assert found == f"+20.0 ± {4.303 * 3 / math.sqrt(3):.1f}"
    assert plot.difference(done["aride"], done["digirl_sync"][1:]) == "+20.0, 2 seeds: no claim"  # 23, 17
    assert plot.difference(done["aride"][:1], done["digirl_sync"]) == "+20.0, one seed: no claim"
    assert plot.difference(done["aride"][:1], done["digirl_sync"][1:]) == "-"
    assert plot.rate(done["aride"][:1], "greedy", "final") == "80.0 [71.1, 86.7]"  # Wilson's
    assert plot.rate(done["aride"], "greedy", "final") == "82.0 ± 2.0 [76.9, 87.1]"  # by chance; Student's is 5.0
    every = done["aride"] + done["digirl_sync"]
    for run in every:  # 100 verdicts of 50 tasks, 3 seeds
        run.results["card"]["flips"]["share"] = 0.4
    assert plot.difference(done["aride"], done["digirl_sync"]) == f"+20.0 ± {196 * math.sqrt(0.4 / 150):.1f}"
    for run in every:
        run.results["card"]["flips"]["share"] = 1.0
        run.results["greedy"]["final"]["n"] = 30
    assert plot.difference(done["aride"], done["digirl_sync"]) == "+20.0 ± 29.2, within noise"


def test_training_success_is_the_last_100_episodes_up_to_the_deadline(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["digirl_sync", "aride"])
    one = done["aride"][0]
    assert one.deadline == 10 and len(one.outcomes) == one.trajectories == 1000  # not the 30 that came later
    minutes, success = one.success()
    assert (minutes[0], success[0]) == (pytest.approx(1.0), 0.1) and one.last_success() == success[-1] == 1.0
    assert one.success("trajectories")[0] == [*range(100, 1001)]
    assert one.minutes_to(0.05) == pytest.approx(1.0)  # from 100 episodes on
    # In minute 5 half of every 20 succeed: with the last of these, in the tenth place of its 20, half of the 100 do.
    assert one.minutes_to(0.5) == pytest.approx(4.9)
    assert math.isnan(done["digirl_sync"][0].minutes_to(0.51))


def test_the_mean_over_the_budget_weighs_minutes_not_episodes(scripts):
    _, plot = scripts
    outcomes = [SimpleNamespace(minutes=1.0, success=True)] * 25 + [SimpleNamespace(minutes=3.0, success=False)] * 25
    run = plot.Done("aride", 1, Path("."), "", {}, {}, [], outcomes, 4.0)
    assert run.mean_success() == pytest.approx((3 * 1.0 + 1 * 0.5) / 4)
    assert math.isnan(plot.Done("aride", 1, Path("."), "", {}, {}, [], outcomes[:24], 4.0).mean_success())
    assert math.isnan(run.last_success()) and run.success() == ([], [])  # not yet 100


def test_efficiency_is_the_time_to_the_synchronous_digirls_last_success(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["digirl_sync", "aride"])
    text, figures = plot.efficiency(done)
    assert "last training success: 50.0 % (n 3)" in text and set(figures) == {"efficiency", "causes"}
    label = "A-RIDE, asynchronous (DistRL)"
    mean = 100 * done["aride"][0].mean_success()
    assert cells(text, label) == ["1000.0", "4.9", "3 of 3", "2.0x", f"{mean:.1f}", "100.0", "10.0", "7.0", "82.0",
                                  "770 to 800", "78.5"]  # fmt: skip
    done["aride"][1].outcomes = done["digirl_sync"][0].outcomes[:900]  # ends at 0.45
    assert cells(plot.efficiency(done)[0], label)[1:4] == ["4.9", "2 of 3", "-"]
    for run in done["digirl_sync"]:
        run.results["sampled"]["warmup"] = rate(50)
    success, text = plot.reference(done)
    assert math.isnan(success) and text.startswith("No F: ") and "not above the warm start's" in text
    assert math.isnan(done["aride"][0].minutes_to(success)) and "hence no F" in plot.reference({"aride": []})[1]


@pytest.mark.parametrize("experiment", ["table1", "efficiency", "ablation", "collection", "sensitivity", "staleness",
                                        "generalisation", "pilot"])  # fmt: skip
def test_every_experiment_has_its_page_and_its_figures(scripts, tmp_path, monkeypatch, capsys, experiment):
    run, plot = scripts
    for method in run.EXPERIMENTS[experiment][:-1]:  # the last is still to come
        for seed in (1, 2):
            write_run(tmp_path / "runs" / "small", method, seed, 70 + seed, 0.8, 10 if "sync_" in method else 20)
    words = ["--experiment", experiment, "--budget", "small", "--out", tmp_path / "runs", "--to", tmp_path / "results"]
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, words)])
    assert plot.main() == 0
    page = (tmp_path / "results" / f"{experiment}.md").read_text()
    assert page in capsys.readouterr().out and f"Not run: {run.EXPERIMENTS[experiment][-1]}." in page
    assert "nan" not in page and "phones: simulated; judge: rules" in page and "code: aaaaaaaaaaaa;" in page
    assert "whose instruction is trained on: 0; whose template is: 9" in page and "Fewer than 3 seeds: no claim" in page
    assert "WARNING" not in page and ("the paper" in page.lower() or experiment == "pilot")
    first = run.EXPERIMENTS[experiment][0]
    assert f"\npython run_distrl.py --exp-name {first} --seed 1 --runs-dir runs/{first}\n" in page
    assert "--seed 2" not in page
    pictures = list((tmp_path / "results").glob("*.png"))
    assert pictures and all(f"]({p.name})" in page and p.read_bytes().startswith(b"\x89PNG") for p in pictures)
    raw = tmp_path / "results" / "raw"
    names = [f"{method}__{seed}" for method in run.EXPERIMENTS[experiment][:-1] for seed in (1, 2)]
    kinds = ("json", "csv", "outcomes.csv", "config.json", "command.txt")
    assert {path.name for path in raw.iterdir()} == {f"{name}.{kind}" for name in names for kind in kinds}
    assert not any("/another/clone" in path.read_text() for path in raw.iterdir())
    assert (raw / f"{first}__2.outcomes.csv").read_text().splitlines()[:2] == ["minutes,success", "0.0500,1"]
    table = {  # each column's number is another one
        "table1": ("DigiRL, synchronous", ["91.0", "74.5", "88.0", "66.5", "71.5", "64.5"]),
        "ablation": ("without DPER", ["71.5", "64.5"]),
        "collection": ("asynchronous", ["4", "20.0", "100 %", "2.0x", "2"]),
        "sensitivity": ("--priority-weights", ["1 0 0", "71.5", "7.0", "2"]),
        "staleness": ("at most 1 publications old on arrival", ["71.5", f"{100 * 10 / 230:.1f}", "2.0", "7.0", "2"]),
        "generalisation": ("A-RIDE, asynchronous (DistRL)", ["before", "31.0", "32.0", "33.0", "2"]),
        "pilot": ("with both", ["74.5", "66.5", "71.5", "64.5"]),
    }.get(experiment)
    if table:
        assert cells(page, table[0])[: len(table[1])] == table[1]
    if experiment == "table1":
        assert cells(page, "warm start")[:6] == ["", "41.0", "", "43.0", "48.0", "30.0"]
    if experiment == "generalisation":
        assert "| after | 72.5 ± 0.7 [" in page and "| 73.5 ± 0.7 [" in page and "| 74.5 ± 0.7 [" in page
    (tmp_path / "runs").rename(tmp_path / "gone")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--kept"])
    assert plot.main() == 0 and (tmp_path / "results" / f"{experiment}.md").read_text() == page
    if experiment == "sensitivity":
        assert "| --entropy-coef | 0.003 (default) |" in page and "| 50 1 0.01 (default) |" in page


def test_runs_that_may_not_be_compared_are_told_loudly(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync"])
    assert "WARNING" not in plot.provenance(done, "full")
    done["aride"][0].results["card"]["code_sha256"] = "e" * 64
    done["aride"][1].results["card"].pop("eval_sha256")
    done["aride"][2].results["train_seconds"] = 500.0
    done["digirl_sync"][0].results["card"]["machine"] = "n"
    page = plot.provenance(done, "full")
    for said in ("more than one code: aaaaaaaaaaaa and eeeeeeeeeeee", "training took 500 to 601 s",
                 "more than one list of held-out tasks: bbbbbbbbbbbb and not recorded",
                 "more than one machine: m and n"):  # fmt: skip
        assert f"\n**WARNING, not comparable: {said}**\n" in page
    assert page.count("WARNING") == 4


def test_without_runs_it_says_what_to_do(scripts, tmp_path, monkeypatch, capsys):
    _, plot = scripts
    words = ["plot.py", "--experiment", "table1", "--out", str(tmp_path), "--to", str(tmp_path / "to")]
    for more in ([], ["--kept"]):
        monkeypatch.setattr(sys, "argv", words + more)
        assert plot.main() == 1 and "run reproduce/run.py first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- both, as their users start them


@pytest.mark.slow
def test_a_comparison_that_is_cut_short_goes_on_and_is_drawn(tmp_path):
    small().save(tmp_path / "p.safetensors")
    words = f"""--experiment efficiency --budget small --methods digirl_sync aride --seeds 1 --out {tmp_path}
        --num-workers 2 --latency 0 --policy {tmp_path}/p.safetensors --train-minutes 0.1 --eval-episodes 4
        --eval-train 2 --horizon 3
        --learning-starts 4 --critic-warmup 2 --batch-trajectories 2 --updates-per-trajectory 0.2""".split()
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
