"""report.py on a small made-up run: complete, killed in the middle, broken, hostile text."""

import csv
import io
import json
import random
import shutil
import sqlite3
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

import report
from journal import Journal

ROOT = Path(__file__).parents[1]
FAMILIES = ("alarm", "directions", "install", "open_app", "web_search", "web_select")
EVIL = '<script>alert("x")</script> & \'quotes\' "more"'
COLUMNS = ["step", "wall_seconds", "trajectories", "env_steps", "charts/success_rate", "charts/SPS",
           "charts/trajectories_per_minute", "losses/policy_loss", "losses/value_loss",
           "losses/trajectory_value_loss", "losses/entropy", "losses/grad_norm", "stats/policy_lag_mean",
           "stats/policy_lag_max", "stats/worker_restarts", "eval/success_rate", "eval/n"]


def make_run(folder, n=300):
    """A made-up run that gets better; its last trajectory's texts are hostile."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    settings = {"num_workers": 32, "seed": 1, "note": EVIL}
    (folder / "config.json").write_text(json.dumps(settings))
    with Journal(folder / "journal.sqlite") as journal:
        for i in range(n):
            success = None if i % 50 == 49 else rng.random() < 0.4 + 0.4 * i / n
            last = i == n - 1
            journal.append(instruction=EVIL if last else f"Open the app number {i}", family=FAMILIES[i % 6],
                           success=success, reward=float(bool(success)), length=rng.randint(3, 15),
                           policy_version=i // 4, worker=i % 32,
                           split="eval" if i % 10 == 9 and not last else "train",
                           reason=EVIL if last else "the app is in front", data=b"x")
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for k in range(1, 31):
            evaluated = k in (10, 20)
            writer.writerow([k * 10, k * 20.0, k * 9, k * 90, 0.4 + k / 75, 4.5, 27 + rng.random(), 1 / k,
                             0.6 / k, 0.7 / k, 0.5 - k / 100, rng.random(), 2 + rng.random(), 5, k // 15,
                             0.4 + k / 75 if evaluated else "", 64 if evaluated else ""])
    low, high = report.wilson_interval(0.78 * 256, 256)
    families = {f: {"warmup": 0.2 + 0.05 * i, "final": 0.6 + 0.05 * i, "n": 43}
                for i, f in enumerate(FAMILIES)}
    final = {"success_rate": 0.78, "ci95": [low, high], "n": 256, "unjudged": 0}
    modes = {mode: {"warmup": {"success_rate": 0.41, "ci95": [0.35, 0.47], "n": 256}, "final": final}
             for mode in ("greedy", "sampled")}
    results = {"warmup_success_rate": 0.41, **final, **modes, "families": families, "trajectories": 271,
               "wall_seconds": 900.0, "train_seconds": 620.0, "task_set": "general",
               "judge": "rules", "seed": 1, "versions": {"torch": "2.13.0"}}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "runs" / "android__distrl__1__0")


class Reader(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text.append(data)


def test_wilson_interval():
    """Values of Wilson's formula worked out by hand: 0 of 10 gives z^2 / (n + z^2); the interval mirrors."""
    z2 = 1.959964 ** 2
    assert report.wilson_interval(0, 10) == pytest.approx((0, z2 / (10 + z2)))
    assert report.wilson_interval(10, 10) == pytest.approx((10 / (10 + z2), 1))
    assert report.wilson_interval(5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    assert report.wilson_interval(0, 0) == (0, 1)
    with pytest.raises(ValueError, match="11 successes of 10"):
        report.wilson_interval(11, 10)


def test_complete_run(run):
    curves, html = report.write_report(run)
    image = Image.open(curves)
    assert image.format == "PNG" and image.width >= 1200
    text = html.read_text(encoding="utf-8")
    page = Reader(text)
    words = " ".join(page.text)
    assert "Held-out success 41.0% → 78.0% (95 % interval 72.5% to 82.6%, 256 episodes)" in words
    for expected in (*FAMILIES, "greedy actions", "sampled actions", "stats/worker_restarts", "num_workers",
                     "The last 30 of 300"):
        assert expected in words
    assert {"script", "link", "iframe"}.isdisjoint(page.tags) and EVIL in words
    links = [value for name, value in page.attributes if name in ("src", "href")]
    assert len(links) == 1 and links[0].startswith("data:image/png;base64,")
    assert sorted(path.name for path in run.iterdir()) == sorted(
        ["config.json", "curves.png", "journal.sqlite", "metrics.csv", "report.html", "results.json"])


@pytest.mark.parametrize("missing", ["config.json", "metrics.csv", "results.json", "journal.sqlite"])
def test_one_file_missing(run, missing):
    (run / missing).unlink()
    assert f"no {missing}" in report.write_report(run)[1].read_text()


@pytest.mark.parametrize("only", ["config.json", "metrics.csv", "results.json", "journal.sqlite"])
def test_only_one_file(run, tmp_path, only):
    folder = tmp_path / "partial"
    folder.mkdir()
    shutil.copy(run / only, folder)
    curves, html = report.write_report(folder)
    assert curves.stat().st_size > 5000 and html.stat().st_size > 5000


def test_killed_in_the_middle(run):
    """The last metrics line is cut, results.json half written, the journal still open in its writer."""
    with open(run / "metrics.csv", "a") as file:
        file.write("310,620.0,2")
    (run / "results.json").write_text('{"success_rate": 0.')
    with Journal(run / "journal.sqlite") as writer:
        writer.append(instruction="late", family="alarm", success=True, reward=1, length=3, policy_version=1,
                      worker=0, split="train", reason="", data=b"")
        text = report.write_report(run)[1].read_text()
    assert "results.json cannot be read" in text and "The last 30 of 301" in text
    assert "Held-out success 66.7% at the last evaluation, after 180 trajectories" in text
    assert len(report.read_run(run).metrics) == 30


def test_broken_files_are_notes(run):
    (run / "journal.sqlite").write_text("not a database at all, but long enough to be looked at" * 20)
    (run / "config.json").write_text("[1]")
    (run / "metrics.csv").write_bytes(b"\xff\xfe\x00\n\x00,nan,,\n")
    text = report.write_report(run)[1].read_text()
    assert "not a journal" in text and "config.json cannot be read: holds a list" in text


def test_an_empty_start(tmp_path):
    """Seconds after the start: headers and tables, no data."""
    Journal(tmp_path / "journal.sqlite").close()
    (tmp_path / "metrics.csv").write_text(",".join(COLUMNS) + "\n")
    assert "No evaluation yet: 0 training trajectories so far" in report.write_report(tmp_path)[1].read_text()


def test_success_curve_and_clock(run):
    full = report.read_run(run)
    entries = full.training()
    assert len(entries) == 271
    minutes = report.minutes_of(full, entries)
    assert minutes == sorted(minutes)
    assert minutes[8] == pytest.approx(20 / 60)  # a row of metrics.csv: 9 trajectories, 20 s
    assert minutes[17] == pytest.approx(40 / 60)
    assert minutes[13] == pytest.approx((20 + 20 * 5 / 9) / 60)
    judged = [entries[0]._replace(success=success) for success in (True, None, False, True, False)]
    assert [(i, rate) for i, rate, *_ in report.moving_success(judged, 2)] == [
        (0, 1), (2, 0.5), (3, 0.5), (4, 0.5)]
    points = report.evaluations(full)
    assert [point[5] for point in points] == ["before", "", "", "after"]
    assert points[0][1:4] == (0, 0.41, 0.35)
    assert points[-1][:3] == (pytest.approx(620 / 60), 271, 0.78)


def test_command_line(run, tmp_path):
    def call(*args):
        command = [sys.executable, "report.py", *map(str, args)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "report.html" in call(run).stdout
    empty = tmp_path / "empty"
    empty.mkdir()
    bad = call(empty)
    assert bad.returncode == 1 and "not a run's folder" in bad.stderr and "Traceback" not in bad.stderr
    assert "usage" in call().stderr


def test_drawing_leaves_no_state_behind(run):
    png = report.draw_curves(report.read_run(run))
    assert Image.open(io.BytesIO(png)).format == "PNG"
    assert "matplotlib.pyplot" not in sys.modules


def test_the_journal_is_only_read(run):
    before = (run / "journal.sqlite").read_bytes()
    report.write_report(run)
    assert (run / "journal.sqlite").read_bytes() == before
    count = "SELECT count(*) FROM trajectories"
    assert sqlite3.connect(run / "journal.sqlite").execute(count).fetchone() == (300,)
