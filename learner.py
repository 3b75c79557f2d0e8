"""The learner: A-RIDE updates on trajectories drawn by DPER, or a baseline's. One object, one process, no threads.

One `update()` is the paper's inner loop (section 4.3):

  1. draw whole trajectories with probability proportional to p^alpha (replay.py);
  2. values V(s_0..s_T) from the critic, log pi of the stored token ids, log rho = log pi - log mu;
  3. Retrace targets V_ret, advantages r + gamma V_ret(s') - V(s), scaled and clipped (aride.py);
  4. one step of the actor on -rho A log pi - beta H + lambda P_invalid, some steps of the critics;
  5. new priorities for the trajectories just used; every `REFRESH_EVERY` updates for all of them.

`--algo` puts a baseline (baselines.py) in the place of 1, 3, 4: its draw in `_batch`, its advantages in `_targets`,
what its V learns in `_labels`, its loss in `_update_policy`; all else is the same. `--top-quantile` draws what the
policy learns from out of the trajectories with the highest R - V_traj.

    learner = Learner(policy, AlgorithmArgs())       # args.py: every hyperparameter, a sentence each
    learner.add(trajectory, id=journal_id)
    if learner.ready:
        metrics = learner.update()

Departs from the paper
  - V is trained on the discounted return (soft labels), not on 1[G > 0]: with gamma < 1 a success *probability* makes
    the advantage of every good step about -(1 - gamma) V, which unlearns what works. At a cut it bootstraps. Ratios
    are left at 1, lambda too: critics learn what happened, the actor's targets are corrected.
  - The critic learns alone first (`critic_warmup` updates on the first `learning_starts` trajectories): an untrained
    critic's advantages destroyed the policy.
  - An invalid action counts in the invalid-action term alone. It did nothing, and its tokens, up to 64 improbable ones,
    would outweigh the whole batch in the advantage term.
  - The screens' projection (`image_dense`) is not trained: it stays as the warm start left it.
  - Negative advantages are scaled by `negative_scale`: pushing probability away from one action gives it to any other.
  - DPER: only the batch that the policy learns from sets new priorities, the critics' further batches do not. All are
    refreshed every 200 updates, 400 trajectories at the defaults. A ratio counts as at most 10 in them.
"""

from __future__ import annotations

import numpy as np
import torch

import aride
import baselines
from checkpoints import refuse_another
from critics import StepCritic, TrajectoryCritic, last_two_screens
from devices import put
from lora import adapters
from policy import AutoUIPolicy
from replay import PrioritizedReplay, Trajectory, pad_batch


class Learner:
    """Owns the policy being trained, both critics, their optimisers and the replay."""

    CRITIC_LEARNING_RATE = 1e-3
    CRITIC_UPDATES = 3  # of the critics for each one of the policy
    ADVANTAGE_CLIP = 3.0  # in deviations
    MAX_GRAD_NORM = 1.0  # policy and critics apart
    REFRESH_EVERY = 200  # updates between refreshes of all priorities
    REFRESH_ROWS = 32  # trajectories that a refresh puts through the networks at once

    def __init__(self, policy: AutoUIPolicy, config, seed: int = 0, text_encoder=None):
        self.config, self.policy = config, policy
        # IMPALA steps both once a batch; cloning has no critic.
        self.critic_updates = {"vtrace": 1, "filtered_bc": 0}.get(config.algo, self.CRITIC_UPDATES)
        self.critic_warmup = config.critic_warmup if self.critic_updates else 0
        top = config.top_quantile or baselines.TOP_QUANTILE.get(config.algo, 1.0)
        self.top = top if top < 1 else None  # None: the policy learns from all that is held, as the critics do
        self.critic = StepCritic(policy.codec, seed=seed, encoder=text_encoder)
        self.trajectory_critic = TrajectoryCritic(policy.codec, seed=seed, encoder=text_encoder)
        # One step of this layer moves the code of every screen at once, and the skills of all tasks with it. A layer
        # that has been made at random has no such skills, and must learn.
        policy.network.image_dense.requires_grad_(policy.fresh_images and not adapters(policy.network))
        trained = [p for p in policy.parameters() if p.requires_grad]
        self.policy_optimizer = torch.optim.Adam(trained, lr=config.learning_rate, betas=(0.9, 0.99), fused=True)
        critics = [*self.critic.parameters(), *self.trajectory_critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(critics, lr=self.CRITIC_LEARNING_RATE, fused=True)
        self.replay = PrioritizedReplay(config.replay_capacity, alpha=config.priority_alpha, seed=seed)
        self.critic_steps = 0  # updates of the critics alone, before the first of the policy
        self.updates = 0  # updates of the policy
        self.progress = 0.0  # share of the training budget that is used up, set by the caller
        self.seen = 0  # trajectories ever added
        self.skipped = 0  # steps of an optimiser that were skipped because something was not finite
        # Of each trajectory since this was emptied: (update, V [T] or None, advantages [T]) of the last that drew it.
        self.learnt: dict[int, tuple[int, list[float] | None, list[float]]] = {}
        self._in_a_row = {self.policy_optimizer: 0, self.critic_optimizer: 0}
        self.team = None  # data_parallel.Team: other processes that learn with this one

    def to(self, device: torch.device) -> None:
        """Compute there from now on. Parameters stay the same objects, and optimisers keep their moments."""
        for module in filter(None, (self.policy, self.critic, self.trajectory_critic, self.critic.encoder)):
            module.to(device)
        for optimizer in (self.policy_optimizer, self.critic_optimizer):
            optimizer.load_state_dict(optimizer.state_dict())
        if device.type == "cuda":  # as NCCL wants it
            torch.cuda.set_device(device)

    def add(self, trajectory: Trajectory, id: int) -> None:
        """Give a judged trajectory to the replay, at the highest priority in use."""
        if trajectory.success is None:
            raise ValueError(f"trajectory {id} has no verdict: it must not be trained on as a failure")
        self.replay.add(trajectory, id=id)
        self.seen += 1

    @property
    def ready(self) -> bool:
        """Is there enough new data for another update?"""
        config = self.config
        if self.seen < max(1, config.learning_starts):
            return False
        if self.critic_steps < self.critic_warmup:
            return True
        return self.updates < (self.seen - config.learning_starts) * config.updates_per_trajectory

    def update(self) -> dict[str, float]:
        """One update of the critics and, once they are warm, of the policy. Returns the metrics of this update."""
        config, metrics = self.config, {}
        if self.team and not self.team.rank:
            self.team.begin(self.progress)
        if self.critic_steps < self.critic_warmup:
            self.critic_steps += 1
            batch = self._batch()
            return self._joint(self._update_critics(batch), batch)
        for group in self.policy_optimizer.param_groups:  # up, as Adam's first steps are large, then down to 0
            group["lr"] = config.learning_rate * min((self.updates + 1) / 80, max(0.0, 1 - self.progress))
        for _ in range(self.critic_updates):
            batch = self._batch()
            metrics = self._joint(self._update_critics(batch), batch)
        if self.top or not self.critic_updates:
            batch = self._batch(top=self.top)
        metrics |= self._joint(self._update_policy(batch), batch)
        self.updates += 1
        if config.algo == "aride" and self.updates % self.REFRESH_EVERY == 0 and len(self.replay):
            self._refresh_priorities()
        return metrics

    def _finite(self, *tensors: torch.Tensor) -> bool:
        finite = all(bool(x.isfinite().all()) for x in tensors)
        return self.team.all(finite) if self.team else finite

    def _joint(self, metrics: dict[str, float], batch: dict) -> dict[str, float]:
        return self.team.merge(metrics, int(batch["mask"].sum()), len(batch["trajectories"])) if self.team else metrics

    # ------------------------------------------------------------------ parts of an update

    def _batch(self, trajectories: list[Trajectory] | None = None, ids=None, top: float | None = None) -> dict:
        """Tensors of sampled (or given) trajectories: [B, T] padded ones, and flat lists over the N valid steps."""
        shares = {}
        if trajectories is None:
            ids, trajectories, shares = self._drawn(top)
        device = self.policy.device
        batch = {name: put(array, device) for name, array in pad_batch(trajectories).items()} | shares
        batch["ids"], batch["trajectories"] = ids, trajectories
        batch["prompts"] = [p for t in trajectories for p in t.prompts[:-1]]  # N
        batch["token_ids"] = [ids for t in trajectories for ids in t.token_ids]  # N
        batch["features"] = np.concatenate([t.features[:-1] for t in trajectories]).astype(np.float32)  # [N, 1408]
        screens = np.concatenate([last_two_screens(t.features) for t in trajectories]).astype(np.float32)
        batch["screens"] = put(screens, device)  # [N+B, 2, 1408]
        batch["all_prompts"] = [p for t in trajectories for p in t.prompts]  # N + B
        lengths = [len(t.prompts) for t in trajectories]
        batch["is_state"] = put(np.concatenate([np.arange(n) < n - 1 for n in lengths]), device)  # [N+B]: has an action
        batch["is_next"] = put(np.concatenate([np.arange(n) > 0 for n in lengths]), device)  # [N+B]: follows an action
        return batch

    def _drawn(self, top: float | None) -> tuple:
        """(ids, trajectories, facts) of a batch from the replay. In a team: of this process's share of it."""
        ids = trajectories = None
        if not (self.team and self.team.rank):
            if top and self.critic_updates:  # else all have the same V_traj, and R alone ranks them
                self._label_trajectories()
            uniform = self.config.algo != "aride"  # DPER is A-RIDE's
            ids, trajectories, _ = self.replay.sample(self.config.batch_trajectories, uniform=uniform, top=top)
        if not self.team:
            return ids, trajectories, {}
        mine, hand, of_steps, of_trajectories = self.team.deal(ids, trajectories)
        facts = {"of_steps": of_steps, "of_trajectories": of_trajectories, "drawn": mine if ids is None else ids}
        return mine, hand, facts

    def _scatter(self, flat: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """[N] over the valid steps -> [B, T], zero elsewhere."""
        padded = torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device)
        padded[mask] = flat
        return padded

    def _terms(self, batch: dict, flat_values: torch.Tensor) -> dict:
        """What all targets and advantages are made of, [B, T] each, for V [N+B]."""
        mask = batch["mask"]
        return dict(
            rewards=batch["rewards"], values=self._scatter(flat_values[batch["is_state"]], mask),
            next_values=self._scatter(flat_values[batch["is_next"]], mask), terminated=batch["terminated"], mask=mask,
            gamma=self.config.gamma,
        )  # fmt: skip

    def _corrected(self, batch: dict, log_rho: torch.Tensor, terms: dict, lam: float) -> torch.Tensor:
        """Off-policy value targets, [B, T]: Retrace's or V-trace's."""
        config = self.config
        target = aride.vtrace if config.algo == "vtrace" or config.target == "vtrace" else aride.retrace
        return target(**terms, truncated=batch["truncated"], log_rho=log_rho, lam=lam)

    @torch.no_grad()
    def _targets(self, batch: dict, log_rho: torch.Tensor, flat_values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The actor's value targets and raw advantages, both [B, T], for log_rho [B, T] and V [N+B]."""
        config, terms = self.config, self._terms(batch, flat_values)
        if config.algo == "filtered_bc":
            return terms["values"], baselines.outcome_advantages(rewards=batch["rewards"], mask=batch["mask"])
        if config.algo in ("digirl", "digirl_paper"):
            return terms["values"], baselines.digirl_advantages(**terms, published=config.algo == "digirl_paper")
        if config.algo == "aride" and config.target == "one_step":
            td_errors = aride.td_errors(**terms)
            return terms["values"] + td_errors, td_errors
        targets = self._corrected(batch, log_rho, terms, 1.0 if config.algo == "vtrace" else config.retrace_lambda)
        return targets, aride.advantages(**terms, truncated=batch["truncated"], targets=targets)

    @torch.no_grad()
    def _labels(self, batch: dict, flat_values: torch.Tensor) -> tuple[torch.Tensor, bool] | None:
        """What V_step learns, [B, T], and whether that is a soft label. None: the policy is not finite."""
        if self.config.algo in ("digirl", "digirl_paper"):  # the outcome
            return aride.discounted_returns(rewards=batch["rewards"], mask=batch["mask"], gamma=1.0), False
        log_rho = torch.zeros_like(batch["rewards"])
        if self.config.algo == "vtrace" and self.updates:  # IMPALA's critic is corrected too
            log_rho = self._scores(batch)[0] - batch["behavior_logprob"]
            if not self._finite(log_rho):
                return None
        return self._corrected(batch, log_rho, self._terms(batch, flat_values), 1.0), True

    def _scores(self, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:  # log pi and entropy of the actions, [B, T]
        evaluation = self.policy.evaluate(batch["prompts"], batch["features"], batch["token_ids"])
        return self._scatter(evaluation.logprob, batch["mask"]), self._scatter(evaluation.entropy, batch["mask"])

    def _values(self, batch: dict) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [N+B, 2] with gradient and V [N+B] without, for every state of the batch."""
        logits = self.critic(batch["all_prompts"], batch["screens"])
        return logits, aride.step_values(logits).detach()

    def _trajectory_logits(self, trajectories: list[Trajectory]) -> torch.Tensor:  # [B]
        first = np.stack([t.features[0] for t in trajectories]).astype(np.float32)  # [B, 1408]
        return self.trajectory_critic([t.prompts[0] for t in trajectories], first)

    def _update_critics(self, batch: dict) -> dict[str, float]:
        mask = batch["mask"]
        trajectories = batch["trajectories"]
        (logits, values), trajectory_logits = self._values(batch), self._trajectory_logits(trajectories)
        if not self._finite(logits, trajectory_logits) or not (labels := self._labels(batch, values)):
            return self._skip(self.critic_optimizer, "a critic's output, or a log-prob", batch)
        targets, soft = labels
        step_logits = torch.zeros(*mask.shape, 2, device=mask.device)
        step_logits[mask] = logits[batch["is_state"]]
        value_loss, _ = aride.value_loss(logits=step_logits, targets=targets, mask=mask, soft=soft)
        outcomes = torch.tensor([float(bool(t.success)) for t in trajectories], device=mask.device)
        trajectory_loss, _ = aride.trajectory_value_loss(logits=trajectory_logits, outcomes=outcomes)
        shares = batch.get("of_steps", 1.0), batch.get("of_trajectories", 1.0)
        self._step(self.critic_optimizer, shares[0] * value_loss + shares[1] * trajectory_loss, batch)
        losses = {"value_loss": value_loss, "trajectory_value_loss": trajectory_loss}
        return {f"losses/{name}": float(loss.detach()) for name, loss in losses.items()}

    def _update_policy(self, batch: dict) -> dict[str, float]:
        config, mask = self.config, batch["mask"]
        logprob, entropy = self._scores(batch)
        log_rho = (logprob - batch["behavior_logprob"]).detach()
        with torch.no_grad():
            _, values = self._values(batch)
            if not self._finite(logprob, entropy, values):
                return self._skip(self.policy_optimizer, "a log-prob, an entropy or a value", batch)
            targets, advantages = self._targets(batch, log_rho, values)
            if config.algo == "aride":
                square = self.team.mean(advantages[mask].square(), batch["of_steps"]) if self.team else None
                advantages = aride.normalise_advantages(
                    advantage=advantages, mask=mask, clip=self.ADVANTAGE_CLIP, negative_scale=config.negative_scale,
                    mean_square=square,
                )  # fmt: skip
            advantages = advantages.masked_fill(batch["invalid"], 0.0)  # after the scaling: they count in its deviation
            self._note(batch, values, advantages)
        actor_loss = {
            "aride": aride.actor_loss, "digirl": baselines.digirl_loss, "digirl_paper": baselines.digirl_loss,
            "filtered_bc": baselines.filtered_bc_loss, "vtrace": baselines.vtrace_loss,
        }[config.algo]  # fmt: skip
        loss, metrics = actor_loss(
            logprob=logprob, behavior_logprob=batch["behavior_logprob"], advantage=advantages, entropy=entropy,
            invalid=batch["invalid"], mask=mask, rho_clip=config.rho_clip, entropy_coef=config.entropy_coef,
            invalid_coef=config.invalid_coef, ratio_trust=config.ratio_trust or None,
        )  # fmt: skip
        norm = self._step(self.policy_optimizer, batch.get("of_steps", 1.0) * loss, batch)
        if config.algo == "aride":
            self._set_priorities(batch, log_rho, entropy.detach(), targets, values)
        losses = ("policy_loss", "entropy", "invalid_penalty")
        named = {f"{'losses' if name in losses else 'stats'}/{name}": value for name, value in metrics.items()}
        return named | {"losses/grad_norm": norm}

    def _note(self, batch: dict, values: torch.Tensor, advantages: torch.Tensor) -> None:
        """What this update makes of its trajectories, for those who look at them: V [N+B], advantages [B, T]."""
        values, found = self._scatter(values[batch["is_state"]], batch["mask"]).cpu(), {}
        for id, trajectory, v, a in zip(batch["ids"], batch["trajectories"], values, advantages.cpu(), strict=True):
            known = v[: len(trajectory)].tolist() if self.critic_updates else None  # cloning has no critic
            found[int(id)] = (self.updates + 1, known, a[: len(trajectory)].tolist())
        for part in (self.team.gather(found) or ()) if self.team else (found,):  # in a team, rank 0 has them all
            self.learnt |= part

    def _step(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor, batch: dict) -> float:
        """One clipped optimiser step, skipped when the loss or the gradient is not finite. Returns the norm."""
        parameters = optimizer.param_groups[0]["params"]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.team:
            loss = loss.detach().clone()
            self.team.sum([*(p.grad for p in parameters if p.grad is not None), loss])
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, self.MAX_GRAD_NORM))
        if np.isfinite(norm) and torch.isfinite(loss):
            optimizer.step()
            self._in_a_row[optimizer] = 0
        else:
            self._skip(optimizer, f"the loss ({float(loss.detach())}) or its gradient's norm ({norm})", batch)
        return norm

    def _skip(self, optimizer: torch.optim.Optimizer, what: str, batch: dict) -> dict[str, float]:
        """Leave this step out: no parameter and no optimiser state changes. The third time in a row ends the run."""
        self.skipped += 1
        self._in_a_row[optimizer] += 1
        if self._in_a_row[optimizer] >= 3:
            whose = "the policy" if optimizer is self.policy_optimizer else "the critics"
            ids = ", ".join(map(str, sorted(set(map(int, batch.get("drawn", batch["ids"]))))))
            raise FloatingPointError(f"{whose}: {what} was not finite three times in a row: lower --learning-rate"
                                     f" (the last time on trajectories {ids} of the journal)")  # fmt: skip
        return {}

    def _set_priorities(self, batch: dict, log_rho, entropy, targets, values) -> None:
        mask = batch["mask"]
        td_error = (targets - self._scatter(values[batch["is_state"]], mask)) * mask
        rho = log_rho.clamp(-aride.LOG_RATIO_BOUND, aride.LOG_RATIO_BOUND).exp()
        w1, w2, w3 = self.config.priority_weights
        priorities = aride.trajectory_priorities(
            td_error=td_error, rho=rho, entropy=entropy, mask=mask, w_td=w1, w_rho=w2, w_entropy=w3,
            rho_clip=10.0,  # the mean of unclipped ratios belongs to one stale step
        )  # fmt: skip
        ids, priorities = batch["ids"], priorities.cpu().numpy()
        if "drawn" in batch:
            found = self.team.gather((ids, priorities))
            if not found:
                return
            ids, priorities = (np.concatenate(column) for column in zip(*found, strict=True))
        self.replay.update_priorities(ids, priorities)

    @torch.no_grad()
    def _label_trajectories(self) -> None:
        """V_traj of all that is held, under the newest critic, for the draw by R - V_traj."""
        priorities = self.replay.state_dict()["priorities"]  # they stay
        ids, trajectories = self.replay.get(self.replay.ids)
        values = torch.sigmoid(self._trajectory_logits(trajectories)).nan_to_num(0.5)
        self.replay.update_priorities(ids, priorities, values=values.cpu().numpy())

    @torch.no_grad()
    def _refresh_priorities(self) -> None:
        """Every trajectory's priority under the newest policy and critic; none under what is not finite."""
        ids = self.replay.ids
        for start in range(0, len(ids), self.REFRESH_ROWS):
            chunk, trajectories = self.replay.get(ids[start : start + self.REFRESH_ROWS])
            batch = self._batch(trajectories, chunk)
            (logprob, entropy), (_, values) = self._scores(batch), self._values(batch)
            log_rho = logprob - batch["behavior_logprob"]
            if not all(bool(x.isfinite().all()) for x in (log_rho, entropy, values)):
                return  # not `_finite`: the other processes of a team are not here
            targets, _ = self._targets(batch, log_rho, values)
            self._set_priorities(batch, log_rho, entropy, targets, values)

    # ------------------------------------------------------------------ checkpoints

    def checkpoint_bytes(self) -> int:
        """About the size of a checkpoint: all weights, and Adam's two moments of those that are trained."""
        modules = (self.policy, self.critic, self.trajectory_critic)
        optimizers = (self.policy_optimizer, self.critic_optimizer)
        trained = [p for optimizer in optimizers for p in optimizer.param_groups[0]["params"]]
        return sum(p.nbytes for m in modules for p in m.parameters()) + 2 * sum(p.nbytes for p in trained)

    def state_dict(self) -> dict:
        """All that another process needs to go on, but for the trajectories, which the journal has."""
        return self.networks() | {"vocabulary": self.policy.codec.fingerprint(), "replay": self.replay.state_dict()}

    def networks(self) -> dict:
        """The part of it that all processes of a team have alike."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "trajectory_critic": self.trajectory_critic.state_dict(),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "counters": {name: getattr(self, name) for name in ("critic_steps", "updates", "seen", "skipped")},
            "skipped_in_a_row": list(self._in_a_row.values()),
        }

    def load_state_dict(self, state: dict, fetch) -> None:
        """Inverse of `state_dict`; `fetch(id)` gives back a trajectory. ValueError: another policy or tokenizer."""
        refuse_another(self.policy, state)
        self.load_networks(state)
        self.replay.load_state_dict(state["replay"], fetch)

    def load_networks(self, state: dict) -> None:
        """Inverse of `networks`."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.trajectory_critic.load_state_dict(state["trajectory_critic"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._in_a_row = dict(zip(self._in_a_row, state.get("skipped_in_a_row", (0, 0)), strict=True))
        vars(self).update(state["counters"])
