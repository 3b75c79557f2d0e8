"""Published weights: a Hugging Face folder of Auto-UI or T5, or a .bin/.pt file of DigiRL or DistRL.

    config, state, notes = read_published(Path("Auto-UI-Base"))        # a folder
    config, state, notes = read_published(Path("digirl/trainer.pt"))   # a file next to its config.json
    AutoUIPolicy.load(path)                                            # policy.py: what uses them

A folder holds config.json, the tokenizer's files (`tokenizer.Codec.from_directory`) and the weights, whole or in
shards: *.safetensors or pytorch_model*.bin. DigiRL and DistRL save all their networks in one file: the policy under
`model.`, or `module.model.` after a parallel run, or in a dictionary under `model_state_dict`; beside it are critics
and optimisers, which are left out. `notes` says so in a sentence.

`add_image_layers` makes an Auto-UI of a plain T5. With gate weights 0, gate bias b and image output a = 0

    h' = (1 - g) (h / (1 - g)) + g 0 = h,    g = sigmoid(b)

so the network's output is the T5's, to rounding (1 / (1 - g) goes into the encoder's last norm), and every image layer
but the two below the zero output has a gradient from the first step on.

Departs from the authors' code: only tensors and JSON are read (`weights_only=True`), all weights fit or none is loaded.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from autoui import FEATURE_DIM

PICKLED = (".bin", ".pt", ".pth")
MARK = "encoder.block.0.layer.0.SelfAttention.q.weight"  # in every T5, in nothing else: what is before it is the prefix
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # one tensor, three names
PLAIN = ("shared.weight", "encoder.final_layer_norm.weight")  # what fresh image layers are made for
GATE_BIAS = -2.0  # of fresh image layers: the gate lets 12 % through


def read_published(path: Path) -> tuple[dict, dict[str, Tensor], list[str]]:
    """(config, weights by their published names, notes). Errors: ValueError or OSError, with what to do."""
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} has no config.json: copy the network's config.json and tokenizer there")
    try:
        config = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} cannot be read ({error}): copy it there again") from error
    if not isinstance(config, dict) or config.get("model_type", "t5") != "t5":
        found = config.get("model_type") if isinstance(config, dict) else type(config).__name__
        raise ValueError(f"{folder / 'config.json'} is of {found!r}, not of a T5: give Auto-UI's or a T5's folder")
    from_5 = config.get("scale_decoder_outputs") is False  # transformers 5: "tied", whatever the output layer is
    if from_5:
        config["tie_word_embeddings"] = False
    raw: dict[str, Tensor] = {}
    for file in weight_files(folder) if path.is_dir() else [path]:
        raw |= _tensors(file)
    state, notes = policy_weights(raw)
    for name in EMBEDDINGS:
        if "shared.weight" not in state and name in state:  # savers that keep one name of a tensor may keep any
            state["shared.weight"] = state[name]
    if from_5 and "shared.weight" in state:  # which leaves it out of the file where both are one tensor
        state.setdefault("lm_head.weight", state["shared.weight"])
    image = state.get("image_dense.weight")
    if image is not None and image.shape[-1] != FEATURE_DIM:
        raise ValueError(
            f"this Auto-UI takes screen features of {image.shape[-1]} numbers, ours have {FEATURE_DIM}: use one "
            "trained on the pooled vision feature of BLIP-2 (Salesforce/blip2-opt-2.7b)"
        )
    return config, state, notes


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights: an index's shards (all must be there), or the one file."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if index.exists():
            try:
                shards = set(json.loads(index.read_text())["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{index} is no index of shards ({error!r}): copy it there again") from error
            files = [folder / Path(shard).name for shard in sorted(shards)]  # in this folder, whatever it says
            missing = [file.name for file in files if not file.exists()]
            if missing:
                lacks = f"lacks {len(missing)} of {len(files)} shards"
                raise FileNotFoundError(f"{folder} {lacks}: copy {missing[0]} there")
            return files
        if (folder / name).exists():
            return [folder / name]
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if len(files) != 1:
        raise FileNotFoundError(
            f"{folder} has no model.safetensors, pytorch_model.bin or index of shards, and {len(files)} others: copy "
            "the checkpoint's weights there, or name the file itself"
        )
    return files


@contextmanager
def open_tensors(file: Path):
    """What safe_open gives. ValueError: it is no .safetensors file, or cut."""
    try:
        with safe_open(file, "pt") as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file.name} is no whole .safetensors file ({error}): copy it again") from error


def _tensors(file: Path) -> dict[str, Tensor]:
    """All tensors of a file, those in nested dictionaries under `outer.inner`."""
    if file.suffix not in PICKLED:
        with open_tensors(file) as weights:
            return {key: weights.get_tensor(key) for key in weights.keys()}
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file.name} is damaged, or holds more than tensors and plain values and may run code when loaded: "
            "refused. Save the state_dict alone, with torch.save(model.state_dict(), ...)"
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"{file.name} cannot be read ({str(error).partition(chr(10))[0]}): copy it again") from error
    found: dict[str, Tensor] = {}

    def visit(content, name: str) -> None:
        if isinstance(content, dict):
            for key, value in content.items():
                visit(value, f"{name}.{key}" if name else str(key))
        elif isinstance(content, Tensor):
            found[name] = content

    visit(content, "")
    return found


def policy_weights(raw: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The T5 among the networks of a file, its prefix taken off; a note on what was left out."""
    if any(".lora_A." in key for key in raw):
        raise ValueError("its LoRA adapters are not merged: save model.merge_and_unload().state_dict() instead")
    prefixes = sorted(key.removesuffix(MARK) for key in raw if key == MARK or key.endswith("." + MARK))
    if not prefixes:
        first = sorted(raw)[:3]
        raise ValueError(f"no T5 among its {len(raw)} tensors (first: {first}): give Auto-UI's or a T5's weights")
    if len(prefixes) > 1:
        raise ValueError(f"{len(prefixes)} T5s, under {prefixes[:3]}: save the state_dict of one of them alone")
    prefix = prefixes[0]
    state = {key.removeprefix(prefix): value for key, value in raw.items() if key.startswith(prefix)}
    others = Counter(_owner(key, prefix) for key in raw if not key.startswith(prefix))
    left = ", ".join(f"{name} ({number} tensors)" for name, number in sorted(others.items()))
    notes = [f"the policy's {len(state)} tensors are under '{prefix}'; left out: {left}"] if left else []
    return state, notes


def _owner(key: str, prefix: str) -> str:
    """Which network a tensor belongs to: the first part of its name after what it shares with the policy's."""
    parts, shared = key.split("."), prefix.split(".")[:-1]
    same = next((i for i, (a, b) in enumerate(zip(parts, shared, strict=False)) if a != b), 0)
    return parts[same]


def add_image_layers(state: dict[str, Tensor]) -> bool:
    """Gives a plain T5's weights image layers that leave its output as it is; see the module's docstring. False: it
    has its own, or is no whole T5."""
    if "image_dense.weight" in state or not state.keys() >= set(PLAIN):
        return False
    d = state["shared.weight"].shape[1]
    generator = torch.Generator().manual_seed(0)  # every process that loads the folder makes the same layers
    gate = torch.sigmoid(torch.tensor(GATE_BIAS))
    state |= {
        "image_dense.weight": torch.randn(d, FEATURE_DIM, generator=generator) * FEATURE_DIM**-0.5,
        "image_dense.bias": torch.zeros(d),
        "mha_layer.in_proj_weight": torch.randn(3 * d, d, generator=generator) * d**-0.5,
        "mha_layer.in_proj_bias": torch.zeros(3 * d),
        "mha_layer.out_proj.weight": torch.zeros(d, d),
        "mha_layer.out_proj.bias": torch.zeros(d),
        "gate_dense.weight": torch.zeros(d, 2 * d),
        "gate_dense.bias": torch.full((d,), GATE_BIAS),
        "encoder.final_layer_norm.weight": state["encoder.final_layer_norm.weight"].float() / (1 - gate),
    }
    return True


def differences(there: Mapping, here: Mapping, where: str) -> list[str]:
    """Both shapes, in words, of each tensor that has not the same one `there` and `here`, or is absent on one side."""
    shapes = {
        name: [tuple(side[name].shape) if name in side else "absent" for side in (there, here)]
        for name in (*here, *sorted(there.keys() - here.keys()))
    }
    return [f"{name}: {a} in the {where}, {b} here" for name, (a, b) in shapes.items() if a != b]


def refuse_another(policy, state: dict) -> None:
    """ValueError: a checkpoint of `Learner` that belongs to another policy or tokenizer than this one."""
    from lora import changed_base

    here, there = policy.state_dict(), state["policy"]
    if wrong := differences(there, here, "checkpoint"):
        what = "a policy of another size: put the --policy of then back"
        raise ValueError(f"{what}; {len(wrong)} tensors differ: " + "; ".join(wrong[:3]))
    if state.get("vocabulary") not in (None, policy.codec.fingerprint()):  # None: an older checkpoint
        raise ValueError("another tokenizer than the run began with: put the old one back beside --policy")
    if changed := changed_base(policy, there):
        what = f"{len(changed)} tensors differ: {', '.join(changed[:3])}"
        raise ValueError(f"--policy has other weights than the run began with ({what}), and its adapters belong to "
                         "the old ones: put the old file back")  # fmt: skip
