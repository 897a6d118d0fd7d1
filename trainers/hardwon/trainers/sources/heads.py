"""Heads on frozen features of the policy: contributions (SPA-RL), critics (ArCHer) and process rewards (ProRAG).

The features of a turn are the policy's hidden state at the last token of the prompt (the situation) and the mean over
the completion (the action). They are detached, so no head moves the policy.
"""

import copy
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.logprobs import autocast, get_device_and_dtype, unwrap_causal
from hardwon.trainers.algorithms.samples import Rollout, Sample, to_trace
from hardwon.trainers.algorithms.signals import Signals
from hardwon.trainers.models.adapters import activate

from .answers import list_last_rows
from .base import SourceParts


def compute_features(parts: SourceParts, rows: Sequence[Sample]) -> Tensor:
    """Return the features of turns, (rows, 2 x width) in float32 on the CPU, without a gradient."""
    activate(parts.model, "policy")
    causal = unwrap_causal(parts.model)
    device, _ = get_device_and_dtype(parts.model)
    features: dict[int, Tensor] = {}
    order = sorted(range(len(rows)), key=lambda at: len(rows[at].prompt) + len(rows[at].completion))
    while order:
        longest = len(rows[order[-1]].prompt) + len(rows[order[-1]].completion)
        number = max(1, parts.budget // max(1, longest))
        batch, order = order[-number:], order[:-number]
        ids = [[*rows[at].prompt, *rows[at].completion] for at in batch]
        padded = torch.tensor([[*own, *[0] * (longest - len(own))] for own in ids]).to(device)
        with torch.no_grad(), autocast(device):
            hidden = causal.base_model(input_ids=padded, use_cache=False).last_hidden_state.float().cpu()
        for at, states in zip(batch, hidden, strict=True):
            cut, end = len(rows[at].prompt), len(rows[at].prompt) + len(rows[at].completion)
            features[at] = torch.cat([states[cut - 1], states[cut:end].mean(0)])
    return torch.stack([features[at] for at in range(len(rows))])


def build_head(inputs: int, width: int, seed: int) -> nn.Module:
    """Return a network with two hidden layers and one output, whose weights are determined by the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.LayerNorm(inputs), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1),
        )  # fmt: skip


def compute_sum_loss(contributions: Tensor, outcome: float) -> Tensor:
    """Return (sum of contributions - outcome)^2, the loss of SPA-RL for one episode."""
    return (contributions.sum() - outcome) ** 2


class HeadSource:
    """The part that the sources with heads share: networks, their optimizer, a buffer and their state."""

    heads = 1
    """Number of networks, besides their targets."""

    def __init__(
        self, parts: SourceParts, *, width: int = 64, lr: float = 1e-3, updates: int = 20, kept: int = 512
    ) -> None:
        """Create the source.

        Args:
            parts: Its objects.
            width: Width of the hidden layers.
            lr: Learning rate.
            updates: Updates per iteration.
            kept: Newest examples that are learned from.
        """
        self._parts, self._width, self._lr, self._updates = parts, width, lr, updates
        self._nets: nn.ModuleList | None = None
        self._adam: torch.optim.Optimizer | None = None
        self._steps = 0
        self._buffer: deque[Any] = deque(maxlen=kept)

    def _open(self, width: int) -> nn.ModuleList:
        """Return the networks; the first call builds them for features of this width."""
        if self._nets is None:
            seeds = range(self._parts.seed, self._parts.seed + self.heads)
            self._nets = nn.ModuleList(
                build_head(self._select_width(width, at), self._width, seed) for at, seed in enumerate(seeds)
            )
            self._adam = torch.optim.Adam(self._nets.parameters(), lr=self._lr)
        return self._nets

    def _select_width(self, width: int, at: int) -> int:
        """Return the width of the inputs of a network: by default the whole features."""
        return width

    def _step(self, loss: Tensor) -> None:
        """Make one update of the networks."""
        assert self._adam is not None
        self._adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._adam.step()
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the networks, their optimizer and the buffer; empty before the first reading."""
        if self._nets is None or self._adam is None:
            return {}
        width = int(self._nets[0][0].normalized_shape[0])  # type: ignore[index]
        return {
            "width": width,
            "nets": self._nets.state_dict(),
            "adam": self._adam.state_dict(),
            "steps": self._steps,
            "buffer": list(self._buffer),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        if not state:
            return
        nets = self._open(state["width"])
        nets.load_state_dict(state["nets"])
        assert self._adam is not None
        self._adam.load_state_dict(copy.deepcopy(state["adam"]))
        self._steps = state["steps"]
        self._buffer.clear()
        self._buffer.extend(state["buffer"])


@PARTS.add("source", "Contribution head (SPA-RL)", gives=("contribution",), name="contribution", method="redistribute")
class ContributionSource(HeadSource):
    """Contribution of every turn to the outcome, by a head that is trained so that contributions sum to the outcome.

    c_t is trained by (sum_t c_t - R)^2 on the newest episodes (SPA-RL, arXiv:2505.20732). The authors train it once,
    offline, on episodes of exploration; here it learns every iteration.
    """

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the contribution of every turn."""
        signals = {}
        for rollout in [rollout for group in groups for rollout in group]:
            features = compute_features(self._parts, list_last_rows(rollout))
            with torch.no_grad():
                values = self._open(features.shape[1])[0](features).squeeze(1).tolist()
            signals[rollout.trajectory.id] = Signals({"contribution": tuple(values)})
        return signals

    def learn(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, float]:
        """Train the head on the newest episodes."""
        for rollout in [rollout for group in groups for rollout in group]:
            features = compute_features(self._parts, list_last_rows(rollout))
            self._buffer.append((features, to_trace(rollout).outcome))
        if not self._buffer:
            return {}
        head = self._open(self._buffer[0][0].shape[1])[0]
        losses = []
        for _ in range(self._updates):
            sums = [compute_sum_loss(head(features).squeeze(1), outcome) for features, outcome in self._buffer]
            loss = torch.stack(sums).mean()
            self._step(loss)
            losses.append(float(loss.detach()))
        return {"loss": losses[-1], "episodes": float(len(self._buffer))}


@PARTS.add("source", "Process reward head (ProRAG)", gives=("prm",), name="prm", method="prorag")
class RewardHeadSource(HeadSource):
    """Score of every turn by a head, trained on pairs of actions in the same situation, the better return preferred.

    The authors make pairs by tree search with a strong model as filter; here the action with the higher mean return at
    the same anchor wins, which is own.
    """

    def __init__(
        self, parts: SourceParts, *, width: int = 64, lr: float = 1e-3, updates: int = 20, kept: int = 1024
    ) -> None:
        super().__init__(parts, width=width, lr=lr, updates=updates, kept=kept)

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the score of every turn."""
        signals = {}
        for rollout in [rollout for group in groups for rollout in group]:
            features = compute_features(self._parts, list_last_rows(rollout))
            with torch.no_grad():
                values = torch.sigmoid(self._open(features.shape[1])[0](features)).squeeze(1).tolist()
            signals[rollout.trajectory.id] = Signals({"prm": tuple(values)})
        return signals

    def learn(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, float]:
        """Train the head on the newest pairs, by Bradley-Terry."""
        for group in groups:
            self._buffer.extend(self._pair(group))
        if not self._buffer:
            return {"pairs": 0.0}
        better, worse = (torch.stack(side) for side in zip(*self._buffer, strict=True))
        head, loss = self._open(better.shape[1])[0], torch.zeros(())
        for _ in range(self._updates):
            margins = head(better).squeeze(1) - head(worse).squeeze(1)
            loss = -nn.functional.logsigmoid(margins).mean()
            self._step(loss)
        with torch.no_grad():
            right = (head(better) > head(worse)).float().mean()
        return {"pairs": float(len(self._buffer)), "loss": float(loss.detach()), "accuracy": float(right)}

    def _pair(self, group: Sequence[Rollout]) -> list[tuple[Tensor, Tensor]]:
        """Return the features of a better and a worse action of every anchor at which siblings took several."""
        places: dict[str, dict[str, list[tuple[float, Sample]]]] = defaultdict(lambda: defaultdict(list))
        for rollout in group:
            trace = to_trace(rollout)
            for turn, value, row in zip(trace.turns, trace.returns(0.95), list_last_rows(rollout), strict=True):
                places[turn.anchor][turn.action].append((value, row))
        rows: list[Sample] = []
        for actions in places.values():
            means = {action: fmean(value for value, _ in own) for action, own in actions.items()}
            for first, second in combinations(sorted(actions), 2):
                if means[first] != means[second]:
                    best, other = sorted((first, second), key=lambda action: -means[action])
                    rows += [actions[best][0][1], actions[other][0][1]]
        if not rows:
            return []
        features = compute_features(self._parts, rows)
        return list(zip(features[::2], features[1::2], strict=True))


def compute_targets(rewards: Tensor, following: Tensor, ended: Tensor, discount: float) -> Tensor:
    """Return r + discount (1 - end) V_target(s')."""
    return rewards + discount * (1 - ended) * following


@PARTS.add("source", "Critic (ArCHer)", gives=("critic",), name="critic", method="archer")
class CriticSource(HeadSource):
    """Advantage min(Q1, Q2) - min(V1, V2) of every turn, by critics that are trained by temporal differences.

    ArCHer, arXiv:2402.19446, on frozen features. Q goes to r + discount (1 - end) V_target(s'), V to Q_target(s, a),
    with the action that was played. Targets move by `tau`. The result is scaled by the explained variance of Q, at
    least 0: the noise of an untrained critic would be a signal (own). Before `warmup` updates it is 0.
    """

    heads = 4

    def __init__(
        self,
        parts: SourceParts,
        *,
        width: int = 64,
        lr: float = 1e-3,
        updates: int = 50,
        kept: int = 2048,
        discount: float = 0.95,
        tau: float = 0.1,
        warmup: int = 20,
    ) -> None:
        """Create the source.

        Args:
            parts: Its objects.
            width: Width of the hidden layers.
            lr: Learning rate; 1e-5 in the authors' settings, with heads on an encoder of their own.
            updates: Updates per iteration.
            kept: Newest turns that are learned from.
            discount: Discount of the returns.
            tau: Share by which the target copies move after every update.
            warmup: Updates before another value than 0 is given.
        """
        super().__init__(parts, width=width, lr=lr, updates=updates, kept=kept)
        self._discount, self._tau, self._warmup = discount, tau, warmup
        self._targets: nn.ModuleList | None = None
        self._explained = 0.0

    def _select_width(self, width: int, at: int) -> int:
        # Q reads the situation and the action, V the situation alone
        return width if at < 2 else width // 2

    def _open(self, width: int) -> nn.ModuleList:
        nets = super()._open(width)
        if self._targets is None:
            self._targets = copy.deepcopy(nets)
        return nets

    async def read(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, Signals]:
        """Return the advantage of every turn; 0 before the warm-up."""
        signals = {}
        for rollout in [rollout for group in groups for rollout in group]:
            rows = list_last_rows(rollout)
            values = [0.0] * len(rows)
            if self._steps >= self._warmup:
                features = compute_features(self._parts, rows)
                q1, q2, v1, v2 = self._evaluate(self._open(features.shape[1]), features)
                values = (self._explained * (torch.minimum(q1, q2) - torch.minimum(v1, v2))).tolist()
            signals[rollout.trajectory.id] = Signals({"critic": tuple(values)})
        return signals

    def _evaluate(self, nets: nn.ModuleList, features: Tensor) -> list[Tensor]:
        """Return Q1, Q2, V1 and V2 of turns, without a gradient."""
        state = features[:, : features.shape[1] // 2]
        with torch.no_grad():
            return [net(features if at < 2 else state).squeeze(1) for at, net in enumerate(nets)]

    def learn(self, groups: Sequence[Sequence[Rollout]]) -> Mapping[str, float]:
        """Train the critics on the newest turns, and move their targets."""
        for rollout in [rollout for group in groups for rollout in group]:
            self._keep(rollout)
        if not self._buffer:
            return {}
        now, after, rewards, ended = (torch.stack(part) for part in zip(*self._buffer, strict=True))
        nets, loss, targets = self._open(now.shape[1]), torch.zeros(()), rewards
        assert self._targets is not None
        state = now[:, : now.shape[1] // 2]
        for _ in range(self._updates):
            _, _, v1, v2 = self._evaluate(self._targets, after)
            q1, q2, _, _ = self._evaluate(self._targets, now)
            targets = compute_targets(rewards, torch.minimum(v1, v2), ended, self._discount)
            wanted = (targets, targets, q1, q2)
            values = [net(now if at < 2 else state).squeeze(1) for at, net in enumerate(nets)]
            loss = torch.stack([((a - b) ** 2).mean() for a, b in zip(values, wanted, strict=True)]).sum()
            self._step(loss)
            with torch.no_grad():
                for target, parameter in zip(self._targets.parameters(), nets.parameters(), strict=True):
                    target.lerp_(parameter, self._tau)
        q1, q2, _, _ = self._evaluate(nets, now)
        spread = float(targets.var()) if len(targets) > 1 else 0.0
        error = float((targets - torch.minimum(q1, q2)).var()) if len(targets) > 1 else 0.0
        self._explained = max(0.0, 1 - error / spread) if spread > 0 else 0.0
        return {"loss": float(loss.detach()), "explained": self._explained, "turns": float(len(self._buffer))}

    def _keep(self, rollout: Rollout) -> None:
        """Keep the turns of an episode. Its outcome is paid at the last turn if no step was rewarded."""
        trace, features = to_trace(rollout), compute_features(self._parts, list_last_rows(rollout))
        rewards = [turn.reward for turn in trace.turns]
        if not any(rewards):
            rewards[-1] = trace.outcome
        last = len(rewards) - 1
        for t, reward in enumerate(rewards):
            after = features[min(t + 1, last)]
            self._buffer.append((features[t], after, torch.tensor(reward), torch.tensor(float(t == last))))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the critics with their targets."""
        state = super().state_dict()
        if state and self._targets is not None:
            state |= {"targets": self._targets.state_dict(), "explained": self._explained}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the critics with their targets."""
        super().load_state_dict(state)
        if state and self._targets is not None:
            self._targets.load_state_dict(state["targets"])
            self._explained = float(state["explained"])
