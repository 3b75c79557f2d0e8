"""A screenshot as 1408 numbers, the screen half of the policy's state.

`thumbnail_features` needs no download: 22 x 16 cells of the screen, in each the mean of R, G and B and how
much the cell varies. `Blip2Features` is the paper's: BLIP-2 (opt-2.7b)'s vision encoder, pooled, also 1408.

    features = thumbnail_features(image)             # uint8 [H, W, 3] -> float32 [1408]
    features = Blip2Features("path/to/blip2-opt-2.7b").batch(images)      # [B, 1408]

Departs from the paper: the small policy sees the thumbnail instead of BLIP-2's feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

FEATURE_DIM = 1408
ROWS, COLUMNS = 22, 16
CONTRAST = 32.0  # grey levels of deviation that count as full contrast: text on a page has about 40


def thumbnail_features(image: np.ndarray) -> np.ndarray:
    """float32 [1408] in [-1, 1] of a screenshot uint8 [H, W, 3]: 22 x 16 cells x (R, G, B mean, contrast).

    Rounded to float16, as trajectories keep them: what is trained on is then what was acted on.
    """
    image = _checked(image)
    picture = Image.fromarray(image)
    factor = max(1, min(image.shape[0] // 400, image.shape[1] // 200))
    if factor > 1:
        picture = picture.reduce(factor)
    size, box = (COLUMNS, ROWS), Image.Resampling.BOX
    cells = np.empty((ROWS, COLUMNS, 4), np.float32)
    cells[..., :3] = np.asarray(picture.resize(size, box), np.float32) / 127.5 - 1.0
    grey = picture.convert("L").reduce(2)
    levels = np.asarray(grey, np.float32)
    mean = np.asarray(Image.fromarray(levels).resize(size, box))
    square = np.asarray(Image.fromarray(levels * levels).resize(size, box))
    deviation = np.sqrt(np.maximum(square - mean * mean, 0.0))
    cells[..., 3] = np.minimum(deviation / CONTRAST, 1.0) * 2.0 - 1.0
    return cells.reshape(FEATURE_DIM).astype(np.float16).astype(np.float32)


class Blip2Features:
    """BLIP-2's pooled vision feature from a local checkpoint of the whole model or of its vision part."""

    MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, path: str | Path):
        from transformers import Blip2Config, Blip2VisionConfig, Blip2VisionModel
        from transformers.utils import logging

        whole = Blip2Config.get_config_dict(path)[0].get("model_type") == "blip-2"
        config = (Blip2Config if whole else Blip2VisionConfig).from_pretrained(path)
        config = config.vision_config if whole else config
        check_feature_dim(config.hidden_size, path)
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # the language model's weights are left out on purpose
        logging.disable_progress_bar()
        try:
            # Without the mapping a whole checkpoint's vision weights are silently left random.
            self.model, info = Blip2VisionModel.from_pretrained(
                path, config=config, key_mapping={r"^vision_model\.": ""}, output_loading_info=True
            )
        finally:
            logging.set_verbosity(verbosity)
        if info["missing_keys"]:
            raise ValueError(f"no vision weights in {path}: {sorted(info['missing_keys'])[:3]} are missing")
        self.model.float().eval()  # a folder saved in half precision loads in it
        self.size = config.image_size

    def to(self, device) -> Blip2Features:
        """Compute there."""
        self.model.to(device)
        return self

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """float32 [1408] of a screenshot uint8 [H, W, 3]."""
        return self.batch([image])[0]

    def batch(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [B, 1408] of B screenshots uint8 [H, W, 3] of any sizes.

        Rounded to float16, as trajectories keep them: what is trained on is then what was acted on.
        """
        import torch

        pixels = np.empty((len(images), self.size, self.size, 3), np.float32)
        for row, image in zip(pixels, images, strict=True):
            picture = Image.fromarray(_checked(image)).resize((self.size, self.size), Image.Resampling.BICUBIC)
            row[:] = (np.asarray(picture, np.float32) / 255.0 - self.MEAN) / self.STD
        with torch.inference_mode():
            images = torch.from_numpy(pixels).to(self.model.device)
            pooled = self.model(images.permute(0, 3, 1, 2)).pooler_output
        return pooled.half().float().cpu().numpy()


def check_feature_dim(size: int, path: str | Path) -> None:
    """ValueError when a vision encoder's hidden size is not that of Auto-UI's features."""
    if size != FEATURE_DIM:
        raise ValueError(
            f"the vision encoder at {path} gives {size} numbers, Auto-UI takes {FEATURE_DIM}: use BLIP-2 opt-2.7b's"
        )


def _checked(image: np.ndarray) -> np.ndarray:
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or min(image.shape[:2]) < 2 * ROWS:
        raise ValueError(f"a screenshot is uint8 [H, W, 3] from 44 x 44 on, got {image.dtype} {image.shape}")
    return np.ascontiguousarray(image)
