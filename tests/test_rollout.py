"""An episode's record, step by step, and what a worker's process does not hold. Names give the case of the fault."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from screen_features import thumbnail_features
from tasks import parse_task
from worker import Episode, Sample, rollout

ROOT = Path(__file__).resolve().parent.parent


def frame(k: int) -> np.ndarray:
    return np.full((88, 64, 3), 10 * k, np.uint8)


class Greys:
    """An environment of three steps whose frame k is of the grey 10 k."""

    judge, phone = None, SimpleNamespace(serial="greys")

    def reset(self, seed, options):
        self.k = 0
        return {"prompt": "prompt 0", "image": frame(0)}, {}

    def step(self, text):
        assert text == f"action {self.k}"
        self.k += 1
        done = self.k == 3
        info = {"invalid": False, "success": done}
        return {"prompt": f"prompt {self.k}", "image": frame(self.k)}, float(done), done, False, info


def test_C19_what_follows_a_step_is_the_frame_after_it():
    asked = []

    def act(prompt, feature, greedy):
        asked.append((prompt, feature))
        step = len(asked) - 1
        return Sample(f"action {step}", np.array([step], np.int32), np.array([-1.0], np.float32), version=7)

    played = rollout(Greys(), Episode(parse_task("Open the Clock app"), seed=0), act)
    assert played.actions == ["action 0", "action 1", "action 2"] and played.rewards.tolist() == [0, 0, 1]
    assert played.prompts == [f"prompt {k}" for k in range(4)]
    for k in range(4):  # features[t + 1]: after action t
        assert np.array_equal(played.features[k], thumbnail_features(frame(k)).astype(np.float16))
    assert len({row.tobytes() for row in played.features}) == 4
    for k, (prompt, feature) in enumerate(asked):  # and action t was chosen on frame t
        assert prompt == f"prompt {k}" and np.array_equal(feature, thumbnail_features(frame(k)))


ACTORS = """
import sys
import worker, actor_pool, ray_node
assert not {"learner", "torch"} & set(sys.modules)
for module in (worker, actor_pool, ray_node):
    assert not {"SumTree", "PrioritizedReplay", "replay"} & set(vars(module)), module
assert worker.Trajectory is sys.modules["replay"].Trajectory
"""


def test_D18_the_tree_belongs_to_the_learner():
    done = subprocess.run([sys.executable, "-c", ACTORS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
