"""Text-only examples of copying the goal's words into TYPE, to pretrain the small policy before the warm start.

A small network does not learn to copy words it has never seen from a few hundred demonstrations; from made-up
words in instruction templates it does, in a minute or two. The screen is left out (features of zeros).

    prompt, action = copy_pair(random.Random(0))
    # Previous Actions: ... Goal: Go to ebay.com, search for "vosk 12 teru"
    # Action Decision: "action_type": "TYPE", ..., "typed_text": "vosk 12 teru"

Departs from the paper: T5 brings this skill from its pretraining on the web.
"""

from __future__ import annotations

import random

from tokenizer import WORDS

UNUSED = '"touch_point": "[-1.0, -1.0]", "lift_point": "[-1.0, -1.0]"'
SITES = ("bestbuy.com", "costco.com", "ebay.com", "newegg.com", "walmart.com", "amazon.com", "target.com")
# {x} is what is typed; a template without it is typed whole.
TEMPLATES = (
    'Go to {site}, search for "{x}"', 'Go to {site}, search for "{x}", and select the first entry',
    'Search for "{x}" on {site}', "Search for {x} on Maps", "Play the latest video from {x}", "Google {x}",
    "Play the new {x} video on YouTube", "Install the {x} app", "How do I get to the nearest {x}?",
    "Show me some {x}", "Search for {x}", "What's the news in {x}?", "What's a good restaurant in {x}?",
)  # fmt: skip


def random_word(rng: random.Random) -> str:
    """A known word, a made-up one, a number or a mixture, now and then capitalised or joined by a hyphen."""
    kind = rng.random()
    if kind < 0.25:
        word = rng.choice(WORDS)
    elif kind < 0.85:
        letters = "bcdfghjklmnprstvwxz", "aeiouy"
        word = "".join(rng.choice(letters[(i + rng.randrange(4) // 3) % 2]) for i in range(rng.randint(1, 9)))
    elif kind < 0.95:
        word = str(rng.randrange(10 ** rng.randint(1, 4)))
    else:
        word = f"{rng.choice('abcdefghijklmnopqrstuvwxyz')}{rng.randrange(100)}"
    if rng.random() < 0.2:
        word = word.capitalize()
    return f"{word}-{random_word(rng)}" if rng.random() < 0.05 else word


def copy_pair(rng: random.Random) -> tuple[str, str]:
    """A prompt and the TYPE action that copies its query; the last action is a tap at a random place, or none."""
    query = " ".join(random_word(rng) for _ in range(rng.randint(1, 5)))
    goal = rng.choice(TEMPLATES).format(x=query, site=rng.choice(SITES))
    point = f"[{rng.random():.2f}00, {rng.random():.2f}00]"
    tap = (
        f'Action Decision: "action_type": "DUAL_POINT", "touch_point": "{point}", "lift_point": "{point}", '
        '"typed_text": ""'
    )
    action = f'Action Decision: "action_type": "TYPE", {UNUSED}, "typed_text": "{query}"'
    return f"Previous Actions: {tap if rng.random() < 0.8 else ''} Goal: {goal}", action
