"""The comparisons' tables and figures, from runs as run.py leaves them: every number by hand."""

import csv
import json
import math
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from journal import LIGHT, Journal
from run_data import wilson_interval


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
    half = 4.303 * 3 / math.sqrt(3)
    assert found == f"+20.0 [{20 - half:+.1f}, {20 + half:+.1f}]"
    assert plot.difference(done["aride"], done["digirl_sync"][1:]) == "+20.0, 2 seeds: no claim"  # 23, 17
    assert plot.difference(done["aride"][:1], done["digirl_sync"]) == "+20.0, one seed: no claim"
    assert plot.difference(done["aride"][:1], done["digirl_sync"][1:]) == "-"
    assert plot.rate(done["aride"][:1], "greedy", "final") == "80.0 [71.1, 86.7]"  # Wilson's
    assert plot.rate(done["aride"], "greedy", "final") == "82.0 ± 2.0 [77.0, 87.0]"  # Student's; by chance 3.6
    every = done["aride"] + done["digirl_sync"]
    for run in every:  # 100 verdicts, 3 seeds
        run.results["card"]["flips"]["share"] = 0.6
    half = 196 * math.sqrt(0.6 / 300)
    found = f"+20.0 [{20 - half:+.1f}, {20 + half:+.1f}]"
    assert plot.difference(done["aride"], done["digirl_sync"]) == found and half > 4.303 * 3 / math.sqrt(3)
    assert plot.rate(done["aride"], "greedy", "final") == "82.0 ± 2.0 [73.2, 90.8]"  # by chance: 8.8
    more = [plot.Done(**vars(run) | {"seed": run.seed + 3}) for run in done["digirl_sync"]]  # A-RIDE has no such seeds
    assert plot.difference(done["aride"], done["digirl_sync"] + more) == f"{found}, n 3"
    assert plot.difference([plot.Done(**vars(run) | {"seed": 4}) for run in done["aride"][:1]] + done["aride"],
                           done["digirl_sync"]) == f"{found}, n 3"  # fmt: skip
    for run in every:
        run.results["card"]["flips"]["share"] = 1.0
        run.results["greedy"]["final"]["n"] = 30
    assert plot.difference(done["aride"], done["digirl_sync"]) == "+20.0 [-0.7, +40.7], within noise"


def test_runs_of_one_seed_count_as_one_in_a_difference_too(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["digirl_sync", "aride"])
    two, others = done["aride"][:2], done["digirl_sync"][:2]  # 20, 23 ahead
    twice = [*two, plot.Done(**vars(two[0]) | {"results": two[1].results})]  # seed 1 once more
    assert plot.difference(two, others) == plot.difference(others, two).replace("-", "+") == "+21.5, 2 seeds: no claim"
    rates = [run.percent("greedy", "final") for run in (*two, *others)]
    wanted = ((rates[0] + rates[1]) / 2 - rates[2] + rates[1] - rates[3]) / 2
    assert plot.difference(twice, others) == f"{wanted:+.1f}, 2 seeds: no claim"


def test_what_a_page_claims_is_a_difference_seed_by_seed(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync"])  # 80, 84, 82 and 60, 61, 65
    found = "+20.0 [+12.5, +27.5]"  # of 20, 23, 17
    page, _ = plot.staleness({"bound_2": done["digirl_sync"], "bound_0": done["aride"]})
    assert cells(page, "at most 2 publications old on arrival")[1] == found and cells(page, "of any age")[1] == ""
    page, _ = plot.generalisation({"unseen": done["aride"], "unseen_digirl_sync": done["digirl_sync"]})
    assert cells(page, "A-RIDE minus it") == ["after", found, found, found, "3"]
    page, _ = plot.sensitivity({"aride": done["aride"], "entropy_coef_0.01": done["digirl_sync"]})
    assert f"| {found} |" in page


def test_runs_of_one_seed_count_as_one(scripts, runs):
    """As those of the warm start, which every method begins with."""
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync"])
    every = done["aride"] + done["digirl_sync"]  # 80, 84, 82 and 60, 61, 65
    found = plot.over(every, "greedy", "final")
    assert (found.mean, found.n) == (72.0, 3) and found.deviation == pytest.approx(math.sqrt(13) / 2)  # 70, 72.5, 73.5
    for run in every:
        run.results["card"]["flips"]["share"] = 1.0
    assert plot.over(every, "greedy", "final").half == pytest.approx(196 / math.sqrt(600))  # all verdicts of all runs
    low, high = (50 * sum(ends) for ends in zip(wilson_interval(80, 100), wilson_interval(60, 100), strict=True))
    assert plot.rate([done["aride"][0], done["digirl_sync"][0]], "greedy", "final") == f"70.0 [{low:.1f}, {high:.1f}]"


def test_flips_are_each_methods_however_many_seeds_it_has(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync"])
    for run in done["aride"]:
        run.results["card"]["flips"]["share"] = 0.4
    done["digirl_sync"] = done["digirl_sync"][:1]  # at .1
    assert "; 25% of verdicts, greedy and sampled, flip between repeats" in plot.provenance(done, "full")


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
                                  "85.0", "77.0", "", "", "", "3", "770 to 800", "78.5"]  # fmt: skip
    assert cells(text, "DigiRL, synchronous")[11] == "+20.0 [+12.5, +27.5]"
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
        speed = 10 if "sync_" in method else 25 if method == "collect_8" else 20
        for seed in (1, 2):
            successes = 70 + seed + run.EXPERIMENTS[experiment].index(method)  # all unlike
            write_run(tmp_path / "runs" / "small", method, seed, successes, 0.8, speed)
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
        "ablation": ("without DPER", ["72.5", "65.5"]),
        "collection": ("asynchronous", ["4", "20.0", "100 %", "2.0x", "2"]),
        "sensitivity": ("--priority-weights", ["1 0 0", "82.5", "-10.0, 2 seeds: no claim", "7.0", "2"]),
        "staleness": ("at most 1 publications old on arrival", ["71.5", "-", f"{100 * 10 / 230:.1f}", "2.0", "7.0",
                                                               "2"]),
        "generalisation": ("A-RIDE, asynchronous (DistRL)", ["before", "31.0", "32.0", "33.0", "2"]),
        "pilot": ("with both", ["77.5", "69.5", "74.5", "67.5"]),
    }.get(experiment)
    if table:
        assert cells(page, table[0])[: len(table[1])] == table[1]
    if experiment == "table1":
        assert cells(page, "warm start")[:6] == ["", "41.0", "", "43.0", "48.0", "30.0"]
    if experiment == "generalisation":
        assert "| after | 72.5 ± 0.7 [" in page and "| 73.5 ± 0.7 [" in page and "| 74.5 ± 0.7 [" in page
    if experiment == "table1":
        found = {"rate": 0.9, "ci95": [0.8, 0.95], "n": 50}
        found = {"agreement": found, "false_success": found, "false_failure": found, "unknown": 1, "n": 51}
        (tmp_path / "calibration.json").write_text(json.dumps({"gemini:x": found}))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [*sys.argv, "--calibration", str(tmp_path)])
            assert plot.main() == 0 and "gemini:x" in (line := capsys.readouterr().out) and "90.0% (80% to 95%)" in line
            patch.setattr(sys, "argv", [*sys.argv[:-1], str(raw)])
            assert plot.main() == 1 and "calibration.json" in capsys.readouterr().err
    if experiment == "pilot":  # real phones' runs do not take the place of simulated ones'
        kept = json.loads((raw / f"{first}__1.json").read_text())
        (raw / f"{first}__1.json").write_text(json.dumps(kept | {"phones": "2 phones"}))
        assert plot.main() == 1 and "phones 2 phones, these are with simulated" in capsys.readouterr().err
        (raw / f"{first}__1.json").write_text(json.dumps(kept))
    (tmp_path / "runs").rename(tmp_path / "gone")
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--kept"])
    assert plot.main() == 0 and (tmp_path / "results" / f"{experiment}.md").read_text() == page
    if experiment == "collection":
        assert "| asynchronous | 8 | 25.0 ± 0.0 [25.0, 25.0] | 62 % | 2.5x | 2 |" in page
    if experiment == "staleness":
        assert "| at most 4 publications old on arrival | 73.5 ± 0.7 [" in page
    if experiment == "sensitivity":
        assert "| --entropy-coef | 0.01 | 77.5 ± 0.7 [" in page and "| --max-staleness | 5 | 87.5 ± 0.7 [" in page
        assert "| --entropy-coef | 0.003 (default) |" in page and "| 50 1 0.01 (default) |" in page


def test_figures_have_the_intervals_of_the_tables(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride"])["aride"]  # 80, 84, 82
    place = "greedy", "final"
    assert plot.arms(done, *place) == pytest.approx([4.303 * 2 / math.sqrt(3)] * 2)
    assert all(map(math.isnan, plot.arms(done[:2], *place)))
    done[0].results["greedy"]["final"] = rate(4, 4)  # where rounding puts Wilson's upper end below 1
    assert plot.arms(done[:1], *place) == (pytest.approx(100 - 100 * wilson_interval(4, 4)[0]), 0.0)
    made, (axes,) = plot.figure(1)
    plot.draw_rates(axes, ["one", "three", "none"], [done[:1], done, []])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one, n 1", "three", "none"]
    bars, dots = [[line for line in axes.lines if line.get_marker() == mark] for mark in "o."]
    assert min(line.zorder for line in dots) > max(line.zorder for line in bars)
    made, (axes,) = plot.figure(1)
    plot.draw_curves(axes, dict.fromkeys(list(plot.METHODS)[:7], done), lambda run: run.success())
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 7


def test_a_measured_error_is_on_the_judges_card(scripts, runs):
    _, plot = scripts
    done = plot.finished(runs / "runs" / "full", ["aride", "digirl_sync"])
    for run in done["aride"]:
        run.results["judge"], run.results["card"]["judge_error"] = "openai/a:7b", None
    assert "its error: 0 by definition, not measured;" in plot.provenance(done, "full")
    found = {"false_success": {"rate": 0.031}, "false_failure": {"rate": None}, "n": 120}
    plot.errors(done, "openai:other", found)
    plot.errors(done, "openai:a:7b@http://127.0.0.1:1", found)
    assert "its error: 0 by definition, false success 3.1% (n 120);" in plot.provenance(done, "full")


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
    words = ["plot.py", "--experiment", "table1", "--out", str(tmp_path)]
    for more in ([], ["--kept"], ["--to", str(tmp_path / "to")]):
        monkeypatch.setattr(sys, "argv", words + more)
        assert plot.main() == 1 and "run reproduce/run.py first" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
