"""report.py on a small made-up run: complete, killed in the middle, broken, hostile text; in a browser; compared."""

import contextlib
import csv
import functools
import io
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from chromium import PATH, Chromium
from PIL import Image

import report
import report_compare
import report_page
from android_env import Action, format_action, make_prompt
from journal import Journal
from replay import Trajectory
from report_curves import draw_curves
from results import METRICS
from run_data import evaluations, minutes_of, moving_success, read_run, wilson_interval
from worker import small_jpeg

ROOT = Path(__file__).parents[1]
FAMILIES = ("alarm", "directions", "install", "open_app", "web_search", "web_select")
EVIL = '<script>alert("x")</script> & \'quotes\' "more"'
COLUMNS = ["step", "wall_seconds", "trajectories", "env_steps", "charts/success_rate", "charts/SPS",
           "charts/trajectories_per_minute", "losses/policy_loss", "losses/value_loss",
           "losses/trajectory_value_loss", "losses/entropy", "losses/grad_norm", "stats/policy_lag_mean",
           "stats/policy_lag_max", "stats/worker_restarts", "eval/success_rate", "eval/n"]


@functools.cache
def episode(instruction, number, screens=False):
    """The bytes of one with a tap, a swipe, typing and a text that is no action; `screens`: with its screens."""
    actions = [Action("DUAL_POINT", (0.25, 0.5), (0.25, 0.5)), Action("DUAL_POINT", (0.8, 0.5), (0.2, 0.5)),
               Action("TYPE", text=EVIL)]
    actions = [*map(format_action, actions), f"garbage {number}"]
    prompts = [make_prompt(instruction, action) for action in ["", *actions]]
    cells = np.random.default_rng(number).uniform(-1, 1, (5, 1408))
    pictures = [small_jpeg(np.full((480, 270, 3), 40 * k, np.uint8)) for k in range(5)]
    info = {"worker": 3, "serial": "R58M12", "seconds": 8.0, "reason": "", "greedy": number % 2 == 0,
            "policy_seconds": 1.0, "parts": {"policy": 1.0, "input": 2.0, "screen": 0.5, "judge": 0.5, "reset": 3.0},
            **({"screens": pictures} if screens else {})}
    return Trajectory(instruction, "alarm", prompts, cells, actions, token_ids=[[1, 2]] * 4,
                      logprobs=[[-0.25, -0.5]] * 4, rewards=[0, 0, 0, 1], invalid=[0, 0, 0, 1],
                      policy_version=[number // 4] * 4, terminated=True, truncated=False, info=info).to_bytes()


def make_run(folder, n=300):
    """A made-up run that gets better; its last trajectory's texts are hostile, one in ten has screens."""
    rng = random.Random(0)
    folder.mkdir(parents=True)
    settings = {"num_workers": 32, "seed": 1, "note": EVIL}
    (folder / "config.json").write_text(json.dumps(settings))
    with Journal(folder / "journal.sqlite") as journal:
        for i in range(n):
            success = None if i % 50 == 49 else rng.random() < 0.4 + 0.4 * i / n
            last = i == n - 1
            instruction = EVIL if last else f"Open the app number {i}"
            journal.append(instruction=instruction, family=FAMILIES[i % 6],
                           success=success, reward=float(bool(success)), length=4,
                           policy_version=i // 4, worker=i % 32,
                           split="final" if i % 10 == 9 and not last else "train",
                           reason=EVIL if last else "the app is in front",
                           data=episode(EVIL, i % 4, screens=last or i % 10 == 0))
        journal.note_learnt([(n, 17, json.dumps([[0.5, 0.6, 0.7, 0.8], [1.5, -0.25, 0.125, 0]]))])
    with open(folder / "metrics.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for k in range(1, 31):
            evaluated = k in (10, 20)
            writer.writerow([k * 10, k * 20.0, k * 9, k * 90, 0.4 + k / 75, 4.5, 27 + rng.random(), 1 / k,
                             0.6 / k, 0.7 / k, 0.5 - k / 100, rng.random(), 2 + rng.random(), 5, k // 15,
                             0.4 + k / 75 if evaluated else "", 64 if evaluated else ""])
    low, high = wilson_interval(0.78 * 256, 256)
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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def run(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "runs" / "android__distrl__1__0"))


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
    assert wilson_interval(0, 10) == pytest.approx((0, z2 / (10 + z2)))
    assert wilson_interval(10, 10) == pytest.approx((10 / (10 + z2), 1))
    assert wilson_interval(5, 10) == pytest.approx((0.236593, 0.763407), abs=1e-6)
    assert wilson_interval(0, 0) == (0, 1)
    with pytest.raises(ValueError, match="11 successes of 10"):
        wilson_interval(11, 10)


def test_complete_run(run):
    curves, html = report.write_report(run)
    image = Image.open(curves)
    assert image.format == "PNG" and image.width >= 1200
    text = html.read_text(encoding="utf-8")
    page = Reader(text)
    words = " ".join(page.text)
    assert "Held-out success 41.0% → 78.0% (95 % interval 72.5% to 82.6%, 256 episodes)" in words
    for expected in (*FAMILIES, "greedy actions", "sampled actions", "stats/worker_restarts", "num_workers",
                     "2.00 s a step over 1,084 steps", "Screens of 60 of 300 trajectories", "(31 as the phone"):
        assert expected in words
    assert {"link", "iframe", "object"}.isdisjoint(page.tags) and EVIL in words
    assert all(value.startswith(("data:image/png;base64,", "#"))
               for name, value in page.attributes if name in ("src", "href"))
    assert text.count("<script>") == 1 and "<script>alert" not in text
    assert sorted(path.name for path in run.iterdir()) == sorted(
        ["config.json", "curves.png", "journal.sqlite", "metrics.csv", "report.html", "results.json"])


@pytest.mark.parametrize("missing", ["config.json", "metrics.csv", "results.json", "journal.sqlite"])
def test_one_file_missing(run, missing):
    (run / missing).unlink()
    assert f"no {missing}" in report_page.page(read_run(run), [])


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
                      worker=0, split="train", reason="", data=b"no trajectory at all")
        text = report.write_report(run)[1].read_text()
    assert "results.json cannot be read" in text and "of 301 trajectories" in text
    assert "Held-out success 66.7% at the last evaluation, after 180 trajectories" in text
    assert "(95 % interval 54.5% to 77.0%, 64 episodes)" in text
    assert len(read_run(run).metrics) == 30


def test_broken_files_are_notes(run):
    (run / "journal.sqlite").write_text("not a database at all, but long enough to be looked at" * 20)
    (run / "config.json").write_text("[1]")
    (run / "metrics.csv").write_bytes(b"\xff\xfe\x00\n\x00,nan,,\n")
    text = report.write_report(run)[1].read_text()
    assert "not a journal" in text and "config.json cannot be read: holds a list" in text


def test_a_damaged_page_of_the_journal_leaves_the_results(run):
    data = bytearray((run / "journal.sqlite").read_bytes())
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        place = data.index(journal.get(200).data[6000:6040])
    page = place - place % 4096
    data[page : page + 4096] = b"\xff" * 4096
    (run / "journal.sqlite").write_bytes(data)
    text = report.write_report(run)[1].read_text()
    assert "the trajectories cannot be shown: " in text and "78.0%" in text


@pytest.mark.parametrize(("results", "said"), [
    ({"success_rate": None, "unjudged": 24}, "Evaluated without a verdict, 24 episodes: 271 training trajectories"),
    ({"success_rate": None, "unjudged": 0}, "Not evaluated: 271 training trajectories"),
])  # fmt: skip
def test_a_run_that_has_ended_without_a_rate_is_not_told_as_one_at_work(run, results, said):
    (run / "results.json").write_text(json.dumps(results))
    (run / "metrics.csv").unlink()
    text = report.write_report(run)[1].read_text()
    assert said in text and "trajectories so far" not in text and "<p>Not evaluated: the last 500" in text


def test_the_worst_tasks_are_those_of_the_last_evaluation_when_one_was_begun_again(run):
    results = json.loads((run / "results.json").read_text())
    finals = [entry for entry in read_run(run).entries if entry.split == "final"]
    for mode, n in (("greedy", 6), ("sampled", 4)):
        results[mode]["final"] |= {"n": n, "unjudged": 0}
    (run / "results.json").write_text(json.dumps(results))
    judged = [entry for entry in finals[-10:] if entry.success is not None]
    failing = sum(not entry.success for entry in judged)
    said = f"{failing} of {len(judged)} tasks of “final”"
    assert len(finals) == 29 and said in report_page.worst_tasks(read_run(run))


def test_an_empty_start(tmp_path):
    """Seconds after the start: headers and tables, no data."""
    Journal(tmp_path / "journal.sqlite").close()
    (tmp_path / "metrics.csv").write_text(",".join(COLUMNS) + "\n")
    assert "No evaluation yet: 0 training trajectories so far" in report.write_report(tmp_path)[1].read_text()


def test_success_curve_and_clock(run):
    full = read_run(run)
    entries = full.training()
    assert len(entries) == 271
    minutes = minutes_of(full, entries)
    assert minutes == sorted(minutes)
    assert minutes[8] == pytest.approx(20 / 60)  # a row of metrics.csv: 9 trajectories, 20 s
    assert minutes[17] == pytest.approx(40 / 60)
    assert minutes[13] == pytest.approx((20 + 20 * 5 / 9) / 60)
    judged = [entries[0]._replace(success=success) for success in (True, None, False, True, False)]
    assert [(i, rate) for i, rate, *_ in moving_success(judged, 2)] == [
        (0, 1), (2, 0.5), (3, 0.5), (4, 0.5)]
    points = evaluations(full)
    assert [point[5] for point in points] == ["before", "", "", "after"]
    assert points[0][1:4] == (0, 0.41, 0.35)
    assert points[-1][:3] == (pytest.approx(620 / 60), 271, 0.78)
    full.metrics[2:2] = [{"trajectories": 14, "wall_seconds": 45.0}]  # killed after 18, resumed from a checkpoint at 9
    assert minutes_of(full, entries) == minutes


def test_command_line(run, tmp_path, monkeypatch, capsys):
    done = subprocess.run([sys.executable, "report.py", run], cwd=ROOT, capture_output=True, text=True)
    assert "report.html" in done.stdout and done.stderr == ""
    (tmp_path / "empty").mkdir()
    for words, said in (([tmp_path / "empty"], "not a run's folder"), ([tmp_path / "none"], "not a run's folder"),
                        ([], 2), ([run, run], 2), ([run, "--compare", run], 2), ([run, "--screens", "-1"], 2),
                        ([run, "--live", "--port", "70000"], 2)):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["report.py", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            report.main()
        assert end.value.code == said or said in str(end.value.code)
    assert "give one run's folder, or several after --compare" in capsys.readouterr().err


def test_drawing_leaves_no_state_behind(run):
    png, _ = draw_curves(read_run(run))
    assert Image.open(io.BytesIO(png)).format == "PNG"
    assert "matplotlib.pyplot" not in sys.modules


def test_every_metric_is_explained():
    assert set(METRICS) <= set(report_page.MEANING)
    for name in report_page.FAULTS:
        assert report_page.MEANING[f"stats/{name}"][1], name


# ---------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser():
    if not PATH:
        pytest.skip("no Chromium is installed")
    with Chromium() as running:
        yield running


def rows_shown(browser):
    return browser.js("[...document.querySelectorAll('#list tbody tr')].map(r => [...r.cells].map(c => c.textContent))")


def facts(browser):
    return browser.js("Object.fromEntries([...document.querySelectorAll('#step dt')].map(t =>"
                      " [t.textContent, t.nextElementSibling.textContent]))")


def test_a_browser_opens_filters_and_steps_through_without_a_word_on_its_console(run, browser):
    browser.problems.clear()
    browser.requests.clear()
    browser.size(400, 900)
    browser.open(report.write_report(run)[1].as_uri())
    browser.wait("document.querySelectorAll('#strip figure').length == 5")
    for width in (400, 1400):
        browser.size(width, 900)
        assert browser.js("document.documentElement.scrollWidth") == width  # what is wider scrolls by itself
    newest = rows_shown(browser)[0]
    assert newest[:2] == ["#300", EVIL] and len(rows_shown(browser)) == 200

    # what was drawn on the screens, and what is told of each step
    assert browser.js("document.querySelector('#name').textContent") == f"#300: {EVIL}"
    assert browser.js("[...document.querySelectorAll('#strip .real img')].every(i => i.naturalWidth == 270)")
    assert browser.js("[...document.querySelectorAll('#strip svg')].map(s => s.children.length)") == [2, 4]
    ring = "document.querySelector('#strip svg circle')"
    assert browser.js(f"[{ring}.getAttribute('cx'), {ring}.getAttribute('cy')]") == ["50%", "25%"]
    found = facts(browser)
    assert found["prompt"] == make_prompt(EVIL) and "DUAL_POINT" in found["action"]
    assert found["log-prob"].startswith("-0.750 over 2 tokens (probability 0.47)")
    assert found["value"] == "0.500 (in update 17)" and found["advantage"] == "1.500 (in update 17)"
    browser.click("#next")
    assert facts(browser)["advantage"].startswith("-0.250")
    browser.key("ArrowRight")
    assert EVIL in facts(browser)["action"]
    browser.click("#strip figure:nth-child(4)")
    assert "garbage 3" in facts(browser)["action"]
    assert "not a valid action" in facts(browser).values()
    browser.key("ArrowRight")
    assert facts(browser) == {"verdict": "unjudged", "reason": EVIL}
    assert browser.js("document.querySelector('#next').disabled")

    # filters: task, outcome, policy version, and all of them together
    browser.click("#text")
    browser.type("number 12")
    assert [row[0] for row in rows_shown(browser)] == [f"#{i + 1}" for i in (*range(129, 119, -1), 12)]
    browser.js("document.querySelector('#outcome').value = 'success'; outcome.dispatchEvent(new Event('input'))")
    assert {row[3] for row in rows_shown(browser)} == {"success"}
    browser.click("#from")
    browser.type("31")
    assert {row[5] for row in rows_shown(browser)} <= {"31", "32"} and rows_shown(browser)
    browser.click("#list tbody tr:last-child")
    number = rows_shown(browser)[-1][0]
    browser.wait(f"document.querySelector('#name').textContent.startsWith('{number}:')")
    address = browser.js("location.href")  # it keeps all that
    browser.open("about:blank")
    browser.open(address)
    browser.wait("document.querySelectorAll('#strip figure').length == 5")
    assert browser.js("document.querySelector('#name').textContent").startswith(f"{number}:")
    assert browser.js("document.querySelector('#outcome').value") == "success"
    browser.click("nav a[href='#timing']")
    browser.wait(f"location.href == '{address}'")  # a reload finds the filters again
    browser.click("#clear")
    browser.click("#more")
    assert len(rows_shown(browser)) == 300
    browser.click("a[data-task]")
    browser.wait("document.querySelector('#name').textContent.endsWith(document.querySelector('#text').value)")
    assert browser.problems == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}  # nothing from elsewhere


@pytest.mark.slow
def test_ten_thousand_trajectories_are_in_the_page_and_screens_of_the_number_asked_for(tmp_path, browser):
    data = [episode(f"Do {k}", k, screens=k == 0) for k in range(5)]
    Journal(tmp_path / "journal.sqlite").close()
    columns = "created instruction family success reward length policy_version worker split reason data".split()
    rows = ((1e9 + i, f"Do {i}", FAMILIES[i % 6], i % 2, 0, 4, i // 4, 1, "train", "", data[i % 5])
            for i in range(10_000))
    with sqlite3.connect(tmp_path / "journal.sqlite") as db:
        db.executemany(f"INSERT INTO trajectories ({', '.join(columns)}) VALUES ({', '.join('?' * 11)})", rows)
    page = report_page.page(read_run(tmp_path), [], screens=12)
    assert page.count('id="screens-') == 12 and len(page) < 8e6
    (tmp_path / "report.html").write_text(page)
    browser.problems.clear()
    browser.open((tmp_path / "report.html").as_uri() + "#id=1")  # the oldest, in the last chunk
    browser.wait("document.querySelectorAll('#strip figure').length == 5")
    assert browser.js("document.querySelector('#name').textContent") == "#1: Do 0"
    assert "not in this page" in facts(browser)["screen"]
    assert "10000 of 10000 trajectories, 5000 of 10000" in browser.js("document.querySelector('#count').textContent")
    assert browser.problems == []


@contextlib.contextmanager
def live(folder):
    server = report.serve(folder, port=0, screens=5, every=1)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def one_more(folder):
    with Journal(folder / "journal.sqlite") as journal:
        journal.append(instruction="late", family="alarm", success=True, reward=1, length=4, policy_version=1,
                       worker=0, split="train", reason="", data=episode("late", 0))  # fmt: skip


def test_live_is_the_same_page_and_grows_with_the_run(run, browser):
    (run / "metrics.csv").unlink()  # less to draw
    with live(run) as url:
        browser.problems.clear()
        browser.open(url)
        browser.wait("document.querySelectorAll('#strip figure').length == 5")
        one_more(run)
        browser.wait("document.querySelector('#count')?.textContent.startsWith('301 of 301')")
        assert browser.problems == []
        with pytest.raises(urllib.error.HTTPError, match="403"):  # a name that someone else made lead here
            urllib.request.urlopen(urllib.request.Request(url, headers={"Host": "evil.example:80"}))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url + "../journal.sqlite")


def test_live_from_before_the_first_episode_grows_too(tmp_path, browser):
    Journal(tmp_path / "journal.sqlite").close()
    (tmp_path / "config.json").write_text("{}")
    with live(tmp_path) as url:
        browser.problems.clear()
        browser.open(url)
        browser.wait("document.querySelector('#count')?.textContent.startsWith('0 of 0')")
        one_more(tmp_path)
        browser.wait("document.querySelector('#count')?.textContent.startsWith('1 of 1')")
        assert browser.problems == []


# ---------------------------------------------------------------------- one trajectory, several runs


def test_a_gif_shows_each_step_and_the_touch(run, monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr("sys.argv", ["report.py", str(run), *words])
        report.main()
        return capsys.readouterr().out

    assert "wrote" in call("--gif", "1")
    image = Image.open(run / "trajectory-1.gif")
    assert image.n_frames == 5 and image.size == (270, 480 + 66)
    image.seek(0)
    pixels = np.asarray(image.convert("RGB")).astype(int)
    assert abs(pixels[120, 135 + 14] - (234, 88, 12)).max() < 40 and abs(pixels[300, 20]).max() < 20
    with pytest.raises(SystemExit, match="no trajectory 999: it holds 300"):
        call("--gif", "999")
    with pytest.raises(SystemExit, match="no screens were kept"):  # BLIP-2's features are no picture
        with sqlite3.connect(run / "journal.sqlite") as db:
            data = Trajectory.from_bytes(episode(EVIL, 1))
            data.features = data.features * 3
            db.execute("UPDATE trajectories SET data = ? WHERE id = 2", (data.to_bytes(),))
        call("--gif", "2")


def test_runs_compared_are_named_with_intervals_and_what_differs(run, tmp_path):
    other = make_run(tmp_path / "b" / run.name, n=20)
    results = json.loads((other / "results.json").read_text())
    low, high = wilson_interval(128, 256)
    results["greedy"]["final"] = {"success_rate": 0.5, "ci95": [low, high], "n": 256}
    results["task_set"] = {"eval_sha256": "other"}
    results["families"]["alarm"]["n"] = 20
    (other / "results.json").write_text(json.dumps(results))
    first = json.loads((run / "results.json").read_text()) | {"task_set": {"eval_sha256": "one"}}
    (run / "results.json").write_text(json.dumps(first))
    (other / "config.json").write_text(json.dumps({"num_workers": 8, "seed": 1, "note": EVIL}))
    out = report_compare.write_comparison([run, other])
    assert out == run.parent / "compare.html"
    page = Reader(out.read_text())
    words = " ".join(page.text)
    assert f"runs/{run.name}" in words and f"b/{run.name}" in words
    assert "78.0% (73% to 83%)" in words and "50.0% (44% to 56%)" in words and "-28.0 (-36 to -20)" in words
    assert f"evaluated on different tasks than runs/{run.name}: b/{run.name}" in words
    assert "num_workers" in words and "note" not in page.text and "script" not in page.tags
    assert page.tags.count("img") == 2
    assert "43 / 20" in page.text  # episodes of a family


def test_what_was_not_evaluated_is_compared_as_such(run, tmp_path):
    """One whose last evaluation had no verdict, one without any, and names that mean something to the plotter."""
    first = json.loads((run / "results.json").read_text()) | {"task_set": {"eval_sha256": "one"}}
    (run / "results.json").write_text(json.dumps(first))
    unjudged, alone = (shutil.copytree(run, tmp_path / name) for name in ("_a$x^$b", "cost$1$"))
    results = json.loads((unjudged / "results.json").read_text())
    results["greedy"]["final"] = {"success_rate": None, "ci95": None, "n": 0, "unjudged": 256}
    results |= {"success_rate": None, "ci95": None, "n": 0, "unjudged": 256}
    (unjudged / "results.json").write_text(json.dumps(results))
    (unjudged / "metrics.csv").unlink()
    results = {"task_set": {"eval_sha256": "another"}, "families": {}, "success_rate": None}
    (alone / "results.json").write_text(json.dumps(results))
    assert report_compare.rate_of(read_run(unjudged), "greedy") is None
    words = " ".join(Reader(report_compare.write_comparison([run, unjudged, alone]).read_text()).text)
    assert "evaluated on different tasks" not in words and "_a$x^$b" in words


def test_the_difference_of_two_rates():
    """Newcombe (1998), table II, method 10, (a): 56/70 - 48/80 -> 0.2, 0.0524 to 0.3339."""
    one, two = ((k / n, *wilson_interval(k, n)) for k, n in ((48, 80), (56, 70)))
    assert report_compare.difference(one, two) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_the_journal_is_only_read(run):
    before = (run / "journal.sqlite").read_bytes()
    report.write_report(run)
    assert (run / "journal.sqlite").read_bytes() == before
    count = "SELECT count(*) FROM trajectories"
    assert sqlite3.connect(run / "journal.sqlite").execute(count).fetchone() == (300,)
