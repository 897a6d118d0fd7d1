"""Methods that are settings of a run and need no code of their own, with the settings that make them."""

from collections.abc import Mapping
from typing import Any

from .catalog import Registry

RECIPES: Registry[Mapping[str, Any]] = Registry("recipe")
"""Settings by name of the method: those of `roles.policy`, `warmstart`, `schedule` or `run`."""


def _add(
    settings: Mapping[str, Any],
    title: str,
    paper: str,
    *,
    name: str,
    evidence: str,
    reading: str = "",
    unseen: str = "",
) -> None:
    RECIPES.add(title, paper, name=name, evidence=evidence, reading=reading, unseen=unseen)(settings)


_add(
    {"credit": {"name": "rloo"}, "loss": {"kind": "ppo", "high": 0.28, "kl": 0.0}, "learner": {"minibatches": 2}},
    "LOOP",
    "arXiv:2502.01600",
    name="loop",
    evidence="N P",
    reading="leave-one-out advantages without a standard deviation, a ratio per token, epochs of minibatches",
)
_add(
    {"credit": {"name": "grpo"}, "loss": {"kl": 0.001, "high": 0.3}, "learner": {"denominator": "turns"}},
    "Flow-GRPO (AgentFlow)",
    "arXiv:2510.05592",
    name="flow-grpo",
    evidence="C",
    reading="a mean over turns of token means; the released baseline runs over rows of turns and is not copied",
)
_add(
    {"schedule": {"environment.max_steps": [[0, 6], [100, 13], [200, 20]]}},
    "ScalingInter (AgentGym-RL)",
    "arXiv:2509.08755",
    name="scaling-inter",
    evidence="C",
    reading="evaluations play the full horizon; `share/cut` is the share of episodes that the horizon cuts off",
)
_add(
    {"loss": {"kind": "gspo", "ratio": "turn", "old": "trainer", "max_mismatch": 2.0}},
    "ROME (IPA), ratio and mask of a chunk",
    "arXiv:2512.24873",
    name="turn-ratio",
    evidence="N",
    reading="a chunk is left out if the geometric mean of the probabilities, of the trainer over those of sampling, "
    "exceeds `max_mismatch`; `prefixed` with `falling` starts from expert prefixes",
    unseen="the bound of the mismatch: 2",
)
_add(
    {"loss": {"kind": "aepo", "high": 0.28}},
    "AEPO, loss",
    "arXiv:2510.14545",
    name="aepo-clip",
    evidence="F",
    reading="the clip alone; the composer and the estimator `aepo` are the branching and the credit",
)
_add(
    {"run": {"history": 1}},
    "RELEX",
    "arXiv:2605.21468",
    name="relex",
    evidence="C",
    reading="`hardwon train CONFIG --extrapolate STEP` reads the history; of a LoRA, the product B A is extrapolated",
)
_add(
    {"warmstart": {"examples": {"wrong": "filter"}}},
    "Step-level filtering",
    "step-level filtering of imitated episodes",
    name="step-filter",
    evidence="C",
    reading="steps are rated by the diagnosis in place of a judge: failed ones and circles are context alone",
)
_add(
    {"warmstart": {"examples": {"wrong": "correct"}}},
    "STeP (partial masking)",
    "arXiv:2505.20023",
    name="step",
    evidence="N",
    reading="the correction is the episode's own later step in the same situation; no teacher writes reflections",
)
_add(
    {
        "learner": {"order": "reverse-turns"},
        "loss": {"kind": "gspo", "ratio": "turn", "kl": 0.002},
        "credit": {"name": "dr-grpo"},
    },
    "SeeUPO",
    "arXiv:2602.06554",
    name="seeupo",
    evidence="F A",
    reading="a turn's old log-probabilities are read right before its update, so its ratio begins at 1; factors go by "
    "episode, where the reproduction's balancing of the batch mixes rows",
)
_add(
    {"run": {"balance": {"low": 0.5, "high": 1.2, "step": 0.05, "right": 8}}},
    "B-STaR (temperature)",
    "arXiv:2412.17256",
    name="b-star",
    evidence="C",
    reading="temperatures are compared by the rollouts of two iterations in a row, in place of a search over 64 "
    "samples of many queries; no bound on rewards, because rollouts are credited and not selected",
)
_add(
    {"explore": {"policy": "curious"}},
    "EchoTrail (exploration)",
    "EchoTrail: exploration by curiosity with a critic and a memory",
    name="echotrail",
    evidence="A N",
    reading="the rarest action of a state; the critic is the diagnosis: successes without circles and failed steps are "
    "kept",
    unseen="when exploration turns to a target: it ends at the first success",
)
_add(
    {"explore": {"policy": "archive", "tries": 125}},
    "Go-Explore (intelligent)",
    "arXiv:2405.15143",
    name="go-explore",
    evidence="C",
    reading="the state chosen least often is next, without a model; what is found serves warm start and demonstrations",
)
_add(
    {"credit": {"name": "dr-grpo"}},
    "Hi-Agent (foresight)",
    "arXiv:2510.14388",
    name="hi-agent",
    evidence="A",
    reading="minimal reading: `roles.guide.settings.credit: foresight` credits a text by the next action's reward and "
    "the change of the state's value, the mean outcome of the siblings that came there",
)
