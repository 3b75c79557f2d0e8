"""Each ```python block of README.md runs as it stands, from the repository root."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def snippets(markdown: str) -> list[str]:
    return re.findall(r"^```python[ \t]*\n(.*?)^```[ \t]*$", markdown, flags=re.MULTILINE | re.DOTALL)


BLOCKS = snippets(README.read_text(encoding="utf-8")) if README.exists() else []


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
