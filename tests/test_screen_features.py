"""Screen features: what a cell holds, any screen size, and BLIP-2's loader on a small checkpoint."""

import numpy as np
import pytest
from PIL import Image

from screen_features import COLUMNS, FEATURE_DIM, ROWS, Blip2Features, thumbnail_features


def cells(image):
    return thumbnail_features(image).reshape(ROWS, COLUMNS, 4)


def test_a_plain_screen_has_its_colour_and_no_contrast():
    image = np.zeros((480, 270, 3), np.uint8)
    image[:] = (255, 0, 51)
    features = cells(image)
    assert features.dtype == np.float32 and features.size == FEATURE_DIM
    np.testing.assert_allclose(features, np.broadcast_to([1.0, -1.0, -0.6, -1.0], features.shape), atol=0.01)


def test_text_shows_as_contrast_where_it_is():
    image = np.full((480, 270, 3), 255, np.uint8)
    image[240:262:2, 100:140] = 0  # stripes of two rows are averaged out, of one not all
    image[300:340:8, 17:34] = 0
    features = cells(image)
    assert features[14, 1, 3] > 0 and features[2, 2, 3] == -1
    assert features.min() >= -1 and features.max() <= 1


@pytest.mark.parametrize("shape", [(480, 270), (960, 540), (2280, 1080), (1080, 2280), (1500, 200), (44, 44)])
def test_any_screen_size_gives_the_same_halves(shape):
    image = np.zeros((*shape, 3), np.uint8)
    image[: shape[0] // 2, :, 0] = 255  # the upper half red
    features = cells(image)
    assert (features[:10, :, 0] > 0.99).all() and (features[12:, :, 0] < -0.99).all()


def test_a_wrong_array_is_refused():
    for image in (np.zeros((480, 270), np.uint8), np.zeros((480, 270, 3)), np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            thumbnail_features(image)


def blip2(hidden):
    from transformers import Blip2Config, Blip2ForConditionalGeneration

    config = Blip2Config(
        vision_config=dict(
            hidden_size=hidden,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
        ),
        qformer_config=dict(
            vocab_size=8,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            encoder_hidden_size=hidden,
        ),
        text_config=dict(
            model_type="opt",
            vocab_size=16,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=8,
            word_embed_proj_dim=8,
            max_position_embeddings=16,
        ),
        num_query_tokens=2,
    )
    return Blip2ForConditionalGeneration(config).eval()


def test_blip2_features_are_those_of_the_vision_part(tmp_path):
    import torch

    model = blip2(FEATURE_DIM)
    with torch.no_grad():
        for p in model.vision_model.parameters():
            p.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(p.numel()))
    model.save_pretrained(tmp_path / "whole")
    model.vision_model.save_pretrained(tmp_path / "vision")
    image = np.random.default_rng(0).integers(0, 256, (480, 270, 3), np.uint8)
    whole, vision = Blip2Features(tmp_path / "whole"), Blip2Features(tmp_path / "vision")
    for key, value in model.vision_model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[key]), key
    np.testing.assert_array_equal(whole(image), vision(image))
    assert whole(image).shape == (FEATURE_DIM,) and not np.array_equal(whole(image), whole(image[::-1]))
    others = [image, image[::-1].copy(), image[:200, :100].copy()]  # of several sizes
    batch = whole.batch(others)
    assert batch.shape == (3, FEATURE_DIM) and (batch == batch.astype(np.float16)).all()  # as trajectories keep them
    np.testing.assert_allclose(batch, [whole(other) for other in others], atol=1e-2, rtol=1e-2)
    pixels = np.asarray(Image.fromarray(image).resize((28, 28), Image.Resampling.BICUBIC), np.float32) / 255
    pixels = torch.from_numpy((pixels - Blip2Features.MEAN) / Blip2Features.STD).float().permute(2, 0, 1)[None]
    with torch.no_grad():  # the vision part's own pooled output, not the Q-Former's
        wanted = model.vision_model(pixels).pooler_output[0].numpy()
    np.testing.assert_allclose(batch[0], wanted, atol=2e-2, rtol=1e-2)


def test_a_checkpoint_without_all_vision_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    blip2(FEATURE_DIM).save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in state.items() if "fc1" not in k or "vision" not in k}, tmp_path / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    with pytest.raises(ValueError, match="no vision weights.*fc1.*are missing"):
        Blip2Features(tmp_path)


def test_F10_another_vision_encoder_is_refused(tmp_path):
    blip2(16).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="gives 16 numbers, Auto-UI takes 1408.*opt-2.7b"):
        Blip2Features(tmp_path)


def test_the_policy_server_looks_at_screens_that_workers_send(tmp_path):
    import torch
    from test_lora import served, small

    from shared_weights import SharedWeights

    policy, model = small(), blip2(FEATURE_DIM)
    with torch.no_grad():
        for p in model.vision_model.parameters():
            p.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(p.numel()))
    model.save_pretrained(tmp_path / "blip2")
    policy.save(tmp_path / "p.safetensors")
    size = sum(p.numel() for p in policy.parameters())
    images = [np.random.default_rng(i).integers(0, 256, (480, 270, 3), np.uint8) for i in range(2)]
    wanted = Blip2Features(tmp_path / "blip2").batch(images)
    questions = [images[0], ("Goal: Open the clock", wanted[0], True), images[1]]
    weights = lambda context: SharedWeights(context, size)  # noqa: E731
    one, sample, two = served(tmp_path / "p.safetensors", weights, questions, blip2=tmp_path / "blip2")
    np.testing.assert_allclose([one, two], wanted, atol=1e-2, rtol=1e-2)
    assert not np.array_equal(one, two)
    assert sample.text == policy.act(["Goal: Open the clock"], wanted[:1], greedy=True).texts[0]
