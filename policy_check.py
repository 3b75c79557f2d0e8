"""What of the policy's flags can be refused before a network is loaded: its files, its numbers, its GPUs.

    check_policy(args.policy)                        # UsageError: the flag, its value, what to do
"""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from run_folder import UsageError
from screen_features import FEATURE_DIM, check_feature_dim


def check_policy(args) -> None:
    """UsageError for what is wrong with `args.PolicyArgs`. A run in the place of a policy becomes its policy."""
    from evaluation import folder_of

    check_transformers()
    if args.policy and args.policy == folder_of(args.policy):  # a run: what it ended with
        args.policy = args.policy / "policy.safetensors"
    if args.device != "cpu" or args.server_device not in ("", "cpu"):  # only then torch is needed to answer
        from devices import check_device

        check_device("--device", args.device, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))  # that of torchrun
        check_device("--server-device", args.server_device or args.device)
    if args.policy and not args.policy.exists():
        raise UsageError(f"--policy {args.policy}: no such file or folder")
    if args.precision not in ("fp32", "bf16"):
        why = " (T5's feed-forward overflows in fp16: 66246 > 65504)" if args.precision == "fp16" else ""
        raise UsageError(f"--precision {args.precision}: use bf16 or fp32{why}")
    if args.lora and not (find_spec("peft") and find_spec("accelerate")):
        raise UsageError(f"--lora {args.lora} needs peft: pip install peft")
    if args.lora and args.init_fusion:
        raise UsageError("--lora with --init-fusion: fresh image layers must be trained, and LoRA does not: choose one")
    if args.init_fusion and not args.policy:
        raise UsageError("--init-fusion needs --policy: the folder of a plain T5")
    if args.screen_features != "thumbnail":
        folder = Path(args.screen_features)
        if not args.policy:
            raise UsageError("--screen-features needs --policy: the shipped warm start knows thumbnails only")
        config = read_model_config("--screen-features", folder)
        vision = config.get("vision_config") or config
        if config.get("model_type") not in ("blip-2", "blip_2_vision_model") or not isinstance(vision, dict):
            raise UsageError(f"--screen-features {folder}: not BLIP-2 but {config.get('model_type')!r}: use opt-2.7b's")
        try:
            check_feature_dim(vision.get("hidden_size", FEATURE_DIM), folder)
        except ValueError as error:
            raise UsageError(f"--screen-features: {error}") from error
        args.screen_features = str(folder.absolute())  # as --resume may run elsewhere
    if args.critic_encoder:
        kind = read_model_config("--critic-encoder", args.critic_encoder).get("model_type")
        if kind != "roberta":
            raise UsageError(f"--critic-encoder {args.critic_encoder}: not a RoBERTa but {kind!r}")


def check_transformers() -> None:
    """Refuses releases beyond requirements.txt: they may lay T5 out otherwise, or compute other numbers in silence."""
    requirements = Path(__file__).with_name("requirements.txt").read_text()
    low, high = re.search(r"^transformers>=([\d.]+),<([\d.]+)$", requirements, re.M).groups()
    try:
        found = version("transformers")
    except PackageNotFoundError:
        found = "none"
    oldest, ours, next_one = (tuple(map(int, re.findall(r"\d+", v)[:3])) for v in (low, found, high))
    if not oldest <= ours < next_one:
        install = f"pip install 'transformers>={low},<{high}'"
        raise UsageError(f"transformers {found} is installed, {low} up to below {high} is supported: {install}")


def read_model_config(flag: str, folder: Path) -> dict:
    """config.json of a network's folder."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{flag} {folder}: its config.json cannot be read ({why}): give a network's folder") from error
    if not isinstance(config, dict):
        raise UsageError(f"{flag} {folder}: its config.json is not one of a network: give a network's folder")
    return config
