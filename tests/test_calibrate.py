"""Measuring judges: the rates by hand, folders that cannot be used, and a folder from simulated phones."""

import csv
import json

import pytest
from PIL import Image

from calibrate import ALIKE, Sample, by_rule, main, make_sim_folder, measure, parse_judge, read_samples, table
from evaluator import Verdict
from run_data import wilson_interval
from run_folder import UsageError
from sim.judge_server import JudgeServer
from tasks import parse_task


@pytest.fixture
def folder(tmp_path):
    """Two screens done, three not."""
    for number in range(5):
        Image.new("RGB", (30, 40), (number, 0, 0)).save(tmp_path / f"{number}.png")
    labels = ["success", "True", "failure", "0", "no"]
    lines = [f"{number}.png,Open the clock,{label}" for number, label in enumerate(labels)]
    (tmp_path / "labels.csv").write_text("image,task,label\n" + "\n".join(lines) + "\n")
    return tmp_path


def test_rates_by_hand():
    samples = [Sample(None, "t", label) for label in (True, True, True, False, False, False, False, False)]
    verdicts = [Verdict(said) for said in (True, False, None, True, False, False, False, None)]
    found = measure(samples, verdicts)
    assert found["agreement"] == {"rate": 4 / 6, "ci95": list(wilson_interval(4, 6)), "n": 6}
    assert found["false_success"] == {"rate": 1 / 4, "ci95": list(wilson_interval(1, 4)), "n": 4}
    assert found["false_failure"] == {"rate": 1 / 2, "ci95": list(wilson_interval(1, 2)), "n": 2}
    assert found["unknown"] == 2 and found["n"] == 8
    nothing = measure(samples, [Verdict(None)] * 8)
    assert nothing["agreement"]["rate"] is None and "-" in table({"m": nothing})


def test_several_judges_side_by_side_in_one_command(folder, capsys):
    with JudgeServer(["It is.\nStatus: success"]) as yes, JudgeServer(["503", "No.\nStatus: failure"]) as no:
        command = ["--calibrate", str(folder), "--judge", f"openai:yes:7b@{yes.url}", f"openai:no@{no.url}", "rules"]
        assert main(command) == 0
        assert len(yes.requests) == 5 and yes.requests[0].model == "yes:7b"
        assert main(command) == 0
        assert len(yes.requests) == 5  # what was paid for is kept
    out = capsys.readouterr().out
    assert "40.0% (12% to 77%)" in out and "60.0% (23% to 88%)" in out and "7b: 5 calls (price unknown) so far" in out
    found = json.loads((folder / "calibration.json").read_text())
    assert found["openai/yes:7b"]["false_success"]["rate"] == 1.0 and found["openai/no"]["false_failure"]["rate"] == 1.0
    assert found["rules"]["unknown"] == 5  # there is no ui file
    assert (folder / "calibration.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((folder / "verdicts.csv").open()))
    assert len(rows) == 15 and rows[0]["reason"] == "It is. Status: success" and rows[-1]["verdict"] == ""


def test_one_model_on_two_servers_is_two_judges(folder, capsys):
    with JudgeServer(["It is.\nStatus: success"]) as yes, JudgeServer(["No.\nStatus: failure"]) as no:
        judges = [f"openai:m@{server.url}" for server in (yes, no, yes)]
        assert main(["--calibrate", str(folder), "--judge", *judges]) == 0
        assert len(yes.requests) == len(no.requests) == 5  # neither is answered from what the other has said
    out, found = capsys.readouterr().out, json.loads((folder / "calibration.json").read_text())
    names = [f"openai/m@{server.url}" for server in (yes, no)]
    assert list(found) == names and all(f"{name}: 5 calls" in out for name in names)
    assert [found[name]["agreement"]["rate"] for name in names] == [2 / 5, 3 / 5]
    with (folder / "verdicts.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 10


def test_a_budget_leaves_the_rest_unknown(folder, capsys):
    with JudgeServer(["It is.\nStatus: success"]) as server:
        assert main(["--calibrate", str(folder), "--judge", f"openai:m@{server.url}", "--max-judge-calls", "2"]) == 0
        assert len(server.requests) == 2
    assert "3 of 5" in capsys.readouterr().out


@pytest.mark.parametrize(("labels", "message"), [
    ("image,task,label\n0.png,Open the clock,maybe\n", "line 2: label 'maybe'"),
    ("image,task,label\n0.png,Open the clock,1\n9.png,Open the clock,1\n", "line 3: no file .*9.png"),
    ("image,label\n0.png,1\n", "line 2: image, task and label"), ("image,task,label\n", "no label in it"),
])  # fmt: skip
def test_what_is_wrong_with_a_folder_is_named(folder, labels, message, capsys):
    (folder / "labels.csv").write_text(labels)
    with pytest.raises(UsageError, match=message):
        read_samples(folder)
    assert main(["--calibrate", str(folder)]) == 2 and capsys.readouterr().err.count("\n") == 1


def test_jsonl_labels(folder):
    (folder / "labels.csv").unlink()
    with pytest.raises(UsageError, match="no labels.csv or labels.jsonl"):
        read_samples(folder)
    (folder / "labels.jsonl").write_text('{"image": 7, "task": "My own words", "label": true}\n')
    with pytest.raises(UsageError, match="line 1: no file .*7"):
        read_samples(folder)
    (folder / "labels.jsonl").write_text('{"image": "1.png", "task": "My own words", "label": true}\n\n')
    assert read_samples(folder) == [Sample(folder / "1.png", "My own words", True)]


def test_judges_are_read_from_a_word():
    config = parse_judge("openai:qwen2.5vl:7b@http://127.0.0.1:11434", votes=3)
    assert (config.kind, config.model, config.url, config.votes) == (
        "openai", "qwen2.5vl:7b", "http://127.0.0.1:11434", 3)
    assert parse_judge("gemini").model == "gemini-2.5-flash"
    with pytest.raises(UsageError, match="begins with rules, gemini or openai"):
        parse_judge("claude")
    bad = {"openai:m@http://[::1": r"openai:m@URL http://\[::1: an address", "gemini@https://x.test?key=1": "no pass"}
    for text, words in bad.items():
        with pytest.raises(UsageError, match=words):
            parse_judge(text)
        assert main(["--calibrate", "nowhere", "--judge", text]) == 2


def test_a_folder_from_simulated_phones_holds_near_misses_and_the_rules_agree(tmp_path, capsys):
    counts = make_sim_folder(tmp_path, 60)
    assert sum(counts.values()) == 60 and min(counts.values()) >= 8
    samples = read_samples(tmp_path)
    assert len(samples) == 60 and sum(sample.label for sample in samples) == counts["done"]
    assert all(by_rule(sample).success is sample.label for sample in samples)
    asked = {sample.task for sample in samples if not sample.label}
    assert asked & {other for _, other in ALIKE}
    assert len({parse_task(sample.task).family for sample in samples}) >= 8
    with pytest.raises(UsageError, match="already"):
        make_sim_folder(tmp_path, 4)
    assert main(["--calibrate", str(tmp_path)]) == 0 and "100.0% (94% to 100%)" in capsys.readouterr().out


def test_a_folder_is_made_and_judged_in_one_command(tmp_path, capsys):
    made = tmp_path / "made"
    assert main(["--calibrate-sim", str(made), "--number", "4", "--judge", "rules", "nobody"]) == 2
    assert not made.exists() and "begins with rules, gemini or openai" in capsys.readouterr().err
    assert main(["--calibrate-sim", str(made), "--number", "4", "--judge", "rules"]) == 0
    assert json.loads((made / "calibration.json").read_text())["rules"]["agreement"]["n"] == 4
    assert "100.0%" in capsys.readouterr().out
    assert main(["--calibrate-sim", str(tmp_path / "alone"), "--number", "4"]) == 0
    assert f"python evaluator.py --calibrate {tmp_path}/alone --judge" in capsys.readouterr().out
    assert not (tmp_path / "alone" / "calibration.json").exists()
