"""The comparisons' scripts: commands, what is skipped and resumed, tasks for generalisation, tables from runs."""

import csv
import importlib
import json
import math
import sys
from pathlib import Path

import pytest

from args import Args
from run_data import wilson_interval
from tasks import app_of, load_tasks, novelty, overlap

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
                    "--eval-episodes", "64", "--eval-every", "0", "--algo", "digirl", "--gamma", "0.5", "--sync",
                    "--judge", "gemini", "--train-minutes", "9"]  # fmt: skip
    _, line = run.command("priority_weights_1_0_0", 1, "full", tmp_path, [])
    assert line[-4:] == ["--priority-weights", "1", "0", "0"]
    _, line = run.command("unseen", 1, "full", tmp_path, [])
    assert f"{tmp_path}/full/tasks/train.txt" in line


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

    def call(*words, **codes):
        played: list = []
        monkeypatch.setattr(run, "play", fake_play(codes, played))
        monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path), *words])
        return run.main(), played

    some = ("--experiment", "table1", "--budget", "small", "--methods", "aride", "vtrace", "--seeds", "1", "2")
    assert call(*some, "--dry-run") == (0, []) and not list(tmp_path.iterdir())
    assert capsys.readouterr().out.count("$ python run_distrl.py --exp-name") == 4
    code, played = call(*some, vtrace=130)
    assert code == 130 and played == [("aride", "1", False), ("vtrace", "1", False)]
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


def test_generalisation_keeps_instances_templates_and_apps_apart(scripts, tmp_path):
    run, _ = scripts
    run.write_tasks(tmp_path, each=20)
    train, test = load_tasks(tmp_path / "train.txt"), load_tasks(tmp_path / "test.txt")
    assert novelty(train, test) == ["instance", "template", "app"] * 20
    assert overlap(train, test) == {"exact": 0, "template": 20 + sum(
        task.template in {t.template for t in train} for task in test[2::3])}  # fmt: skip
    assert not {app_of(task) for task in train} & set(run.HELD_APPS)
    assert not {task.template for task in train} & run.held_templates()
    assert len(train) > 1000 and len({task.family for task in train}) >= 15
    assert len({task.family for task in test[1::3]}) >= 8  # templates of many families
    before = (tmp_path / "test.txt").read_text()
    run.write_tasks(tmp_path, each=20)
    assert (tmp_path / "test.txt").read_text() == before


# ---------------------------------------------------------------------- plot.py


def rate(successes: int, n: int) -> dict:
    return {"success_rate": successes / n, "n": n, "ci95": list(wilson_interval(successes, n))}


def write_run(folder: Path, method: str, seed: int, successes: int, curve: list[tuple[float, int, float]]) -> None:
    """A finished run as run.py leaves it. curve: (seconds, trajectories, training success)"""
    place = folder / method / str(seed) / "sim__x"
    place.mkdir(parents=True)
    phases = {"warmup": rate(48, 100), "final": rate(successes, 100)}
    results = {
        "seed": seed, "trajectories": curve[-1][1], "updates": 7, "stale": 5, "train_seconds": curve[-1][0],
        "wall_seconds": 2 * curve[-1][0], "greedy": phases, "sampled": phases, "judge": "rules", "phones": "simulated",
        "sets": {name: phases | {"train": rate(80, 100)} for name in ("General", "Web Shopping")},
        "new": {kind: phases for kind in ("instance", "template", "app")}, "date": "2026-01-01",
        "task_set": {"overlap": {"exact": 0, "template": 9}}, "card": {"machine": "m", "code_sha256": "a" * 64},
    }  # fmt: skip
    (place / "results.json").write_text(json.dumps(results))
    with (place / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        names = "stats/rho_mean stats/policy_lag_mean losses/entropy stats/ess".split()
        writer.writerow(["wall_seconds", "trajectories", "charts/success_rate", *names])
        writer.writerows([*row, 1.0, 2.0, 0.5, 0.9] for row in curve)


def curve_to(end: float) -> list[tuple[float, int, float]]:
    return [(60.0 * i, 100 * i, end * i / 10) for i in range(1, 11)]


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs" / "full"
    for seed, (good, poor) in enumerate([(80, 60), (84, 61), (82, 65)], 1):
        write_run(folder, "aride", seed, good, curve_to(1.0))
        write_run(folder, "digirl_sync", seed, poor, curve_to(0.5))
    return tmp_path


def test_numbers_by_hand(scripts):
    _, plot = scripts
    found = plot.number([80.0, 84.0, 82.0])
    assert (found.mean, found.deviation, found.n) == (82.0, 2.0, 3)
    assert found.half == pytest.approx(4.303 * 2 / math.sqrt(3)) and str(found) == "82.0 ± 2.0 [77.0, 87.0]"
    assert str(plot.number([80.0, math.nan])) == "80.0" and str(plot.number([])) == "-"


def test_differences_are_taken_seed_by_seed_and_noise_is_called_noise(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync", "vtrace"])
    assert list(done) == ["aride", "digirl_sync"] and [run.seed for run in done["aride"]] == [1, 2, 3]
    found = plot.difference(done["aride"], done["digirl_sync"], plot.held_out)  # 20, 23, 17
    assert found == f"+20.0 ± {4.303 * 3 / math.sqrt(3):.1f}"
    assert plot.difference(done["aride"], done["digirl_sync"][1:], plot.held_out).endswith("within noise")  # 23, 17
    assert plot.difference(done["aride"][:1], done["digirl_sync"], plot.held_out) == "+20.0, one seed: no interval"
    assert plot.difference(done["aride"][:1], done["digirl_sync"][1:], plot.held_out) == "-"
    assert plot.rate(done["aride"][:1], "greedy", "final") == "80.0 [71.1, 86.7]"  # Wilson's


def test_efficiency_is_the_time_to_the_synchronous_digirls_last_success(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["digirl_sync", "aride"])
    assert [plot.minutes_to(run, 0.5) for run in done["aride"]] == [5.0] * 3
    assert [plot.minutes_to(run, 0.05) for run in done["aride"]] == [2.0] * 3  # from 200 episodes on
    assert math.isnan(plot.minutes_to(done["digirl_sync"][0], 0.51))
    text, figures = plot.efficiency(done)
    assert "last training success: 50.0 % (n 3)" in text and set(figures) == {"efficiency", "causes"}
    line = next(line for line in text.splitlines() if "A-RIDE" in line)
    assert "| 5.0 ± 0.0 [5.0, 5.0] | 3 of 3 | 2.0x | 10.0 |" in line
    assert "no F" in plot.efficiency({"aride": done["aride"]})[0]


@pytest.mark.parametrize("experiment", ["table1", "efficiency", "ablation", "collection", "sensitivity", "staleness",
                                        "generalisation"])  # fmt: skip
def test_every_experiment_has_its_page_and_its_figures(scripts, tmp_path, monkeypatch, capsys, experiment):
    run, plot = scripts
    for method in run.EXPERIMENTS[experiment][:-1]:  # the last is still to come
        for seed in (1, 2):
            write_run(tmp_path / "runs" / "small", method, seed, 70 + seed, curve_to(0.8))
    words = ["--experiment", experiment, "--budget", "small", "--out", tmp_path / "runs", "--to", tmp_path / "results"]
    monkeypatch.setattr(sys, "argv", ["plot.py", *map(str, words)])
    assert plot.main() == 0
    page = (tmp_path / "results" / f"{experiment}.md").read_text()
    assert page in capsys.readouterr().out and f"Not run: {run.EXPERIMENTS[experiment][-1]}." in page
    assert "nan" not in page and "phones: simulated; judge: rules" in page and "aaaaaaaaaaaa;" in page
    pictures = list((tmp_path / "results").glob("*.png"))
    assert pictures and all(f"]({p.name})" in page and p.read_bytes().startswith(b"\x89PNG") for p in pictures)
    assert len(list((tmp_path / "results" / "raw").glob("*.json"))) == 2 * len(run.EXPERIMENTS[experiment][:-1])


def test_without_runs_it_says_what_to_do(scripts, tmp_path, monkeypatch, capsys):
    _, plot = scripts
    monkeypatch.setattr(sys, "argv", ["plot.py", "--experiment", "table1", "--out", str(tmp_path)])
    assert plot.main() == 1 and "run reproduce/run.py first" in capsys.readouterr().err
