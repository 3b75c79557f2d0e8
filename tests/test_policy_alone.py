"""policy.py copied with the files that README.md names, and nothing else."""

import re
from pathlib import Path

from alone import run_alone

ROOT = Path(__file__).resolve().parent.parent

THEN = """
policy.save("policy.safetensors")
again = AutoUIPolicy.load("policy.safetensors").act(prompts, features, seeds=[1])
assert again.texts == out.texts and not {"PIL", "transformers"} & set(sys.modules)
"""


def test_copied_alone_the_readmes_lines_run_without_pillow(tmp_path):
    """The files that README.md names above the lines are all that is copied."""
    from test_readme import BLOCKS, README

    (lines,) = (block for block in BLOCKS if "from policy import" in block)
    named = README.read_text().partition(lines)[0].rstrip().removesuffix("```python").rstrip().rpartition("\n\n")[2]
    files = re.findall(r"`(\w+\.py)`", named)
    assert files[0] == "policy.py" and len(files) == 8
    needs = ["torch", "safetensors", "tokenizers", "numpy"]
    done = run_alone([ROOT / file for file in files], needs, lines, THEN, tmp_path)
    assert done.returncode == 0, done.stderr
