"""Each ```python block of README.md runs as it stands, from the repository root; its map of the files has their lines.

    python tests/test_readme.py                    # puts the right numbers of lines into the map
"""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from alone import run_alone

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def snippets(markdown: str) -> list[str]:
    return re.findall(r"^```python[ \t]*\n(.*?)^```[ \t]*$", markdown, flags=re.MULTILINE | re.DOTALL)


BLOCKS = snippets(README.read_text(encoding="utf-8")) if README.exists() else []


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def with_lines(markdown: str) -> str:
    """The README with the right numbers of lines in its map of the files: of a file, several, or a folder's Python."""

    def row(found: re.Match) -> str:
        names = re.findall(r"`([^`]+)`", found[1])
        number = " + ".join(str(lines(ROOT / name)) for name in names if not name.endswith("/"))
        if not number:
            inside = [lines(path) for path in sorted((ROOT / names[0]).rglob("*.py"))]
            number = f"{sum(inside):,} in {len(inside)}"
        what = re.sub(r"`([\w.]+)` \(\d+\)", lambda name: f"`{name[1]}` ({lines(ROOT / name[1])})", found[2])
        return f"| {found[1]} | {number} | {what} |"

    before, head, rest = markdown.partition("| file | lines | what it is |\n|---|---|---|\n")
    table, after = rest.split("\n\n", 1)
    return before + head + re.sub(r"^\| (.+?) \| [^|]+ \| (.+) \|$", row, table, flags=re.M) + "\n\n" + after


def test_G7_the_map_has_every_file_and_its_lines():
    text = README.read_text(encoding="utf-8")
    right = with_lines(text)
    wrong = difflib.unified_diff(text.splitlines(), right.splitlines(), "README.md", "the files", n=0, lineterm="")
    assert not (said := "\n".join(wrong)), f"python tests/test_readme.py mends it:\n{said}"
    names = {name for name in re.findall(r"`([\w.]+\.py)`", text.split("| file | lines |")[1].split("\n\n")[0])}
    assert names == {path.name for path in ROOT.glob("*.py")}


def test_G7_no_file_is_longer_than_can_be_read():
    paths = [path for folder in (".", "sim", "benchmarks", "reproduce") for path in ROOT.joinpath(folder).glob("*.py")]
    long = {path.name: lines(path) for path in paths if lines(path) > 400}
    assert len(paths) > 50 and long.keys() <= {"run_distrl.py"} and long.get("run_distrl.py", 0) <= 600, long


def test_snippets_are_found():
    text = "a\n```python\nx = 1\n\ny = 2\n```\n```bash\nls\n```\n```python\nz = 3\n```\n"
    assert snippets(text) == ["x = 1\n\ny = 2\n", "z = 3\n"]


@pytest.mark.skipif(not README.exists(), reason="README.md is not written yet")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_snippet_runs(number):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", BLOCKS[number]], cwd=ROOT, env=environment, timeout=120,
                          capture_output=True, text=True)
    assert done.returncode == 0, f"README.md, Python block {number + 1}:\n{BLOCKS[number]}\n{done.stderr}"


ALONE = {  # a line of the block: the files that it needs, and the packages
    "from evaluator import JudgeConfig, V": ("evaluator judge_clients judge_ledger", ["numpy", "pillow", "PIL"]),
    "from tasks import generate_tasks": ("tasks task_rules task_words", []),
    "from android_env import": ("android_env action_text adb_phone ui_state", ["adbutils", "numpy", "pillow", "PIL"]),
}


@pytest.mark.parametrize("first", ALONE)
def test_the_files_that_a_block_names_are_all_that_it_needs(first, tmp_path):
    """Those of aride.py, replay.py and policy.py: in their own tests."""
    block, = (block for block in BLOCKS if first in block)
    files, needs = ALONE[first]
    what = "import android_env" if "sim" in block else block  # without a phone
    assert all(f"`{name}.py`" in README.read_text().split(block)[0].rpartition("```\n")[2] for name in files.split())
    done = run_alone([ROOT / f"{name}.py" for name in files.split()], needs, what, "", tmp_path)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    README.write_text(with_lines(README.read_text(encoding="utf-8")), encoding="utf-8")
