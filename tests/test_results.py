"""Evaluations as numbers: unknown verdicts are not failures, greedy and sampled stay apart."""

from pathlib import Path

from results import rate, summarise, table

WARMUP = [("alarm", True, False), ("alarm", False, True), ("maps", True, True), ("maps", True, None)]
FINAL = [("alarm", True, True), ("alarm", False, False), ("maps", True, True), ("maps", False, None)]


def test_an_unknown_verdict_is_counted_apart():
    found = rate(WARMUP)
    assert (found["success_rate"], found["n"], found["unjudged"]) == (2 / 3, 3, 1)
    assert found["ci95"][0] < 2 / 3 < found["ci95"][1]
    assert rate([("maps", True, None)]) == {"success_rate": None, "ci95": None, "n": 0, "unjudged": 1}


def test_the_headline_is_greedy_and_families_count_both_modes():
    results = summarise(WARMUP, FINAL)
    assert results["warmup_success_rate"] == 0.5 and results["success_rate"] == 1.0 and results["n"] == 2
    assert results["sampled"]["final"]["success_rate"] == 0.0 and results["sampled"]["final"]["unjudged"] == 1
    assert results["families"]["alarm"] == {"warmup": 0.5, "final": 0.5, "n": 2}
    assert results["families"]["maps"] == {"warmup": 1.0, "final": 1.0, "n": 1}


def test_the_table_says_where_to_look():
    results = summarise(WARMUP, FINAL) | {"trajectories": 12, "wall_seconds": 90.0}
    text = table(results, Path("runs/x"))
    assert "50% -> 100%" in text and "12 trajectories and 1.5 minutes" in text
    assert "runs/x/report.html" in text.replace("\\", "/") and "runs/x/results.json" in text.replace("\\", "/")
