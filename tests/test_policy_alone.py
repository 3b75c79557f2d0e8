"""policy.py copied with the files that README.md names, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ALONE = """
import importlib.metadata, re, sys
from pathlib import Path
allowed = {*sys.stdlib_module_names, "__main__", "torchgen", "functorch", *(p.stem for p in Path().glob("*.py"))}
waiting = ["torch", "safetensors", "tokenizers", "numpy"]
while waiting:  # what is needed and what that itself requires; nothing else can be imported
    name = waiting.pop()
    if name not in allowed:
        allowed.add(name)
        try:
            found = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # of another platform
            found = []
        waiting += [re.split("[^A-Za-z0-9_.-]", r)[0].lower().replace("-", "_") for r in found if "extra" not in r]
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
exec(README)
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
    for file in files:
        shutil.copy(ROOT / file, tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", f"README = {lines!r}\n" + ALONE], cwd=tmp_path,
                          env=environment, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
