"""Whether a run can learn at all: checked before its first iteration and after the episodes of the first.

A run that cannot learn would cost hours and end with "done". It stops with the reason and with what would help.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardwon.memory.errors import CannotLearn

from .algorithms.catalog import PARTS
from .algorithms.samples import Rollout
from .config.kinds import SHOWS_PATHS
from .config.program import PROGRAM
from .config.schema import TrainConfig
from .rollouts.reporting import Reporting
from .rollouts.rollout import OUTGROWN
from .session import Session

DECISIONS = ("<keep>", "<skip>")
"""Tokens of decisions that are added to a base whose prompts are compact transcripts."""
READ = 32
"""Task instances of which one must have an episode that an arm can show."""
PATIENCE = 5
"""Iterations without any signal, or without any action of a mechanism, after which a run warns."""


# -- before the first iteration -------------------------------------------------------------------


def check_prompts(session: Session, recalled: int = 0) -> None:
    """Check that the model can read an episode as long as those that exploration met."""
    limit = session.context
    if limit is None:
        return
    longest, steps = recalled, session.config.environment.max_steps
    for world in session.explorer.tasks or session.config.explore.worlds.all[:2]:
        memory = session.explorer.experience(world)
        for trajectory in session.explorer.explored(world):
            for row in session.prompts.rows(trajectory, memory)[:steps]:
                longest = max(longest, len(row.prompt) + len(row.completion))
    if longest > limit:
        raise CannotLearn(
            f"the longest prompt that exploration met, with what is recalled, has {longest} tokens, and the model "
            f"reads {limit}. Lower environment.max_steps, or choose a base with a longer context (model.tiny.context "
            "for a tiny one)."
        )


def find_revisits(config: TrainConfig) -> str | None:
    """Return a note about the arms that are shown an earlier episode of the very task instance that is played."""
    arms = [f"arms.{arm}" for arm in config.arms if config.get_guidance(arm) == "experience"]
    if not arms:
        return None
    return (
        f"{' and '.join(arms)}: the policy is shown an earlier episode of the same task instance, so the gain is that "
        "of a second visit. For new instances, use an arm that recalls, such as arms.retrieved=4."
    )


def check_groups(session: Session) -> None:
    """Check that a group has episodes to compare."""
    config = session.config
    if [*config.roles] == ["policy"] and max(config.arms.values()) < 2 and config.run.iterations:
        raise CannotLearn(
            "every arm has one episode per group, and episodes are compared within an arm, so every advantage is 0; "
            "use two or more, such as arms.control=4."
        )


def check_decisions(name: str, model: Any, tokens: Sequence[int]) -> None:
    """Check that a role with a frozen base can tell its decision tokens apart.

    The head of a base with adapters is frozen. Tokens whose rows of it are equal have equal logits for every input,
    whatever the adapter learns.
    """
    import torch

    head = model.get_output_embeddings().weight
    if any(parameter.requires_grad and parameter is head for parameter in model.parameters()):
        return
    rows = head.detach().float()[list(tokens)]
    scale = head.detach().float().std().clamp(min=1e-12)
    if len(rows) > 1 and bool((torch.pdist(rows) < 1e-3 * scale * rows.shape[1] ** 0.5).all()):
        raise CannotLearn(
            f"roles.{name} decides between tokens that were added to the base: their embeddings are equal and frozen, "
            "so their probabilities can never differ. Train all parameters (model.adapter=null), or use a prompt "
            "format whose decisions are words of the base."
        )


def check_roles(session: Session) -> None:
    """Check every role that decides with tokens that were added to the base; see `check_decisions`."""
    added = session.tokenizer.get_added_vocab()
    if session.config.model.adapter is None or not {*DECISIONS} <= {*added}:
        return
    for name, role in session.roles.items():
        if name not in ("policy", "extractor"):  # these decide nothing with such tokens
            check_decisions(name, role.model, [added[word] for word in DECISIONS])


# -- after the episodes of the first iteration ----------------------------------------------------


def check_episodes(session: Session, rollouts: Sequence[Rollout]) -> None:
    """Check that the first episodes can be learned from."""
    if rollouts and all(rollout.failed for rollout in rollouts):
        raise CannotLearn(_explain_failures(rollouts))
    if session.config.environment.name != PROGRAM:  # a program takes any words, not only actions
        _check_answers(rollouts, name=session.config.environment.name, compact=session.config.model.is_compact)
    _check_outcomes(session, rollouts)
    _check_readings(session, rollouts)


def _check_outcomes(session: Session, rollouts: Sequence[Rollout]) -> None:
    """Check that some step, of exploration or of the first iteration, reported what counts as the outcome.

    Every step has a reward, so rewards that are all 0 may only be rare. They are taken for none where the environment
    reports nothing else.
    """
    if not isinstance(session.environment, Reporting):
        return
    outcome, reported, name = session.config.outcome, session.environment.reported, session.config.environment.name
    if not reported.steps or outcome in reported.names or (outcome == "reward" and reported.names):
        return
    names = [other for other in ("score", "reward", "success") if other in reported.names]
    help_ = f"set roles.policy.credit.outcome={names[0]}" if names else f"let its steps report `{outcome}`"
    if outcome == "reward":
        help_ = "let its steps have rewards or report `score`; if rewards are only rare, let them report `success`"
    explored = (episode for world in session.explorer.tasks for episode in session.explorer.explored(world))
    endings = {episode.ending for episode in (*explored, *(rollout.trajectory for rollout in rollouts))}
    if endings == {"step_limit"}:
        limit = session.config.environment.max_steps
        help_ = f"all of them ended with the step limit, so raise environment.max_steps ({limit}). Else, {help_}"
    raise CannotLearn(f"no step of {name} reported a {outcome}, so every episode counts as 0; {help_}.")


def _explain_failures(rollouts: Sequence[Rollout]) -> str:
    """Return why all episodes failed, with the first error."""
    reasons = Counter(rollout.failed for rollout in rollouts)
    why = ", ".join(f"{number} with {reason}" for reason, number in reasons.most_common())
    first = rollouts[0].trajectory
    error = str(first.meta.get("failed") or (first.steps[-1].diagnosis.evidence if first.steps else first.ending))
    message = f"all {len(rollouts)} episodes of the first iteration failed ({why}). The first error: {error}"
    if reasons[OUTGROWN] == len(rollouts):
        return f"{message} Lower environment.max_steps, or choose a base with a longer context."
    return message


def _check_answers(rollouts: Sequence[Rollout], *, name: str, compact: bool) -> None:
    """Check that some answer was an action that the environment ran, where none are listed."""
    steps = [step for rollout in rollouts for step in rollout.trajectory.steps]
    # the tokens of listed actions and of tool calls are bound, those of free text are not
    bound = any(allowed is not None for rollout in rollouts for row in rollout.rows for allowed in row.allowed)
    if not steps or bound:
        return
    help_ = "an environment that lists its actions (admissible) or gives the schemas of its tools (tool_schemas)"
    if compact:
        raise CannotLearn(
            f"{name} lists no actions, and a base whose prompts are content words can only choose among listed ones. "
            f"Use {help_}, or set model.base to a chat model."
        )
    if not any(step.action for step in steps):
        raise CannotLearn(
            f"none of the {len(steps)} answers of the first iteration was an action. The first: "
            f"{steps[0].diagnosis.evidence} Use a base that follows the form that its prompt asks for, or {help_}."
        )
    equal = len({rollout.outcome for rollout in rollouts if rollout.outcome is not None}) < 2
    if equal and not any(step.action and step.diagnosis.success for step in steps):
        raise CannotLearn(
            f"every one of the {len(steps)} actions of the first iteration failed, and all episodes ended alike. The "
            f"first: `{steps[0].action}`: {steps[0].diagnosis.evidence} Begin with a warm start, use a base that knows "
            f"what {name} takes, or {help_}."
        )


def _check_readings(session: Session, rollouts: Sequence[Rollout]) -> None:
    """Check that what an arm takes from exploring episodes is in some of them."""
    config, explorer = session.config, session.explorer
    groups = {rollout.group.rpartition("#") for rollout in rollouts}
    played = [(task, int(seed)) for task, _, seed in sorted(groups)]
    # the first iteration may be small: a few unlucky instances say nothing about the others
    worlds = list(dict.fromkeys([*played, *config.tasks.train.all[:READ]]))
    help_ = f"Raise explore.tries ({config.explore.tries}) or explore.steps ({config.explore.steps})"
    user = None
    for arm in config.arms:
        if config.get_guidance(arm) in SHOWS_PATHS:
            user, worlds = f"arms.{arm} shows", list(dict.fromkeys([*worlds, *config.explore.worlds.all[:READ]]))
    if user is not None and worlds and not any(explorer.source(*world) for world in worlds):
        raise CannotLearn(
            f"{user} the best exploring episode of a task instance, and none of {len(worlds)} instances has one with a "
            f"{config.outcome} above 0. {help_}."
        )


# -- after the last iteration ---------------------------------------------------------------------


def find_untrained_roles(config: TrainConfig, versions: Mapping[str, int], iterations: int) -> tuple[str, ...]:
    """Return a warning for each role that no iteration trained."""
    untrained = [name for name, role in config.roles.items() if role.learner.lr and versions.get(name, 0) <= 1]
    return tuple(
        f"roles.{name} was not trained in {iterations} iterations, so its weights are those of the start: one role is "
        "trained per iteration, and this one had no turn or too little to learn from. Raise run.iterations, or see "
        f"roles.{name}.settings in --print-config."
        for name in (untrained if iterations else ())
    )


# -- during the iterations ------------------------------------------------------------------------


@dataclass(slots=True)
class SignalWatch:
    """Warns when iteration after iteration gives no role anything to learn from."""

    silent: int = 0
    """Iterations without a signal since the last one with any."""

    def update(self, metrics: Mapping[str, float], groups: int) -> str | None:
        """Take in an iteration's metrics; return a warning if there was no signal for `PATIENCE` iterations."""
        updated = any(name.endswith("/grad_norm") and value > 0 for name, value in metrics.items())
        self.silent = 0 if updated or metrics["groups_without_signal"] < groups else self.silent + 1
        if self.silent == 0 or self.silent % PATIENCE:
            return None
        return (
            f"WARNING: no group of the last {self.silent} iterations had episodes with different outcomes, so nothing "
            "was learned. Use easier task instances, more episodes per arm, a warmstart, or another credit.outcome."
        )


@dataclass(slots=True)
class ActionWatch:
    """Warns of mechanisms that the settings name and that never acted."""

    mechanisms: Mapping[str, tuple[str, float]]
    """Name of a metric and its value while nothing happens, by the setting that names the mechanism."""
    idle: dict[str, int] = field(default_factory=dict)
    """Iterations without any action, by setting, of those that have not acted yet."""
    acted: set[str] = field(default_factory=set)

    def update(self, metrics: Mapping[str, float], *, last: bool = False) -> tuple[dict[str, float], str | None]:
        """Take in an iteration's metrics."""
        idle = {
            setting: float(abs(metrics.get(name, resting) - resting) < 1e-9)
            for setting, (name, resting) in self.mechanisms.items()
        }
        for setting, is_idle in idle.items():
            if not is_idle:
                self.acted.add(setting)
            self.idle[setting] = self.idle.get(setting, 0) + 1
        silent = [setting for setting in idle if setting not in self.acted]
        due = [setting for setting in silent if self.idle[setting] % PATIENCE == 0 or last]
        warning = (
            f"WARNING: {', '.join(due)} never acted in {max(self.idle[setting] for setting in due)} iterations: "
            + "; ".join(f"{self.mechanisms[setting][0]} stayed at {self.mechanisms[setting][1]:g}" for setting in due)
            + ". Look at what it needs in docs/algorithms.md, or remove it."
            if due
            else None
        )
        return {f"idle/{setting}": value for setting, value in idle.items()}, warning


def list_mechanisms(config: TrainConfig) -> dict[str, tuple[str, float]]:
    """Return the metric of every mechanism that the settings name, and the metric's value while nothing happens."""
    policy = config.roles["policy"]
    composers, extras = PARTS.list_cards("composer"), PARTS.list_cards("extra")
    return {
        **{f"tasks.compose.{name}": (f"compose/{composers[name].part.acted}", 0.0) for name in config.tasks.compose},
        **{f"tasks.sampler.{name}": ("sampler/weight_max", 1.0) for name in config.tasks.sampler},
        **{f"roles.policy.sources.{name}": (f"signal/{name}/missing", 1.0) for name in policy.sources},
        **{f"roles.policy.shape.{name}": (f"policy/shape/{name}", 0.0) for name in policy.shape},
        **{f"roles.policy.extra.{name}": (f"policy/{extras[name].acted}", 0.0) for name in policy.extra},
        **{f"roles.policy.loss.terms.{name}": (f"policy/term/{name}/active", 0.0) for name in policy.loss.terms},
    }
