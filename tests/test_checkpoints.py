"""Published weights in the layouts in which they are published, small; and what is no such thing."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import T5Config, T5ForConditionalGeneration

from android_env import Action, format_action, make_prompt, parse_action
from checkpoints import add_image_layers, read_published
from policy import AutoUIPolicy
from screen_features import FEATURE_DIM, thumbnail_features
from tokenizer import Codec, build_tokenizer

PARITY = Path(__file__).parent / "fixtures" / "autoui_parity"
ACTION = 'Action Decision: "action_type": "{}", "touch_point": "[{}]", "lift_point": "[{}]", "typed_text": "{}"'
TAP, UNUSED = "0.7852, 0.6779", "-1.0, -1.0"
CANONICAL = [
    ACTION.format("DUAL_POINT", TAP, TAP, ""), ACTION.format("DUAL_POINT", "0.8000, 0.5000", "0.2000, 0.5000", ""),
    ACTION.format("TYPE", UNUSED, UNUSED, "macbook air"),
    *(ACTION.format(kind, UNUSED, UNUSED, "") for kind in
      ("PRESS_BACK", "PRESS_HOME", "PRESS_ENTER", "STATUS_TASK_COMPLETE", "STATUS_TASK_IMPOSSIBLE")),
]  # fmt: skip


def letters(size: int = 97) -> Tokenizer:
    """A tokenizer of T5's kind, at most `size` words: pieces of one letter, "▁" for a space; it appends EOS itself."""
    alphabet = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789\"'.,:;?!-_[]()/&"
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((letter, -4.0) for letter in alphabet)]
    tokenizer = Tokenizer(models.Unigram(pieces[:size], unk_id=2))
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def folder_of(path: Path, name: str = "flan_gated") -> dict[str, torch.Tensor]:
    """config.json and tokenizer of one of the parity networks in `path`, no weights; returns those."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text((PARITY / name / "config.json").read_text())
    letters().save(str(path / "tokenizer.json"))
    return load_file(PARITY / f"{name}.weights.safetensors")


def same(policy: AutoUIPolicy, weights: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(p, weights[name]) for name, p in policy.network.named_parameters())


def trainer_file(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """What DigiRL's trainer saves of its agent: policy, critics, each under its name."""
    names = ("critic.base_lm.encoder.layer.0.weight", "critic.critic1.0.bias", "trajectory_critic.critic.0.bias")
    others = {prefix.removesuffix("model.") + name: torch.ones(2) for name in names if "model." in prefix}
    return {f"{prefix}{name}": value for name, value in weights.items()} | others


# ---------------------------------------------------------------------- layouts


@pytest.mark.parametrize("layout", ["safetensors", "bin", "sharded safetensors", "sharded bin", "other name"])
@pytest.mark.parametrize("name", ["t5_v1_0", "flan_gated"])
def test_a_hugging_face_folder_loads(tmp_path, layout, name):
    """Cases F8, F9: weights alone, read with weights_only."""
    weights = folder_of(tmp_path, name)
    keys = sorted(weights)
    save, stem = (torch.save, "pytorch_model.bin") if "bin" in layout else (save_file, "model.safetensors")
    if "sharded" in layout:
        first, ending = stem.split(".")
        files = {f"{first}-0000{i + 1}-of-00003.{ending}": keys[i::3] for i in range(3)}
        for file, names in files.items():
            save({key: weights[key] for key in names}, tmp_path / file)
        index = {"weight_map": {key: file for file, names in files.items() for key in names}}
        (tmp_path / f"{stem}.index.json").write_text(json.dumps(index))
    else:
        save(weights, tmp_path / ("autoui.safetensors" if layout == "other name" else stem))
    policy = AutoUIPolicy.load(tmp_path)
    assert same(policy, weights) and policy.notes == []
    assert (policy.network.lm_head.weight is policy.network.shared.weight) == (name == "t5_v1_0")
    if "sharded" in layout:
        (tmp_path / file).unlink()
        with pytest.raises(FileNotFoundError, match=f"lacks 1 of 3 shards: copy {file} there"):
            AutoUIPolicy.load(tmp_path)


@pytest.mark.parametrize("prefix", ["model.", "module.model.", "module."])
@pytest.mark.parametrize("ending", ["bin", "pt"])
def test_a_file_of_digirl_or_distrl_loads_from_beside_its_config(tmp_path, prefix, ending):
    weights = folder_of(tmp_path)
    torch.save(trainer_file(weights, prefix), tmp_path / f"trainer.{ending}")
    policy = AutoUIPolicy.load(tmp_path / f"trainer.{ending}")
    assert same(policy, weights)
    if prefix != "module.":
        (note,) = policy.notes
        assert note.endswith("left out: critic (2 tensors), trajectory_critic (1 tensors)") and f"'{prefix}'" in note


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_file_with_dictionaries_in_it_loads(tmp_path, prefix):
    weights = folder_of(tmp_path)
    optimizer = {"state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-4}]}
    nested = trainer_file(weights, prefix)  # DigiRL's agent whole, or its policy alone
    content = {"model_state_dict": nested, "critic_state_dict": {"base_lm.weight": torch.ones(2)},
               "lm_optimizer_state_dict": optimizer, "epoch": 3}  # fmt: skip
    torch.save(content, tmp_path / "trainer.pt")
    policy = AutoUIPolicy.load(tmp_path / "trainer.pt")
    assert same(policy, weights)
    left = policy.notes[0].partition("left out: ")[2].split(", ")
    assert {"critic_state_dict (1 tensors)", "lm_optimizer_state_dict (2 tensors)"} <= set(left)
    assert ({"critic (2 tensors)", "trajectory_critic (1 tensors)"} <= set(left)) == bool(prefix)


def test_an_output_layer_of_its_own_that_the_file_lacks_is_not_made_up(tmp_path):
    weights = folder_of(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["tie_word_embeddings"] is False and "scale_decoder_outputs" not in config  # nothing of transformers 5
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing \[.lm_head.weight.\]"):
        AutoUIPolicy.load(tmp_path)


@pytest.mark.parametrize("kept", ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"])
def test_a_saver_may_keep_any_one_name_of_the_embeddings(tmp_path, kept):
    weights = folder_of(tmp_path, "t5_v1_0")
    names = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    state = {name: value for name, value in weights.items() if name not in names} | {kept: weights["shared.weight"]}
    save_file(state, tmp_path / "model.safetensors")
    assert same(AutoUIPolicy.load(tmp_path), weights)


@pytest.mark.parametrize("tied", [True, False])
def test_what_transformers_5_saves_of_a_t5_keeps_its_output_layer(tmp_path, tied):
    """It writes tie_word_embeddings: true either way; platform.md's third trap."""
    config = T5Config(vocab_size=97, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=3, tie_word_embeddings=tied)
    torch.manual_seed(0)
    library = T5ForConditionalGeneration(config).eval()
    library.save_pretrained(tmp_path)
    letters().save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True
    policy = AutoUIPolicy.load(tmp_path, init_fusion=True)
    ids = torch.randint(3, 97, (3, 9), generator=torch.Generator().manual_seed(0))
    mask, x = torch.ones_like(ids), torch.randn(3, FEATURE_DIM, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = library(input_ids=ids, attention_mask=mask, decoder_input_ids=ids).logits
        torch.testing.assert_close(policy.network(ids, mask, x, ids), wanted, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------------- tokenizers


def test_F5_what_ends_a_text_in_t5s_vocabulary_is_text_within_one():
    codec = Codec(letters())
    for mark, id in (("</s>", 1), ("<pad>", 0)):
        ids = codec.prompt_ids(f"Previous Actions:  Goal: Search for {mark} in html")
        assert ids.count(1) == 1 and ids[-1] == 1 and 0 not in ids
        assert codec.decode(codec.action_ids(f"x {mark} y")).endswith(" y") and id not in codec.action_ids(mark)[:-1]


def spiece() -> bytes:
    """A sentencepiece model with the words of `letters`, as T5's folders have it in spiece.model."""
    from transformers.utils import sentencepiece_model_pb2_new as format

    model = format.ModelProto()
    for token, score in json.loads(letters().to_str())["model"]["vocab"]:
        kind = {"<unk>": 2, "<pad>": 3, "</s>": 3}.get(token, 1)
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = 1
    model.trainer_spec.unk_id = 2
    return model.SerializeToString()


def test_a_spiece_model_is_the_tokenizer_where_there_is_no_other(tmp_path):
    one = Codec(letters())
    (tmp_path / "spiece.model").write_bytes(spiece())
    two = Codec.from_directory(tmp_path)
    for action in CANONICAL:
        assert two.action_ids(action) == one.action_ids(action) and two.decode(two.action_ids(action)) == action
    assert len(two) == len(one) + 100  # T5's <extra_id_*>
    assert two.max_action == 128 and Codec.from_json(two.to_json()).max_action == 128 and one.max_action == 64
    (tmp_path / "spiece.model").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match="spiece.model cannot be read .*copy it there again"):
        Codec.from_directory(tmp_path)
    (tmp_path / "spiece.model").unlink()
    with pytest.raises(FileNotFoundError, match="no tokenizer: copy its tokenizer.json or spiece.model"):
        Codec.from_directory(tmp_path)


@pytest.mark.parametrize("codec", [Codec(letters()), Codec(build_tokenizer())], ids=["T5's kind", "ours"])
def test_F4_canonical_actions_come_back_and_what_does_not_is_named(codec):
    for action in CANONICAL:
        assert codec.decode(codec.action_ids(action)) == action and format_action(parse_action(action)) == action
    hard = ["type {x}", "two  blanks", "a~b", "a\nb"]
    ours = len(codec) > 100
    assert codec.lossy(["Open the clock", *hard, *CANONICAL]) == ([] if ours else hard)


def test_F5_any_tokenizer_gets_exactly_one_eos():
    codec = Codec(letters())
    assert codec.tokenizer.encode("Goal: x").ids[-1] == codec.eos_id  # as T5's tokenizer.json appends one
    for prompt in (make_prompt("Open the clock"), "Goal: x</s></s>", "Goal: x"):
        ids = codec.prompt_ids(prompt)
        assert ids.count(codec.eos_id) == 1 and ids[-1] == codec.eos_id


def test_a_tokenizer_of_another_network_is_refused(tmp_path):
    save_file(folder_of(tmp_path), tmp_path / "model.safetensors")
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="tokenizer has 731 words, the network 97"):
        AutoUIPolicy.load(tmp_path)


# ---------------------------------------------------------------------- a plain T5


def plain_t5(path: Path) -> T5ForConditionalGeneration:
    torch.manual_seed(3)
    model = T5ForConditionalGeneration(T5Config(vocab_size=97, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=3))
    model.eval().save_pretrained(path)
    letters().save(str(path / "tokenizer.json"))
    return model


def test_a_plain_t5_is_refused_unless_asked_for_and_then_all_image_layers_can_learn(tmp_path):
    plain_t5(tmp_path)
    with pytest.raises(ValueError, match="plain T5 has no image layers: --init-fusion"):
        AutoUIPolicy.load(tmp_path)
    policy = AutoUIPolicy.load(tmp_path, init_fusion=True)
    prompts, actions = [make_prompt("Open the clock")] * 2, [np.array([5, 6, 1], np.int32)] * 2
    x = np.random.default_rng(0).uniform(-1, 1, (2, FEATURE_DIM)).astype(np.float32)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for step in range(3):
        result = policy.evaluate(prompts, x, actions)
        if step == 0:  # the screen says nothing yet, whatever it shows
            assert torch.equal(*result.token_logprob.detach())
        optimizer.zero_grad()
        result.logprob[0].sub(result.logprob[1]).neg().backward()
        for name, p in policy.network.named_parameters():
            if step == 2 and name.startswith(("image_dense.weight", "mha_layer.out", "gate_dense")):
                assert p.grad.abs().sum() > 0, name
        optimizer.step()
    assert result.logprob[0] != result.logprob[1]
    before = dict(policy.network.state_dict())
    add_image_layers(before)  # an Auto-UI stays as it is
    assert before.keys() == policy.network.state_dict().keys()


def test_fresh_image_layers_stay_those_of_a_policy_that_is_saved(tmp_path):
    """The learner trains all of them, and no kind of features is the one that they were made for."""
    plain_t5(tmp_path)
    fresh = AutoUIPolicy.load(tmp_path, init_fusion=True)
    fresh.save(tmp_path / "new" / "policy.safetensors")
    again = AutoUIPolicy.load(tmp_path / "new" / "policy.safetensors")
    assert fresh.fresh_images and again.fresh_images and fresh.screens == again.screens == ""


def test_a_file_that_is_no_whole_t5_gets_no_image_layers(tmp_path):
    plain_t5(tmp_path)
    file, name = tmp_path / "model.safetensors", "encoder.final_layer_norm.weight"
    left = load_file(file)
    del left[name]
    save_file(left, file)
    with pytest.raises(ValueError, match=rf"not an Auto-UI checkpoint: missing \['{name}'.*\]$"):
        AutoUIPolicy.load(tmp_path, init_fusion=True)


# ---------------------------------------------------------------------- refusals


def test_F7_another_size_names_three_tensors_with_both_shapes_and_loads_nothing(tmp_path):
    weights = folder_of(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"d_model": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(trainer_file(weights, "model."), tmp_path / "trainer.pt")
    with pytest.raises(ValueError, match="another policy size") as error:
        AutoUIPolicy.load(tmp_path / "trainer.pt")
    assert str(error.value).count("in the file") == 3 and ", 24) in the file" in str(error.value)
    assert ", 32) here" in str(error.value)


def test_F10_another_feature_size_names_the_encoder(tmp_path):
    weights = folder_of(tmp_path)
    save_file(weights | {"image_dense.weight": torch.zeros(24, 768)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="features of 768 numbers, ours have 1408.*blip2-opt-2.7b"):
        AutoUIPolicy.load(tmp_path)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_F9_a_file_that_runs_code_is_refused_and_runs_none(tmp_path):
    folder_of(tmp_path)
    with open(tmp_path / "pickled.bin", "wb") as file:
        pickle.dump({"model.shared.weight": Malicious(tmp_path / "pwned")}, file)
    torch.save({"shared.weight": Malicious(tmp_path / "pwned")}, tmp_path / "saved.pt")
    for name in ("pickled.bin", "saved.pt"):
        with pytest.raises(ValueError, match="refused.*state_dict"):
            AutoUIPolicy.load(tmp_path / name)
    assert not (tmp_path / "pwned").exists()


def test_what_is_no_checkpoint_is_one_error_that_says_what_to_do(tmp_path):
    weights = folder_of(tmp_path / "a")
    cases = {"no config.json: copy": lambda p: (p / "config.json").unlink(),
             "is of 'bert', not of a T5": lambda p: (p / "config.json").write_text('{"model_type": "bert"}'),
             "is of 'list', not of a T5": lambda p: (p / "config.json").write_text("[]"),
             "no model.safetensors, pytorch_model.bin": lambda p: (p / "model.safetensors").unlink(),
             "no whole .safetensors": lambda p: (p / "model.safetensors").write_bytes(b"\1" * 90),
             "no T5 among its 1 tensors": lambda p: save_file({"a": torch.ones(1)}, p / "model.safetensors"),
             "adapters are not merged: save model.merge_and_unload": lambda p: save_file(
                 {"encoder.block.0.layer.0.SelfAttention.q.lora_A.weight": torch.ones(1)}, p / "model.safetensors"),
             "config.json cannot be read .*copy it there again": lambda p: (p / "config.json").write_text("{"),
             "2 T5s, under": lambda p: save_file({f"{x}.{k}": v.clone() for k, v in weights.items() for x in "ab"},
                                                 p / "model.safetensors")}  # fmt: skip
    for number, (message, spoil) in enumerate(cases.items()):
        path = tmp_path / str(number)
        save_file(folder_of(path), path / "model.safetensors")
        assert read_published(path)[0]["d_model"] == 24
        spoil(path)
        with pytest.raises((ValueError, OSError), match=message):
            AutoUIPolicy.load(path)
    torch.save(weights, tmp_path / "a" / "cut.pt")
    (tmp_path / "a" / "cut.pt").write_bytes((tmp_path / "a" / "cut.pt").read_bytes()[:9000])
    with pytest.raises(ValueError, match="cut.pt cannot be read.*copy it again"):
        AutoUIPolicy.load(tmp_path / "a" / "cut.pt")


def test_F14_three_lines_from_a_folder_to_an_action(tmp_path):
    save_file(folder_of(tmp_path), tmp_path / "model.safetensors")
    image = np.random.default_rng(0).integers(0, 256, (480, 270, 3), np.uint8)
    policy = AutoUIPolicy.load(tmp_path)
    output = policy.act([make_prompt("Open the clock")], thumbnail_features(image)[None], greedy=True)
    assert isinstance(parse_action(output.texts[0]), Action)
