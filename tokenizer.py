"""Text to token ids and back for the policy and the critics.

`build_tokenizer()` makes the small policy's tokenizer from the strings in this file: a lossless byte-level
BPE (any string comes back exactly), in which a space is a token of its own, and in which the fixed parts of
an action text and the two-digit halves of a coordinate are single tokens. A tap is 14 tokens with its end:

    Action Decision: "action_type": "DUAL_POINT", "touch_point": "[ | 0.78 | 52 | , | 0.67 | 79 | ...

`Codec` wraps that tokenizer, or any other of the `tokenizers` library (T5's own, for Auto-UI's checkpoints):

    codec = Codec(build_tokenizer())
    ids = codec.prompt_ids("Previous Actions:  Goal: Open the clock")        # list of int, ends with one EOS
    codec.decode(codec.action_ids('Action Decision: ...'))                    # the same text

Departs from the paper: T5's vocabulary loses `{ } ~`, newlines and double spaces and spends about 90 tokens
on an action; the small policy has its own. A prompt that is too long is cut on the left as in the paper,
but never its goal. Text such as "</s>" inside a prompt stays text: only its end is the end-of-sequence token.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD, EOS = "<pad>", "</s>"
PAD_ID, EOS_ID = 0, 1  # T5's numbers; PAD also starts the decoder
GOAL = " Goal: "

_UNUSED = '"touch_point": "[-1.0, -1.0]", "lift_point": "[-1.0, -1.0]", "typed_text": "'
_KINDS = ("PRESS_BACK", "PRESS_HOME", "PRESS_ENTER", "STATUS_TASK_COMPLETE", "STATUS_TASK_IMPOSSIBLE")
SCAFFOLD = (
    'Action Decision: "action_type": "DUAL_POINT", "touch_point": "[',
    ']", "lift_point": "[',
    ']", "typed_text": ""',
    ", ",
    f'Action Decision: "action_type": "TYPE", {_UNUSED}',
    *(f'Action Decision: "action_type": "{kind}", {_UNUSED}"' for kind in _KINDS),
    "Previous Actions: ",
    GOAL,
)
NUMBERS = (*(f"0.{i:02d}" for i in range(100)), "1.00", *(f"{i:02d}" for i in range(100)))

# What the merges are trained on: words as phone instructions use them, frequent ones repeated.
WORDS = (
    "search search search for for for for the the the the the go to to to to to and and and select select "
    "first first entry entry com com com what what what whats how how do get get show show me me me open "
    "open app app app check check settings settings play play latest new video video videos from from music "
    "on on in in of of is are a an nearest near best good nice cheap top restaurant restaurants hotel "
    "hotels store store stores news weather price cost costs buy buy much does will be like today tomorrow "
    "tonight this next week month set an alarm alarms turn off notifications notification install uninstall "
    "download find find look up directions map maps youtube chrome google gmail clock calendar tab tabs "
    "incognito window web page site phone computer laptop keyboard mouse headphones speaker camera usb "
    "battery charger cable case tv samsung apple sony dell lenovo asus razer logitech bose amazon ebay "
    "walmart bestbuy target costco newegg reddit facebook instagram twitter spotify netflix movie movies "
    "song songs album book books game games shoes shirt dress jacket table chair sofa lamp bed rug desk "
    "paint black white red blue green brown size men women kids add cart home work city country capital "
    "president population pizza coffee pizza sushi burger food recipe recipes hours menu photos contacts "
    "messages files email emails wifi pro max mini plus air ultra gaming wireless bluetooth inch pack light "
    "tion ing er or al st th ch sh ou ea ee oo Go Go Search Search Open What What Where How How Show Play "
    "Check Set Turn Install Find Google YouTube Maps "
).split()


def build_tokenizer(merges: int = 260) -> Tokenizer:
    """The small policy's tokenizer, the same everywhere: 258 + `merges` + scaffold and number tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex("[A-Za-z]+|[^A-Za-z]"), "isolated"
            ),  # a space, a digit: each on its own
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2 + 256 + merges,
        special_tokens=[PAD, EOS],
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*SCAFFOLD, *NUMBERS)])
    return tokenizer


class Codec:
    """Encodes prompts and actions with one tokenizer. `max_prompt`, `max_action`: in tokens, EOS included."""

    def __init__(self, tokenizer: Tokenizer, max_prompt: int = 512, max_action: int = 64):
        self.tokenizer, self.max_prompt, self.max_action = tokenizer, max_prompt, max_action
        tokenizer.encode_special_tokens = True  # "</s>" in a text is text
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self.eos_id = tokenizer.token_to_id(EOS)
        if self.eos_id is None or tokenizer.token_to_id(PAD) is None:
            raise ValueError(f"the tokenizer has no {PAD} or no {EOS} token: give one of the T5 family")
        # T5's vocabulary has them as words, too: ids 1 and 0 would end a text in its midst.
        words = {mark: tokenizer.encode(mark, add_special_tokens=False).ids for mark in (EOS, PAD)}
        self._marks = [mark for mark, ids in words.items() if tokenizer.token_to_id(mark) in ids]
        self._cache: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def prompt_ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt, with exactly one EOS, its last; the goal is kept whole at any length."""
        ids = self._cache.get(prompt)
        if ids is None:
            text = prompt
            while text.endswith(EOS):
                text = text[: -len(EOS)]
            ids = self._encode(text)
            if len(ids) >= self.max_prompt:
                _, mark, goal = text.partition(GOAL)
                ids = ids[-max(self.max_prompt - 1, len(self._encode(mark + goal)) if mark else 0) :]
            ids = [*ids, self.eos_id]
            if len(self._cache) >= 20_000:
                self._cache.clear()
            self._cache[prompt] = ids
        return ids

    def action_ids(self, action: str) -> list[int]:
        """Token ids of an action text, EOS at its end: what behaviour cloning trains on."""
        return [*self._encode(action), self.eos_id]

    def decode(self, ids) -> str:
        """The text of token ids up to the first EOS."""
        ids = list(map(int, ids))
        if self.eos_id in ids:
            ids = ids[: ids.index(self.eos_id)]
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def lossy(self, texts: Iterable[str]) -> list[str]:
        """Those of the texts that do not come back: T5's vocabulary loses `{ } ~`, newlines and double spaces."""
        return [text for text in texts if self.decode(self._encode(text)) != text]

    def _encode(self, text: str) -> list[int]:
        for mark in self._marks:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def to_json(self) -> str:
        lengths = {"max_prompt": self.max_prompt, "max_action": self.max_action}
        return json.dumps(lengths | {"tokenizer": json.loads(self.tokenizer.to_str())})

    def fingerprint(self) -> str:
        """Equal where the same ids mean the same text: a hash of the vocabulary."""
        words = json.dumps(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(words.encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Codec:
        saved = json.loads(text)
        tokenizer = Tokenizer.from_str(json.dumps(saved["tokenizer"]))
        return cls(tokenizer, saved["max_prompt"], saved.get("max_action", 64))

    @classmethod
    def from_directory(cls, path: str | Path) -> Codec:
        """A T5 checkpoint's tokenizer: its `tokenizer.json`, or its `spiece.model`.

        An action is about 90 of its tokens, more with a plan before it: up to 128, as in the paper.
        """
        file, pieces = Path(path) / "tokenizer.json", Path(path) / "spiece.model"
        if file.exists():
            try:
                return cls(Tokenizer.from_file(str(file)), max_action=128)
            except Exception as error:  # the library raises nothing narrower
                raise ValueError(f"{file} cannot be read ({error}): copy it there again") from error
        if not pieces.exists():
            raise FileNotFoundError(f"{path} has no tokenizer: copy its tokenizer.json or spiece.model there")
        # transformers' own way from a spiece.model wants the sentencepiece package; its converter does not.
        from transformers.convert_slow_tokenizer import T5Converter

        given = SimpleNamespace(vocab_file=str(pieces), _extra_ids=100, convert_tokens_to_ids=lambda token: EOS_ID)
        try:
            return cls(T5Converter(given).converted(), max_action=128)
        except Exception as error:  # protobuf's are no ValueErrors
            raise ValueError(f"{pieces} cannot be read ({error}): copy it there again") from error
