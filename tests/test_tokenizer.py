"""The tokenizer: any text comes back, an action is short, prompts end as they should."""

import random

import pytest

from tokenizer import Codec, build_tokenizer

UNUSED = '"touch_point": "[-1.0, -1.0]", "lift_point": "[-1.0, -1.0]"'
TAP = (
    'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[0.7852, 0.6779]", '
    '"lift_point": "[0.7852, 0.6779]", "typed_text": ""'
)
TYPE = f'Action Decision: "action_type": "TYPE", {UNUSED}, "typed_text": "macbook air"'
BACK = f'Action Decision: "action_type": "PRESS_BACK", {UNUSED}, "typed_text": ""'
PROMPTS = [
    "Previous Actions:  Goal: Open the clock",
    f'Previous Actions: {TAP} Goal: Go to bestbuy.com, search for "macbook air", and select the first entry',
    f"Previous Actions: {BACK} Goal: What's the capital of Peru?",
    "Previous Actions:  Goal: x",
    f"Previous Actions: {TYPE} Goal: Install the Facebook app",
]


def test_a_tap_is_14_tokens_and_keys_are_two():
    codec = Codec(build_tokenizer())
    assert [len(codec.action_ids(a)) for a in (TAP, BACK)] == [14, 2] and len(codec.action_ids(TYPE)) < 12
    assert len(codec) == 731


def test_any_text_comes_back():
    codec, rng = Codec(build_tokenizer()), random.Random(0)
    alphabet = [*map(chr, range(32, 127)), *"\n\t\x00 {}~éß你好😀\u2028Ġ▁"]
    alphabet += ['", "', "0.12", "</s>", "<pad>", TAP]
    texts = ["", " ", "a  b ", "</s>", TAP, TYPE, BACK, "[0.5, 1.0000]", *PROMPTS]
    texts += ["".join(rng.choices(alphabet, k=rng.randrange(30))) for _ in range(500)]
    anything = [*range(1, 0xD800), *range(0xE000, 0x110000)]
    texts += ["".join(map(chr, rng.choices(anything, k=9))) for _ in range(200)]
    for text in texts:
        assert codec.decode(codec.action_ids(text)) == text
    again = Codec.from_json(codec.to_json())
    assert [again.action_ids(t) for t in texts] == [codec.action_ids(t) for t in texts]


def test_the_same_words_are_the_same_tokens_in_goal_and_action():
    codec = Codec(build_tokenizer())
    prompt, action = codec.prompt_ids(PROMPTS[1]), codec.action_ids(TYPE)
    typed = action[1:-2]
    assert any(prompt[i : i + len(typed)] == typed for i in range(len(prompt)))


@pytest.mark.parametrize("ending", ["", "</s>", "</s></s>"])
def test_F5_a_prompt_ends_with_exactly_one_eos(ending):
    codec = Codec(build_tokenizer())
    ids = codec.prompt_ids(PROMPTS[1] + ending)
    assert ids[-1] == 1 and ids.count(1) == 1 and ids == codec.prompt_ids(PROMPTS[1])
    inside = codec.prompt_ids("Previous Actions:  Goal: type </s> here")
    assert inside.count(1) == 1


def test_a_long_prompt_is_cut_on_the_left_but_never_its_goal():
    codec = Codec(build_tokenizer(), max_prompt=40)
    typed = TYPE.replace("macbook air", "word " * 50)
    ids = codec.prompt_ids(f"Previous Actions: {typed} Goal: Open the clock")
    assert len(ids) == 40 and codec.decode(ids).endswith(" Goal: Open the clock")
    goal = "Open the clock " * 20
    assert codec.decode(codec.prompt_ids(f"Previous Actions: {TAP} Goal: {goal}")) == f" Goal: {goal}"
