"""Methods that are settings of a run and need no code of their own, with the settings that make them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .catalog import Registry

RECIPES: Registry[Mapping[str, Any]] = Registry("recipe")
"""Settings by name of the method, by dotted path."""


def _add(
    settings: Mapping[str, Any],
    title: str,
    paper: str,
    *,
    name: str,
    evidence: str,
    reading: str = "",
    unseen: str = "",
    example: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    add = RECIPES.add(
        title, paper, name=name, evidence=evidence, reading=reading, unseen=unseen, settings=settings, example=example
    )
    add(settings)


_add(
    {
        "roles.policy.learner.epochs": 2,
        "roles.policy.learner.minibatches": 2,
        "roles.policy.credit.name": "rloo",
        "roles.policy.loss.kind": "ppo",
        "roles.policy.loss.high": 0.28,
        "roles.policy.loss.kl": 0.0,
    },
    "LOOP",
    "arXiv:2502.01600",
    name="loop",
    evidence="N P",
    reading="leave-one-out advantages without a standard deviation, a ratio per token, epochs of minibatches",
)
_add(
    {
        "roles.policy.learner.denominator": "turns",
        "roles.policy.credit.name": "grpo",
        "roles.policy.loss.kind": "ppo",
        "roles.policy.loss.high": 0.3,
        "roles.policy.loss.kl": 0.001,
    },
    "Flow-GRPO (AgentFlow)",
    "arXiv:2510.05592",
    name="flow-grpo",
    evidence="C",
    reading="a mean over turns of token means; the released baseline runs over rows of turns and is not copied",
)
_add(
    {"environment.max_steps": 20, "schedule": {"environment.max_steps": [[0, 6], [100, 13], [200, 20]]}},
    "ScalingInter (AgentGym-RL)",
    "arXiv:2509.08755",
    name="scaling-inter",
    evidence="C",
    reading="evaluations play the full horizon; `share/cut` is the share of episodes that the horizon cuts off",
    example={"environment.max_steps": 8, "schedule": {"environment.max_steps": [[0, 4], [5, 6], [10, 8]]}},
)
_add(
    {
        "roles.policy.loss.kind": "gspo",
        "roles.policy.loss.ratio": "turn",
        "roles.policy.loss.old": "trainer",
        "roles.policy.loss.max_mismatch": 2.0,
    },
    "ROME (IPA), ratio and mask of a chunk",
    "arXiv:2512.24873",
    name="turn-ratio",
    evidence="N",
    reading="a chunk is left out if the geometric mean of the probabilities, of the trainer over those of sampling, "
    "exceeds `max_mismatch`; `prefixed` with `falling` starts from expert prefixes",
    unseen="the bound of the mismatch: 2",
)
_add(
    {"roles.policy.learner.epochs": 2, "roles.policy.loss.kind": "aepo", "roles.policy.loss.high": 0.28},
    "AEPO, loss",
    "arXiv:2510.14545",
    name="aepo-clip",
    evidence="F",
    reading="the clip alone; the composer and the estimator `aepo` are the branching and the credit",
)
_add(
    {"run.history": 1},
    "RELEX",
    "arXiv:2605.21468",
    name="relex",
    evidence="C",
    reading="`hardwon train CONFIG --extrapolate STEP` reads the history; of a LoRA, the product B A is extrapolated",
)
_add(
    {"warmstart.examples.wrong": "filter"},
    "Step-level filtering",
    "step-level filtering of imitated episodes",
    name="step-filter",
    evidence="C",
    reading="steps are rated by the diagnosis in place of a judge: failed ones and circles are context alone",
)
_add(
    {"warmstart.examples.wrong": "correct"},
    "STeP (partial masking)",
    "arXiv:2505.20023",
    name="step",
    evidence="N",
    reading="the correction is the episode's own later step in the same situation; no teacher writes reflections",
)
_add(
    {
        "roles.policy.learner.order": "reverse-turns",
        "roles.policy.credit.name": "dr-grpo",
        "roles.policy.loss.kind": "gspo",
        "roles.policy.loss.ratio": "turn",
        "roles.policy.loss.kl": 0.002,
    },
    "SeeUPO",
    "arXiv:2602.06554",
    name="seeupo",
    evidence="F A",
    reading="a turn's old log-probabilities are read right before its update, so its ratio begins at 1; factors go by "
    "episode, where the reproduction's balancing of the batch mixes rows",
)
_add(
    {"run.balance": {"low": 0.5, "high": 1.2, "step": 0.05, "right": 8}},
    "B-STaR (temperature)",
    "arXiv:2412.17256",
    name="b-star",
    evidence="C",
    reading="temperatures are compared by the rollouts of two iterations in a row, in place of a search over 64 "
    "samples of many queries; no bound on rewards, because rollouts are credited and not selected",
    example={"explore.tries": 3},
)
_add(
    {"explore.policy": "curious", "explore.tries": 4},
    "EchoTrail (exploration)",
    "EchoTrail: exploration by curiosity with a critic and a memory",
    name="echotrail",
    evidence="A N",
    reading="the rarest action of a state; the critic is the diagnosis: successes without circles and failed steps are "
    "kept",
    unseen="when exploration turns to a target: it ends at the first success",
)
_add(
    {"explore.policy": "archive", "explore.tries": 125},
    "Go-Explore (intelligent)",
    "arXiv:2405.15143",
    name="go-explore",
    evidence="C",
    reading="the state chosen least often is next, without a model; what is found serves warm start and demonstrations",
)
_add(
    {
        "arms.guided": 4,
        "guidance.guided": "role",
        "roles.guide.learner.lr": 0.001,
        "roles.guide.settings.ready": 18,
        "roles.guide.settings.distil": 40,
        "roles.guide.settings.credit": "foresight",
    },
    "Hi-Agent (foresight)",
    "arXiv:2510.14388",
    name="hi-agent",
    evidence="A",
    reading="minimal reading: `roles.guide.settings.credit: foresight` credits a text by the next action's reward and "
    "the change of the state's value, the mean outcome of the siblings that came there",
    example={"arms.control": 2},
)
