"""Auto-UI's network: the published numbers, and the library's T5 as ground truth."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.t5.modeling_t5 import T5Attention

from autoui import FEATURE_DIM, AutoUINetwork, initialize
from policy import ALIASES, AutoUIPolicy
from t5 import relative_buckets
from tokenizer import Codec, build_tokenizer

PARITY = Path(__file__).parent / "fixtures" / "autoui_parity"
IMAGE = ("image", "mha", "gate")  # the layers that T5 lacks
SHAPES = (  # of a T5: heads wider than the model, a deeper decoder, its other numbers
    {}, {"d_kv": 16}, {"num_decoder_layers": 3},
    {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 20, "layer_norm_epsilon": 1e-5},
)  # fmt: skip


def t5_config(**changes):
    config = dict(vocab_size=97, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=3,
                  feed_forward_proj="relu", tie_word_embeddings=True)  # fmt: skip
    return config | changes


def library(network, config):
    """transformers' T5 over the network's own parameters."""
    with torch.device("meta"):
        model = T5ForConditionalGeneration(T5Config(**config))
    model.encoder.embed_tokens = model.decoder.embed_tokens = model.shared
    state = {k: v for k, v in network.state_dict(keep_vars=True).items() if k.split("_")[0] not in IMAGE}
    unset, unknown = model.load_state_dict(state, assign=True, strict=False)
    assert not unknown and set(unset) <= {*ALIASES, "lm_head.weight"}
    if network.tied:
        model.lm_head.weight = model.shared.weight
    return model.eval()  # no dropout


def reference_logits(network, config, input_ids, mask, features, decoder_ids):
    """The library's encoder and decoder and torch's attention layer, the gate as it is defined."""
    model = library(network, config)
    states = model.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
    image = network.image_dense(features)[:, None]
    with torch.device("meta"):
        attention = torch.nn.MultiheadAttention(config["d_model"], 1, batch_first=True)
    attention.load_state_dict(network.mha_layer.state_dict(keep_vars=True), assign=True)
    attended, _ = attention(states, image, image)
    gate = torch.sigmoid(network.gate_dense(torch.cat([states, attended], -1)))
    states = (1 - gate) * states + gate * attended
    hidden = model.decoder(
        input_ids=decoder_ids, encoder_hidden_states=states, encoder_attention_mask=mask
    ).last_hidden_state
    return model.lm_head(hidden * config["d_model"] ** -0.5 if network.tied else hidden)


@pytest.mark.parametrize("name", ["t5_v1_0", "flan_gated"])
def test_published_weights_give_the_published_logits_and_tokens(name):
    config = json.loads((PARITY / name / "config.json").read_text())
    io = load_file(PARITY / f"{name}.io.safetensors")
    agent = AutoUIPolicy(config, Codec(build_tokenizer()))
    agent.load_weights(load_file(PARITY / f"{name}.weights.safetensors"))
    network, inputs = agent.network, (io["input_ids"], io["attention_mask"], io["image_features"])
    with torch.no_grad():
        logits = network(*inputs, F.pad(io["labels"][:, :-1], (1, 0)))
        tokens, _ = network.sample(network.encode(*inputs), io["attention_mask"], steps=8, eos_id=1)
    assert (logits - io["logits"]).abs().max() < 1e-4
    greedy = json.loads((PARITY / f"{name}.greedy.json").read_text())
    assert [[0, *row] for row in tokens.tolist()] == greedy
    assert network.tied == torch.equal(network.lm_head.weight, network.shared.weight)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gated-gelu"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=["v1", "heads", "layers", "buckets"])
def test_forward_is_the_librarys_with_padding_on_either_side(tied, activation, left, shape):
    config = t5_config(feed_forward_proj=activation, tie_word_embeddings=tied, **shape)
    network = AutoUINetwork(config)
    initialize(network, 1)
    lengths = torch.tensor([40, 9, 23])
    mask = (torch.arange(40) < lengths[:, None]).long()
    ids = torch.randint(2, 97, (3, 40), generator=torch.Generator().manual_seed(0)) * mask
    x = torch.randn(3, FEATURE_DIM, generator=torch.Generator().manual_seed(1))
    targets = torch.randint(2, 97, (3, 30), generator=torch.Generator().manual_seed(2))
    if left:
        ids, mask = ids.flip(1), mask.flip(1)
    with torch.no_grad():
        wanted = reference_logits(network, config, ids, mask, x, targets)
        torch.testing.assert_close(network(ids, mask, x, targets), wanted, atol=1e-4, rtol=1e-4)
        for row in range(3):  # padding changes nothing
            own = ids[row][mask[row].bool()][None]
            alone = network(own, torch.ones_like(own), x[row : row + 1], targets[row : row + 1])
            torch.testing.assert_close(alone[0], wanted[row], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_tokens_are_those_of_the_librarys_generate(tied):
    config = t5_config(tie_word_embeddings=tied)
    network = AutoUINetwork(config)
    initialize(network, 3)
    ids = torch.randint(2, 97, (6, 12), generator=torch.Generator().manual_seed(0))
    mask, x = torch.ones_like(ids), torch.randn(6, FEATURE_DIM, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        states = network.encode(ids, mask, x)
    tokens, _ = network.sample(states, mask, steps=12, eos_id=1)
    outputs = library(network, config).generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states), attention_mask=mask, max_new_tokens=12,
        do_sample=False, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    assert tokens.tolist() == outputs[:, 1:].tolist()


def test_gradients_are_the_librarys():
    config = t5_config(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    network = AutoUINetwork(config)
    initialize(network, 4)
    ids = torch.randint(2, 97, (2, 7), generator=torch.Generator().manual_seed(0))
    x, mask = torch.randn(2, FEATURE_DIM, generator=torch.Generator().manual_seed(1)), torch.ones_like(ids)
    grads = []
    for forward in (network, lambda *a: reference_logits(network, config, *a)):
        network.zero_grad()
        F.cross_entropy(forward(ids, mask, x, ids).flatten(0, 1), ids.flatten()).backward()
        grads.append({k: p.grad.clone() for k, p in network.named_parameters()})
    for key, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][key], atol=1e-4, rtol=1e-3, msg=key)


def test_buckets_of_near_places_are_exact():
    near = relative_buckets(300, True, 32, 128)
    assert near[5, 3:8].tolist() == [2, 1, 0, 17, 18] and near[0, 299] == 31 and near[299, 0] == 15
    assert relative_buckets(300, False, 32, 128)[5, 3:8].tolist() == [2, 1, 0, 0, 0]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("buckets, distance", [(32, 128), (16, 40)])
def test_buckets_are_the_librarys(both, buckets, distance):
    position = torch.arange(600)
    offset = position[None, :] - position[:, None]  # key - query
    wanted = T5Attention._relative_position_bucket(offset, both, buckets, distance)
    assert torch.equal(relative_buckets(600, both, buckets, distance), wanted)


def test_an_activation_of_no_t5_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="feed_forward_proj 'silu': use one of relu, gated-gelu"):
        AutoUINetwork(t5_config(feed_forward_proj="silu"))


@pytest.mark.parametrize("both", [True, False])
def test_a_shorter_table_of_buckets_is_the_corner_of_a_longer_one(both):
    longest = relative_buckets(576, both, 32, 128)
    for length in (*range(1, 140), 255, 256, 257, 511, 512, 575):
        assert torch.equal(relative_buckets(length, both, 32, 128), longest[:length, :length])


def test_texts_of_many_lengths_leave_one_table_of_buckets_a_stack():
    network = AutoUINetwork(t5_config())
    initialize(network, 1)
    x = torch.zeros(1, FEATURE_DIM)
    for length in (*range(1, 70, 4), 200, 3):
        ids = torch.ones(1, length, dtype=torch.long)
        with torch.inference_mode():
            fresh = AutoUINetwork(t5_config())
            initialize(fresh, 1)
            assert torch.equal(network(ids, ids, x, ids), fresh(ids, ids, x, ids))
    tables = network._tables.values()
    assert len(tables) == 2 and all(table.shape == (256, 256) for table in tables)
    network(ids, ids, x, ids).sum().backward()  # they were made without gradients being recorded
