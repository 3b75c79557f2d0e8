"""The critics: they learn from text and screen, are repeatable, and refuse other shapes."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch.nn.utils import parameters_to_vector

from autoui import FEATURE_DIM
from critics import RobertaText, StepCritic, TrajectoryCritic, last_two_screens
from tokenizer import Codec, build_tokenizer

PROMPTS = [
    f"Previous Actions:  Goal: {goal}"
    for goal in ("Open the clock", "x", "Install Lyft", "a b", "Go to ebay.com")
]
CODEC = Codec(build_tokenizer())


def test_critics_learn_what_is_in_text_and_screen():
    rng = np.random.default_rng(0)
    screens = rng.uniform(-1, 1, (64, 2, FEATURE_DIM)).astype(np.float32)
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(64)]
    good = torch.tensor([float((i % len(PROMPTS) == 1) and i < 32) for i in range(64)])
    screens[:32, 1, :40] += 1
    critics = (StepCritic(CODEC), screens), (TrajectoryCritic(CODEC), screens[:, 1])
    for critic, inputs in critics:
        optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
        for _ in range(60):
            logits = critic(prompts, inputs)
            labels = good.view(-1, *[1] * (logits.ndim - 1)).expand_as(logits)
            loss = F.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert loss < 0.05


def test_shapes_and_seeds():
    critic = StepCritic(CODEC, seed=3)
    x = np.zeros((2, 2, FEATURE_DIM), np.float16)
    assert critic(PROMPTS[:2], x).shape == (2, 2)
    assert TrajectoryCritic(CODEC)(PROMPTS[:2], x[:, 0]).shape == (2,)
    same = StepCritic(CODEC, seed=3)
    assert torch.equal(parameters_to_vector(critic.parameters()), parameters_to_vector(same.parameters()))
    with pytest.raises(ValueError, match="screens have shape"):
        critic(PROMPTS[:2], x[:, 0])
    steps = np.arange(3 * FEATURE_DIM).reshape(3, FEATURE_DIM)
    pairs = last_two_screens(steps)
    assert (pairs[:, 1] == steps).all() and (pairs[0, 0] == steps[0]).all()
    assert (pairs[1:, 0] == steps[:-1]).all()


# ---------------------------------------------------------------------- RoBERTa as the text encoder


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    """A small RoBERTa as it is published: a masked language model without a pooling layer, vocab.json and merges."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    path = tmp_path_factory.mktemp("roberta")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(PROMPTS, trainer)
    tokenizer.model.save(str(path))
    size = tokenizer.get_vocab_size()
    config = RobertaConfig(vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                           intermediate_size=32, max_position_embeddings=66, pad_token_id=1)  # fmt: skip
    torch.manual_seed(0)
    RobertaForMaskedLM(config).save_pretrained(path)
    return path


def test_robertas_embedding_is_the_mean_of_its_token_states_alone_or_in_a_batch(roberta):
    from transformers import AutoTokenizer, RobertaModel

    encoder = RobertaText(roberta)
    found = encoder(PROMPTS)
    library = RobertaModel.from_pretrained(roberta, add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(roberta)
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            states = library(**tokenizer(prompt, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(found[row], states[0].mean(0), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[:1], RobertaText(roberta)(PROMPTS[:1]), atol=1e-5, rtol=1e-5)
    long = ["one " * 100 + end for end in ("Goal: Open the clock", "Goal: Install Lyft")]
    assert not torch.allclose(*encoder(long))  # cut on the left: the goals stay


def test_roberta_runs_once_a_prompt_and_is_neither_trained_nor_saved(roberta):
    encoder = RobertaText(roberta)
    critic, calls = StepCritic(CODEC, seed=0, encoder=encoder), []
    encoder.model.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    screens = np.zeros((len(PROMPTS), 2, FEATURE_DIM), np.float32)
    before = [p.clone() for p in encoder.model.parameters()]
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(30):
        logits = critic(PROMPTS, screens)
        wanted = torch.tensor([1.0, 0, 0, 0, 0])[:, None].expand_as(logits)
        loss = F.binary_cross_entropy_with_logits(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3 and sum(calls) == len(PROMPTS)
    assert all(torch.equal(*pair) for pair in zip(before, encoder.model.parameters(), strict=True))
    assert set(critic.state_dict()) == {f"{layer}.{x}" for layer in ("text", "image", "body.0", "body.2")
                                        for x in ("weight", "bias")}  # fmt: skip
    assert TrajectoryCritic(CODEC, encoder=encoder)(PROMPTS, screens[:, 0]).shape == (5,)


def test_what_is_no_whole_roberta_is_refused(roberta, tmp_path):
    state = load_file(roberta / "model.safetensors")
    shutil.copytree(roberta, tmp_path / "cut")
    kept = {k: v for k, v in state.items() if "layer.1" not in k}
    save_file(kept, tmp_path / "cut" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="not all of RoBERTa's weights.*layer.1"):
        RobertaText(tmp_path / "cut")
    config = (roberta / "config.json").read_text().replace('"roberta"', '"bert"')
    (tmp_path / "cut" / "config.json").write_text(config)
    with pytest.raises(ValueError, match="holds a bert: give the folder of a RoBERTa"):
        RobertaText(tmp_path / "cut")
