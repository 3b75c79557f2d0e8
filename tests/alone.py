"""README.md's lines for a file that is copied into an empty folder, run there with nothing but what it needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

BLOCK = """
import importlib.metadata, re, sys
from pathlib import Path
allowed = {*sys.stdlib_module_names, "__main__", "torchgen", "functorch", *(p.stem for p in Path().glob("*.py"))}
waiting = NEEDS
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
"""


def run_alone(files: list[Path], needs: list[str], lines: str, then: str, folder: Path) -> subprocess.CompletedProcess:
    """Copies `files` into `folder`; runs `lines`, then `then`, with `needs` and their requirements alone."""
    for file in files:
        shutil.copy(file, folder)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-W", "ignore", "-c", f"NEEDS = {needs!r}\n{BLOCK}\nexec({lines!r})\n{then}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
