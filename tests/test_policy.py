"""The policy: act against evaluate, repeatability, precision, checkpoints."""

import copy
import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from test_tokenizer import BACK, PROMPTS, TAP, TYPE
from torch.nn.utils import parameters_to_vector

import policy as policy_module
from args import PolicyArgs
from autoui import FEATURE_DIM, initialize
from policy import AutoUIPolicy
from tokenizer import Codec, build_tokenizer

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def small():
    return AutoUIPolicy.small(seed=0)


@pytest.fixture(scope="module")
def features():
    return np.random.default_rng(0).uniform(-1, 1, (len(PROMPTS), FEATURE_DIM)).astype(np.float32)


def test_F12_another_screen_changes_the_first_token_in_act_and_evaluate(small, features):
    actions = [np.array([5, 6, 1], np.int32)]
    one = small.evaluate(PROMPTS[:1], features[:1], actions).token_logprob[0, 0]
    two = small.evaluate(PROMPTS[:1], features[1:2], actions).token_logprob[0, 0]
    assert (one - two).detach().abs() > 1e-3
    outputs = [small.act(PROMPTS[:1], f[None], greedy=True, max_new_tokens=1) for f in features[:2]]
    firsts = [out.logprobs[0][0] for out in outputs]
    assert abs(firsts[0] - firsts[1]) > 1e-3


def test_start_is_sane_and_heads_step(small):
    ids, mask = small._pad([small.codec.prompt_ids(PROMPTS[1])])
    network, x = small.network, torch.zeros(1, FEATURE_DIM).uniform_(-1, 1)
    with torch.no_grad():
        logits = network(ids, mask, x, torch.zeros(1, 1, dtype=torch.long))
        hidden = network.shared(ids)
        first = network.encoder.block[0].layer[0]
        q, k = (
            getattr(first.SelfAttention, n)(network._norm(hidden, first.layer_norm.weight)).unflatten(-1, (4, 24))
            for n in ("q", "k")
        )
        bias = network._bias(network.encoder, ids.shape[1])
        weights = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) + bias).softmax(-1)[0]  # [H, S, S]
    assert 0.3 < logits.std() < 3
    assert weights[0].diagonal(-1).mean() > 0.8 and weights[1].diagonal(1).mean() > 0.8
    for name, p in network.named_parameters():
        assert p.std() <= 1.3 or "relative" in name, name
    assert network.image_dense.weight.std() < 0.2  # not the N(0, 1) that the library gives layers of a subclass


def test_C15_fp16_is_refused_and_bf16_is_finite(small, features, tmp_path):
    half = copy.deepcopy(small).half()
    with pytest.raises(ValueError, match="fp16 overflows.*bf16"):
        half.act(PROMPTS[:1], features[:1])
    small.save(tmp_path / "p.safetensors")
    with pytest.raises(ValueError, match="use 'bf16' or 'fp32'"):
        AutoUIPolicy.load(tmp_path / "p.safetensors", precision="fp16")
    bf16 = AutoUIPolicy.load(tmp_path / "p.safetensors", precision="bf16")
    long = ["Previous Actions:  Goal: " + "abc " * 170]
    assert len(bf16.codec.prompt_ids(long[0])) >= 512
    result = bf16.evaluate(long, features[:1], [np.arange(2, 60, dtype=np.int32)])
    assert torch.isfinite(result.token_logprob).all() and torch.isfinite(result.entropy).all()
    assert len(bf16.act(long, features[:1], max_new_tokens=4).token_ids[0]) <= 4
    assert PolicyArgs().precision == "fp32"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_C9_act_and_evaluate_agree_on_mixed_lengths(small, features, temperature):
    trained = copy.deepcopy(small)
    with torch.no_grad():  # rows end at different lengths: sampling goes on without those that have ended
        trained.network.shared.weight[1] += 2 * temperature * trained.network.shared.weight[0]
    prompts, x = PROMPTS * 8, np.tile(features, (8, 1))
    generator = torch.Generator().manual_seed(0)
    out = trained.act(prompts, x, temperature=temperature, generator=generator, max_new_tokens=15)
    lengths = [len(ids) for ids in out.token_ids]
    assert min(lengths) < 10 < max(lengths)
    result = trained.evaluate(prompts, x, out.token_ids, temperature=temperature)
    for row, logprobs in enumerate(out.logprobs):
        assert len(logprobs) == lengths[row] and result.mask[row].sum() == lengths[row]
        np.testing.assert_allclose(result.token_logprob[row, : lengths[row]].detach(), logprobs, atol=1e-4)
        assert (result.token_logprob[row, lengths[row] :] == 0).all()
        sums = float(result.token_logprob[row].detach().double().sum()), logprobs.sum(dtype=np.float64)
        assert abs(sums[0] - sums[1]) < 1e-4 and abs(result.logprob[row].item() - sums[0]) < 1e-4
        ids = out.token_ids[row]
        assert (ids[:-1] != 1).all() and (ids[-1] == 1 or len(ids) == 15)
        assert out.texts[row] == trained.codec.decode(ids)


def test_C8_the_ratio_is_one_before_the_first_update(small, features):
    outs = [small.act(PROMPTS, features, seeds=range(5), max_new_tokens=n) for n in (1, 2, 5)]  # mixed lengths
    prompts, x, ids = PROMPTS * 3, np.tile(features, (3, 1)), [row for out in outs for row in out.token_ids]
    small.train()  # the learner's mode must not matter
    first, again = small.evaluate(prompts, x, ids), small.evaluate(prompts[::-1], x[::-1].copy(), ids[::-1])
    small.eval()
    first, again = (e.token_logprob.detach().double().sum(1) for e in (first, again))
    mu = torch.tensor([row.sum(dtype=np.float64) for out in outs for row in out.logprobs])
    assert ((first - again.flip(0)).exp() - 1).abs().max() < 1e-5
    assert ((first - mu).exp() - 1).abs().max() < 1e-5


def test_C12_log_mu_at_temperature_2_is_that_of_half_the_logits(small, features):
    out = small.act(PROMPTS, features, temperature=2.0, generator=torch.Generator().manual_seed(1), max_new_tokens=6)
    for row, ids in enumerate(out.token_ids):
        prompt, mask = small._pad([small.codec.prompt_ids(PROMPTS[row])])
        with torch.no_grad():
            logits = small.network(prompt, mask, torch.from_numpy(features[[row]]), torch.tensor([[0, *ids[:-1]]]))[0]
        taken = torch.tensor(ids).long()[:, None]
        wanted, other = ((logits / t).log_softmax(-1).gather(1, taken)[:, 0].numpy() for t in (2, 1))
        np.testing.assert_allclose(out.logprobs[row], wanted, atol=1e-4)
        assert np.abs(out.logprobs[row] - other).max() > 0.1


def test_C7_no_probability_is_clamped(small, features):
    """p = .9999 has its own logarithm and p < 1e-5 its gradient, in `act` and in `evaluate`."""
    agent = AutoUIPolicy(small.config | {"tie_word_embeddings": False}, small.codec)
    initialize(agent.network, 0)
    likely, unlikely, words = 7, 8, len(agent.codec)
    prompt, mask = agent._pad([agent.codec.prompt_ids(PROMPTS[0])])
    with torch.no_grad():  # all logits 0 but one
        states = agent.network.encode(prompt, mask, torch.from_numpy(features[:1]))
        hidden = agent.network.decode(states, mask, torch.zeros(1, 1, dtype=torch.long))[0, 0]
        head = agent.network.lm_head.weight.zero_()
        head[likely] = hidden / hidden.square().sum() * np.log(0.9999 / 0.0001 * (words - 1))
    rows = [np.array([token], np.int32) for token in (likely, unlikely)]
    result = agent.evaluate(PROMPTS[:1] * 2, features[[0, 0]], rows)
    high, low = result.logprob.tolist()
    assert high == pytest.approx(np.log(0.9999), abs=1e-6)
    rest = np.log(0.0001 / (words - 1))
    assert low == pytest.approx(rest, abs=1e-4) and rest < np.log(1e-5)
    result.logprob[1].backward()
    assert agent.network.lm_head.weight.grad[unlikely].abs().sum() > 0.1
    out = agent.act(PROMPTS[:1], features[:1], greedy=True, max_new_tokens=1)
    assert out.token_ids[0].tolist() == [likely]
    assert float(out.logprobs[0][0]) == pytest.approx(high, abs=1e-6)


def test_evaluate_is_the_slow_formula(small, features):
    actions = [np.array(small.codec.action_ids(a), np.int32) for a in (BACK, TYPE, TAP, BACK, TAP)]
    result = small.evaluate(PROMPTS, features, actions, temperature=1.5)
    for row, (prompt, ids) in enumerate(zip(PROMPTS, actions, strict=True)):
        prompt_ids, mask = small._pad([small.codec.prompt_ids(prompt)])
        decoder_ids = torch.tensor([[0, *ids[:-1].tolist()]])
        with torch.no_grad():
            x = torch.from_numpy(features[row : row + 1])
            logits = small.network(prompt_ids, mask, x, decoder_ids)[0]
        distribution = torch.distributions.Categorical(logits=logits.double() / 1.5)
        wanted = distribution.log_prob(torch.tensor(ids).long())
        torch.testing.assert_close(result.token_logprob[row, : len(ids)].double(), wanted, atol=1e-4, rtol=0)
        entropy = distribution.entropy().mean()
        torch.testing.assert_close(result.entropy[row].double(), entropy, atol=1e-4, rtol=0)


def test_scoring_in_pieces_changes_neither_values_nor_gradients(small, features, monkeypatch):
    agent = copy.deepcopy(small)
    actions = [np.array(agent.codec.action_ids(a), np.int32) for a in (BACK, TYPE, TAP, BACK, TAP)]
    results = []
    for elements, rows in ((2**24, 24), (731 * 3, 2)):
        monkeypatch.setattr(policy_module, "HEAD_ELEMENTS", elements)
        monkeypatch.setattr(policy_module, "SORTED_ROWS", rows)
        agent.zero_grad()
        result = agent.evaluate(PROMPTS, features, actions)
        (result.logprob.sum() + result.entropy.sum()).backward()
        gradient = agent.network.shared.weight.grad.clone()
        results.append((result.logprob.detach(), result.entropy.detach(), gradient))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, atol=1e-3, rtol=1e-4)


def test_entropy_of_a_uniform_policy_is_log_v_and_small_probabilities_keep_their_gradient(small, features):
    flat = copy.deepcopy(small)
    with torch.no_grad():
        flat.network.shared.weight.zero_()
    ids = [np.array([4, 1], np.int32)]
    entropy = flat.evaluate(PROMPTS[:1], features[:1], ids).entropy.item()
    assert entropy == pytest.approx(np.log(731), abs=1e-5)
    sharp = copy.deepcopy(small)
    logprob = sharp.evaluate(PROMPTS[:1], features[:1], ids, temperature=0.1).logprob.sum()
    assert logprob < np.log(1e-5)  # below any clamp at .001
    logprob.backward()
    assert sharp.network.image_dense.weight.grad.abs().sum() > 0


def test_sampling_repeats_by_generator_and_by_row_seeds(small, features):
    def ids(out):
        return [row.tolist() for row in out.token_ids]

    def seeded(seed):
        generator = torch.Generator().manual_seed(seed)
        return ids(small.act(PROMPTS, features, generator=generator, max_new_tokens=8))

    assert seeded(5) == seeded(5) != seeded(6)
    rows = ids(small.act(PROMPTS, features, seeds=[1, 2, 3, 4, 5], max_new_tokens=8))
    for row in range(len(PROMPTS)):
        alone = small.act(PROMPTS[row : row + 1], features[row : row + 1], seeds=[row + 1], max_new_tokens=8)
        assert ids(alone) == [rows[row]]


def test_samples_follow_the_distribution(small, features):
    count, generator = 2000, torch.Generator().manual_seed(0)
    same = np.repeat(features[:1], count, 0)
    out = small.act(PROMPTS[:1] * count, same, temperature=0.5, max_new_tokens=1, generator=generator)
    tokens = np.array([row[0] for row in out.token_ids])
    probabilities = np.zeros(len(small.codec))
    for token, logprob in zip(tokens, out.logprobs, strict=True):
        probabilities[token] = np.exp(logprob[0])
    seen = np.bincount(tokens, minlength=len(probabilities)) / count
    assert np.abs(seen - probabilities).max() < 4 * np.sqrt(probabilities.max() / count)
    greedy = small.act(PROMPTS[:1], features[:1], greedy=True, max_new_tokens=1).token_ids[0][0]
    assert greedy == probabilities.argmax()


def test_learning_after_acting_and_acting_after_learning(features):
    agent = AutoUIPolicy.small(seed=1, d_model=32, heads=4)
    before = agent.act(PROMPTS, features, greedy=True, max_new_tokens=14)
    ids = [np.array(agent.codec.action_ids(a), np.int32) for a in (BACK, BACK, TAP, BACK, TAP)]
    optimizer = torch.optim.Adam(agent.parameters(), lr=5e-3)
    for _ in range(60):
        loss = -agent.evaluate(PROMPTS, features, ids).logprob.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = agent.act(PROMPTS, features, greedy=True)
    assert after.texts == [BACK, BACK, TAP, BACK, TAP] != before.texts


def test_bad_arguments_are_named(small, features):
    with pytest.raises(ValueError, match=r"\(5, 7\).*1408.*BLIP-2"):
        small.act(PROMPTS, features[:, :7])
    for temperature in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"temperature.*{temperature}.*greedy=True"):
            small.act(PROMPTS, features, temperature=temperature)
        with pytest.raises(ValueError, match=f"temperature.*{temperature}.*greedy=True"):
            small.evaluate(PROMPTS, features, [np.array([5, 1], np.int32)] * len(PROMPTS), temperature=temperature)
    with pytest.raises(ValueError, match="at least one token"):
        small.evaluate(PROMPTS[:1], features[:1], [np.array([], np.int32)])
    with pytest.raises(ValueError, match="1 seeds for 5 prompts"):
        small.act(PROMPTS, features, seeds=[1])


@pytest.mark.parametrize("tied", [True, False])
def test_save_and_load_in_one_small_file(tmp_path, features, tied):
    codec = Codec(build_tokenizer(), max_prompt=300)
    config = dict(vocab_size=len(codec), d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=3)
    agent = AutoUIPolicy(config | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=tied), codec)
    initialize(agent.network, 0)
    agent.save(tmp_path / "new" / "p.safetensors")
    assert [f.name for f in (tmp_path / "new").iterdir()] == ["p.safetensors"]
    again = AutoUIPolicy.load(tmp_path / "new" / "p.safetensors")
    for (key, one), (_, two) in zip(agent.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(one, two), key
    assert (again.network.lm_head.weight is again.network.shared.weight) == tied
    assert again.codec.max_prompt == 300 and again.config == agent.config
    one, two = (a.act(PROMPTS, features, greedy=True, max_new_tokens=9).texts for a in (agent, again))
    assert one == two


def test_the_default_policy_is_a_few_megabytes(small, tmp_path):
    small.save(tmp_path / "p.safetensors")
    assert (tmp_path / "p.safetensors").stat().st_size < 5e6
    assert sum(p.numel() for p in small.parameters()) < 8e5


def test_F7_weights_of_another_size_are_one_error_with_three_keys(small):
    other = AutoUIPolicy.small(d_model=64)
    before = parameters_to_vector(small.parameters())
    with pytest.raises(ValueError, match="another policy size") as error:
        small.load_weights(other.network.state_dict())
    message = str(error.value)
    assert "shared.weight: (731, 64) in the file, (731, 96) here" in message
    assert message.count("in the file") == 3
    assert torch.equal(parameters_to_vector(small.parameters()), before)


@pytest.mark.parametrize(("layers", "words"), [
    (4, r": \([\d, ]+\) in the file, absent here"), (1, r": absent in the file, \([\d, ]+\) here"),
])  # fmt: skip
def test_F7_more_or_fewer_layers_are_another_size(small, layers, words):
    other = AutoUIPolicy.small(layers=layers)
    with pytest.raises(ValueError, match=r"another policy size, \d+ tensors differ: .*\.block\.\d\..*" + words):
        small.load_weights(other.network.state_dict())


def test_other_files_are_refused_with_a_remedy(small, tmp_path):
    state = dict(small.network.state_dict())
    plain = {k: v for k, v in state.items() if not k.startswith(("image_dense", "mha_layer", "gate_dense"))}
    with pytest.raises(ValueError, match="plain T5 has no image layers"):
        small.load_weights(plain)
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        small.load_weights(state | {"lm_head.weight": state["lm_head.weight"] + 1})
    with pytest.raises(ValueError, match="encoder.embed_tokens.weight differs from shared.weight.*copy them again"):
        small.load_weights(state | {"encoder.embed_tokens.weight": state["lm_head.weight"] + 1})
    with pytest.raises(FileNotFoundError, match="no policy at"):
        AutoUIPolicy.load(tmp_path / "nothing")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="no config and tokenizer"):
        AutoUIPolicy.load(tmp_path / "other.safetensors")
    small.save(tmp_path / "cut.safetensors")
    whole = (tmp_path / "cut.safetensors").read_bytes()
    for left in (whole[:-1], whole[:100], b"", b"not tensors at all"):
        (tmp_path / "cut.safetensors").write_bytes(left)
        with pytest.raises(ValueError, match="cut.safetensors is no whole .safetensors file.*copy it again"):
            AutoUIPolicy.load(tmp_path / "cut.safetensors")


MEMORY = """
import re, sys
import numpy as np, torch
from autoui import FEATURE_DIM, initialize
from policy import AutoUIPolicy
from tokenizer import Codec, build_tokenizer

torch.set_num_threads(1)
config = dict(vocab_size=32128, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, tie_word_embeddings=False)
policy = AutoUIPolicy(config, Codec(build_tokenizer()))
initialize(policy.network, 0)
rng = np.random.default_rng(0)

def update(rows, tokens):
    actions = [rng.integers(2, 32128, tokens).astype(np.int32) for _ in range(rows)]
    result = policy.evaluate(["Goal: Open the clock"] * rows, np.zeros((rows, FEATURE_DIM), np.float32), actions)
    (result.logprob.sum() + result.entropy.sum()).backward()
    # Not ru_maxrss, which begins with the memory of the process that started this one.
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

before = update(1, 2)
print(update(256, int(sys.argv[1])) - before)
"""


def test_256_actions_over_32128_words_cost_less_than_a_gigabyte_more():
    """In fp32 with the gradient. 10 tokens each: the 24 rows that run together do not fill a piece by themselves."""
    program = [sys.executable, "-c", MEMORY, "10"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert 0 < int(done.stdout) < 1e9


def test_left_padding_changes_nothing(small, features):
    """The network takes either side; `act` and `evaluate` pad on the right, which is as exact."""
    ids, mask = small._pad([small.codec.prompt_ids(prompt) for prompt in PROMPTS])
    x = torch.from_numpy(features)
    shift = [int(n) for n in (mask == 0).sum(1)]
    assert len(set(shift)) > 2
    left = [torch.stack([row.roll(n) for row, n in zip(t, shift, strict=True)]) for t in (ids, mask)]
    outputs = []
    for i, m in ((ids, mask), left):
        with torch.inference_mode():
            states = small.network.encode(i, m, x)
            outputs.append(small.network.sample(states, m, steps=12, eos_id=1))
    assert torch.equal(outputs[0][0], outputs[1][0])
    torch.testing.assert_close(outputs[0][1], outputs[1][1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("call", ["act", "evaluate"])
def test_denormals_are_flushed_in_the_thread_that_calls(small, features, call):
    found = []

    def work():
        if call == "act":
            small.act(PROMPTS[:1], features[:1], max_new_tokens=1)
        else:
            small.evaluate(PROMPTS[:1], features[:1], [np.array([1], np.int32)])
        found.append(float(torch.tensor([1e-39]) * torch.tensor([0.5])))

    torch.set_flush_denormal(False)
    try:
        assert float(torch.tensor([1e-39]) * torch.tensor([0.5])) > 0
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        torch.set_flush_denormal(True)
    assert found == [0.0]


def test_with_bf16_arithmetic_an_unchanged_policy_is_its_own_behaviour_policy(small, features):
    """--serial --precision bf16: one network acts and learns, and its ratios are 1."""
    agent = copy.deepcopy(small)
    agent.autocast = True
    prompts = [f"Previous Actions:  Goal: Open the app number {i}" for i in range(len(features))]
    acted = agent.act(prompts, features, seeds=range(len(features)))
    with torch.no_grad():
        again = agent.evaluate(prompts, features, acted.token_ids).logprob
    assert torch.allclose(again, torch.tensor([row.sum() for row in acted.logprobs]), atol=2e-3)


def test_bf16_arithmetic_over_float32_weights_learns_and_stays_near(small, features):
    """--precision bf16 in the learner: the weights and their gradients are float32."""
    agent = copy.deepcopy(small)
    actions = [np.array(agent.codec.action_ids(a), np.int32) for a in (BACK, TYPE, TAP, BACK, TAP)]
    exact = agent.evaluate(PROMPTS, features, actions)
    agent.autocast = True
    rounded = agent.evaluate(PROMPTS, features, actions)
    assert not torch.equal(exact.logprob, rounded.logprob)
    torch.testing.assert_close(exact.token_logprob, rounded.token_logprob, atol=0.2, rtol=0.05)
    rounded.logprob.sum().backward()
    for name, p in agent.named_parameters():
        assert p.dtype == torch.float32 and (p.grad is None or p.grad.dtype == torch.float32), name
    gradient = agent.network.shared.weight.grad.clone()
    agent.zero_grad()
    exact.logprob.sum().backward()
    assert torch.cosine_similarity(gradient.flatten(), agent.network.shared.weight.grad.flatten(), 0) > 0.99
    out = agent.act(PROMPTS, features, generator=torch.Generator().manual_seed(0), max_new_tokens=14)
    again = agent.evaluate(PROMPTS, features, out.token_ids)
    mu = torch.tensor([row.sum() for row in out.logprobs])
    assert (again.logprob - mu).abs().max() < 0.5  # log rho of an unchanged policy: rounding alone


def test_a_disk_that_is_full_is_an_oserror_that_names_the_file(small, tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(policy_module, "save_file", full)
    with pytest.raises(OSError, match="p.safetensors cannot be written .*No space.*is the disk full"):
        small.save(tmp_path / "p.safetensors")


def test_the_same_policy_is_the_same_file(tmp_path):
    policy = AutoUIPolicy.small(seed=1)
    for number in range(6):
        policy.save(tmp_path / f"{number}.safetensors")
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1


def test_weights_lie_in_one_piece_and_stay_so_in_another_type():
    policy = AutoUIPolicy.small(seed=0, d_model=32, layers=1, heads=2, d_ff=64)
    before = [p.clone() for p in policy.parameters()]
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        policy.to(dtype)
        parameters = list(policy.parameters())
        ends = [p.data_ptr() + p.nbytes for p in parameters]
        assert [p.data_ptr() for p in parameters[1:]] == ends[:-1] and all(p.dtype == dtype for p in parameters)
    assert all(torch.equal(p, old.bfloat16().float()) for p, old in zip(policy.parameters(), before, strict=True))
