"""LoRA: what is trained, published, and computed with by the actors; bf16 actors; heads that are tied or not."""

import multiprocessing

import numpy as np
import pytest
import torch
from test_tokenizer import PROMPTS

from args import AlgorithmArgs
from autoui import FEATURE_DIM, initialize
from learner import Learner
from lora import Receiver, adapters, add_lora, changed_base
from policy import AutoUIPolicy
from shared_weights import SharedWeights
from tokenizer import Codec, build_tokenizer
from worker import policy_server

ACTIONS = [np.array([5, 6, 1], np.int32)] * len(PROMPTS)
FEATURES = np.random.default_rng(0).uniform(-1, 1, (len(PROMPTS), FEATURE_DIM)).astype(np.float32)


def small() -> AutoUIPolicy:
    return AutoUIPolicy.small(seed=0, d_model=32, layers=2, heads=2, d_ff=64)


def with_lora(seed: int = 0) -> AutoUIPolicy:
    """A small policy with adapters of rank 3 that already do something."""
    pytest.importorskip("peft")
    policy = small()
    add_lora(policy, 3, seed)
    with torch.no_grad():
        for adapter in adapters(policy.network):
            adapter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(adapter.numel()))
    return policy


def logprobs(policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.evaluate(PROMPTS, FEATURES, ACTIONS).token_logprob


def test_actors_add_the_adapters_without_peft():
    """W' = W + 2 B A, by hand."""
    policy, changed = small(), small()
    receiver = Receiver(changed, rank=3)
    rng, arrays = np.random.default_rng(0), iter(receiver.arrays)
    for name, p in policy.network.named_parameters():
        if name.split(".")[-2] in ("q", "k", "v", "o"):
            a, b = next(arrays), next(arrays)
            assert a.shape == (3, p.shape[1]) and b.shape == (p.shape[0], 3)
            a[:], b[:] = rng.normal(size=a.shape), rng.normal(size=b.shape)
            p.data += torch.from_numpy(2 * b @ a)
    assert next(arrays, None) is None and not any(p.requires_grad for p in changed.parameters())
    for _ in range(2):  # a second time adds nothing
        receiver.apply()
        torch.testing.assert_close(logprobs(changed), logprobs(policy), atol=1e-4, rtol=1e-4)
    assert (logprobs(changed) - logprobs(small())).abs().max() > 0.1


def test_fresh_adapters_change_nothing_and_training_moves_them_alone():
    pytest.importorskip("peft")
    policy, plain = small(), small()
    add_lora(policy, 3, seed=1)
    torch.testing.assert_close(logprobs(policy), logprobs(plain), atol=1e-5, rtol=0)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        (-policy.evaluate(PROMPTS, FEATURES, ACTIONS).logprob.mean()).backward()
        optimizer.step()
    moved = {name for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora_" in name} and len(moved) == 2 * 4 * (2 + 2 * 2)
    assert logprobs(policy).sum() > logprobs(plain).sum()
    again = small()
    add_lora(again, 3, seed=1)  # repeatable, whatever was drawn before
    assert all(torch.equal(p, before[name]) for name, p in again.named_parameters())


def test_image_layers_that_were_fresh_are_not_trained_beside_adapters():
    """Actors would not get them: they have the file's."""
    pytest.importorskip("peft")
    policy = small()
    policy.fresh_images = True
    add_lora(policy, 3)
    learner = Learner(policy, AlgorithmArgs())
    trained = {id(p) for p in learner.policy_optimizer.param_groups[0]["params"]}
    assert trained == {id(p) for p in adapters(policy.network)}


def test_our_arithmetic_is_pefts():
    policy = with_lora()
    projection = policy.network.encoder.block[0].layer[0].SelfAttention.q
    x = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    from lora import weight

    torch.testing.assert_close(x @ weight(projection).t(), projection(x), atol=1e-5, rtol=1e-5)


def test_only_adapters_are_published_and_the_actor_has_the_learners_policy():
    learner, actor = with_lora(), small()
    published, receiver = learner.published(), Receiver(actor, rank=3)
    assert [x.shape for x in published] == [x.shape for x in receiver.arrays]
    assert sum(x.size for x in published) < 0.3 * sum(p.numel() for p in actor.parameters())
    for theirs, ours in zip(receiver.arrays, published, strict=True):
        theirs[:] = ours
    receiver.apply()
    torch.testing.assert_close(logprobs(actor), logprobs(learner), atol=1e-5, rtol=1e-5)


def test_a_base_that_has_changed_is_named():
    policy = with_lora()
    saved = {name: p.clone() for name, p in policy.state_dict().items()}
    with torch.no_grad():
        for adapter in adapters(policy.network):
            adapter.add_(1.0)
    assert changed_base(policy, saved) == []
    with torch.no_grad():
        policy.network.encoder.block[0].layer[0].SelfAttention.q.base_layer.weight[0, 0] += 1e-6
    (name,) = changed_base(policy, saved)
    assert name.endswith("SelfAttention.q.base_layer.weight")
    assert changed_base(small(), {}) == []  # all of its weights are published


def test_the_saved_file_is_a_plain_policy_with_the_adapters_in_it(tmp_path):
    policy = with_lora()
    policy.save(tmp_path / "policy.safetensors")
    plain = AutoUIPolicy.load(tmp_path / "policy.safetensors")
    assert plain.weights().keys() == small().weights().keys()
    torch.testing.assert_close(logprobs(plain), logprobs(policy), atol=1e-5, rtol=1e-5)


def test_bf16_actors_keep_steps_that_bf16_weights_would_lose():
    actor = small()
    receiver = Receiver(actor, precision="bf16")
    assert {p.dtype for p in actor.parameters()} == {torch.bfloat16}
    parameter, array = actor.network.gate_dense.weight, receiver.arrays
    index = [p is parameter for p in actor.parameters()].index(True)
    start = parameter[0, 0].clone()
    for _ in range(64):  # each far below bf16's spacing
        array[index] += abs(float(start)) * 2**-12
    receiver.apply()
    assert parameter[0, 0] != start and np.isfinite(actor.act(PROMPTS, FEATURES, max_new_tokens=3).logprobs[0]).all()


# ---------------------------------------------------------------------- from process to process


def take(paths, shared, connection) -> None:
    """A process: loads each file, reads what was published into it; says its log-probs, and if its head is tied."""
    answers = []
    for path, weights in zip(paths, shared, strict=True):
        receiver = Receiver(AutoUIPolicy.load(path))
        assert weights.read(receiver.arrays) == 1
        receiver.apply()
        network = receiver.policy.network
        answers.append((logprobs(receiver.policy).numpy(), network.lm_head.weight is network.shared.weight))
    connection.send(answers)


def test_tied_and_untied_heads_survive_the_way_to_a_spawned_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    learners, paths, shared = [], [], []
    for tied in (True, False):
        codec = Codec(build_tokenizer())
        config = dict(vocab_size=len(codec), d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=3)
        start, learner = (AutoUIPolicy(config | {"tie_word_embeddings": tied}, codec) for _ in range(2))
        for seed, policy in enumerate((start, learner)):
            initialize(policy.network, seed)
        paths.append(tmp_path / f"{tied}.safetensors")
        start.save(paths[-1])
        shared.append(SharedWeights(context, sum(x.size for x in learner.published())))
        shared[-1].publish(learner.published())
        learners.append(learner)
    ours, theirs = context.Pipe()
    process = context.Process(target=take, args=(paths, shared, theirs), daemon=True)
    process.start()
    theirs.close()
    assert ours.poll(120)
    answers = ours.recv()
    process.join(10)
    for (found, tied), learner, wanted in zip(answers, learners, (True, False), strict=True):
        assert tied == wanted == torch.equal(learner.network.lm_head.weight, learner.network.shared.weight)
        np.testing.assert_allclose(found, logprobs(learner).numpy(), atol=1e-5)
    untied = learners[1].network  # a head that were the embedding would have been noticed
    with torch.no_grad():
        untied.lm_head.weight.copy_(untied.shared.weight)
    assert np.abs(answers[1][0] - logprobs(learners[1]).numpy()).max() > 0.1


# ---------------------------------------------------------------------- through a real policy server


def served(path, weights, questions, **options) -> list:
    """What a policy server process answers to each of the questions, asked one after the other."""
    context = multiprocessing.get_context("forkserver")
    control, theirs = context.Pipe()
    ours, server_end = context.Pipe()
    arguments = (path, weights(context), theirs, 32, 0)
    server = context.Process(target=policy_server, args=arguments, kwargs=options, daemon=True)
    server.start()
    try:
        assert control.poll(60) and control.recv() == "ready"
        control.send(server_end)
        answers = []
        for question in questions:
            ours.send(question)
            assert ours.poll(60)
            answers.append(ours.recv())
        return answers
    finally:
        server.kill()
        server.join(10)


def greedy(path, published, **options):
    def weights(context):
        shared = SharedWeights(context, sum(x.size for x in published))
        shared.publish(published, 5)
        return shared

    return served(path, weights, [(p, f, True) for p, f in zip(PROMPTS, FEATURES, strict=True)], **options)


def test_a_server_answers_with_the_published_adapters(tmp_path):
    small().save(tmp_path / "base.safetensors")
    learner = with_lora()
    answers = greedy(tmp_path / "base.safetensors", learner.published(), lora=3)
    wanted = learner.act(PROMPTS, FEATURES, greedy=True)
    assert [a.text for a in answers] == wanted.texts and {a.version for a in answers} == {5}
    assert wanted.texts != small().act(PROMPTS, FEATURES, greedy=True).texts


def test_a_bf16_server_answers_with_the_published_weights(tmp_path):
    small().save(tmp_path / "base.safetensors")
    learner = AutoUIPolicy.small(seed=5, d_model=32, layers=2, heads=2, d_ff=64)
    answers = greedy(tmp_path / "base.safetensors", learner.published(), precision="bf16")
    for row, answer in enumerate(answers):
        with torch.no_grad():
            exact = learner.evaluate(PROMPTS[row : row + 1], FEATURES[row : row + 1], [answer.token_ids])
        found = torch.from_numpy(answer.logprobs)
        torch.testing.assert_close(found, exact.token_logprob[0], atol=0.2, rtol=0.05)
        assert not torch.equal(found, exact.token_logprob[0])
