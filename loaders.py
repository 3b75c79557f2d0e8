"""What flags name and a run needs in memory: the policy, the critics' text encoder, what sees the screens.

    policy, path = load_policy(args)                    # UsageError: the flag, its value, what is wrong with it
    encoder, see = load_text_encoder(args), load_screen_features(args)
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError

from args import Args
from run_folder import UsageError

WARM_START = Path(__file__).resolve().parent / "warm_start.safetensors"
UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError)


def load_policy(args: Args):
    """The policy to start from and its path; builds and caches the warm start when its file is missing."""
    from lora import add_lora
    from policy import AutoUIPolicy

    path = args.policy.policy or WARM_START
    if path == WARM_START and not path.exists():
        from warm_start import build

        print("No warm start found: building it once from demonstrations (about 40 minutes).")
        build(path)
    try:
        policy = AutoUIPolicy.load(path, init_fusion=args.policy.init_fusion)
    except UNREADABLE as error:
        raise _unfit("--eval" if path == args.run.eval else "--policy", path, error) from error
    for note in policy.notes:
        print(f"--policy {path}: {note}")
    seen = "thumbnail" if args.policy.screen_features == "thumbnail" else "blip2"
    if policy.screens and policy.screens != seen:
        print(f"--policy {path}: warning: made for {policy.screens} features, not {seen} ones: see --screen-features")
    policy.screens = seen
    if args.policy.lora:
        add_lora(policy, args.policy.lora, seed=args.run.seed)
    policy.autocast = args.policy.precision == "bf16"
    return policy, path


def load_text_encoder(args: Args):
    """The critics' RoBERTa, None without one."""
    from critics import RobertaText

    path = args.policy.critic_encoder
    try:
        return RobertaText(path) if path else None
    except UNREADABLE as error:
        raise _unfit("--critic-encoder", path, error) from error


def load_screen_features(args: Args):
    """What turns a screenshot into a feature. BLIP-2 is loaded here in any case, so that a bad one is refused."""
    from screen_features import Blip2Features, thumbnail_features

    path = args.policy.screen_features
    try:
        return thumbnail_features if path == "thumbnail" else Blip2Features(path)
    except UNREADABLE as error:
        raise _unfit("--screen-features", path, error) from error


def _unfit(flag: str, path, error: Exception) -> UsageError:
    if isinstance(error, SafetensorError):  # as transformers lets it through
        return UsageError(f"{flag} {path}: its .safetensors file is not whole ({error}): copy it again")
    return UsageError(f"{flag} {path}: {error}")
