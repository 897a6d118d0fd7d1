"""Checks across the sections of a run's settings: contradictions, and what could never learn, are refused.

Settings that contradict each other or are malformed raise ConfigError, and a command exits with 2. A run that could be
played and in which a role would never learn raises CannotLearn, with exit code 1, here as during the first iteration.
"""

from itertools import pairwise
from operator import attrgetter

from hardwon.memory.errors import CannotLearn, ConfigError
from hardwon.runtime.interfaces.arms import CONTROL, NO_MEMORY
from hardwon.trainers.algorithms.catalog import PARTS

from .bounds import check_bounds
from .kinds import ASKS, GUIDANCE, RECALLS, TELLS, TRIES
from .parsing import nearest
from .program import PROGRAM, check_program
from .schedules import check_schedule
from .schema import TrainConfig
from .sources import check_fed
from .unused import check_unused


def check(config: TrainConfig) -> None:
    """Check the settings of a run as a whole."""
    check_bounds(config)
    _check_arms(config)
    _check_worlds(config)
    if "policy" not in config.roles:
        raise ConfigError(f"roles has no policy, only {', '.join(config.roles) or 'nothing'}; add roles.policy.")
    check_program(config)
    _check_policy(config)
    _check_engine(config)
    _check_extractor(config)
    _check_signal(config)
    _check_sources(config)
    _check_demonstrations(config)
    _check_trees(config)
    _check_schedule(config)
    _check_memory(config)
    _check_lag(config)
    _check_length(config)
    check_unused(config)


def _check_policy(config: TrainConfig) -> None:
    """Check that the prompts can do what the policy's settings ask for."""
    settings = config.policy
    kinds = {"tags": ("tagged",), "prediction": ("predicted",), "lookback": ("free", "predicted", "tagged")}
    for source, speech in kinds.items():
        if source in config.roles["policy"].sources and settings.speech not in speech:
            raise CannotLearn(
                f"roles.policy.sources.{source} reads what the policy says before an action, and nothing feeds it; set "
                f"roles.policy.settings.speech={' or '.join(speech)}."
            )
    demands = {
        "speech": settings.speech == "free",
        "history": settings.history is not None,
        "actions": settings.actions != "full",
    }
    if config.model.is_compact and any(demands.values()):
        name = next(name for name, is_asked in demands.items() if is_asked)
        raise ConfigError(
            f"roles.policy.settings.{name} is set, and prompts of content words have neither lines, nor turns to leave "
            "out, nor lists of actions; set model.base to a chat model, or remove it."
        )

    if config.warmstart is not None and config.warmstart.examples.wrong != "drop" and not config.model.is_compact:
        raise ConfigError(
            f"warmstart.examples.wrong is {config.warmstart.examples.wrong}, and demonstrations to a chat model are "
            "played again without wrong steps; set it to drop, or model.prompt=compact."
        )


def _check_engine(config: TrainConfig) -> None:
    """Check that the engine can serve the model."""
    if config.engine.url is not None and config.model.adapter is None:
        raise ConfigError(
            f"engine.url is {config.engine.url}, a server, which needs LoRA adapters, and model.adapter is null; "
            "set a rank, such as model.adapter=16, or remove engine.url."
        )
    if config.engine.url is not None and config.model.base == "tiny":
        raise ConfigError(
            "model.base is tiny, a model that the run builds itself, so no server can serve it; "
            "set model.base to the folder that the server loaded, or remove engine.url."
        )


def _check_lag(config: TrainConfig) -> None:
    """Check that the loss corrects for old weights, and that nothing else reads the weights during an update."""
    lag, loss = config.rollouts.max_lag, config.roles["policy"].loss
    if not lag:
        return
    if loss.old != "trainer" or loss.kind == "imitation":
        raise ConfigError(
            f"rollouts.max_lag is {lag}, and roles.policy.loss has kind {loss.kind} and old {loss.old}, which takes no "
            "account of older weights: set roles.policy.loss.old=trainer, which weights each token by its importance."
        )
    readers = {
        "another role than policy": len(config.roles) > 1,
        "roles.policy.sources": bool(config.roles["policy"].sources),
        "tasks.compose": bool(config.tasks.compose),
        "tasks.sampler": bool(config.tasks.sampler),
    }
    for name, is_set in readers.items():
        if is_set:
            raise ConfigError(
                f"rollouts.max_lag is {lag}, and {name} needs the rollouts of the current weights; remove one of them."
            )


def _check_length(config: TrainConfig) -> None:
    """Check that some role is trained, and the run long enough for what begins after some of its iterations."""
    iterations, library = config.run.iterations, config.library
    if not iterations:
        return
    if not any(role.learner.lr for role in config.roles.values()) and not (config.uses_library and library.learn):
        frozen = " and ".join(f"roles.{name}" for name in config.roles)
        raise CannotLearn(
            f"learner.lr of {frozen} is 0, so nothing is trained; raise one, or set run.iterations=0 to only explore, "
            "imitate and evaluate."
        )
    names = [*config.roles]
    for name, after in pairwise(names):
        if (phase := config.roles[name].phase) > 1 and phase >= iterations and config.roles[after].learner.lr:
            raise CannotLearn(
                f"roles.{name}.phase is {phase} and run.iterations {iterations}, so roles.{after} never has a turn; "
                f"lower roles.{name}.phase."
            )
    decay = config.roles["policy"].learner.decay
    if len(names) == 1 and decay is not None and decay < iterations:
        raise CannotLearn(
            f"roles.policy.learner.decay is {decay}, so the learning rate is 0 from update {decay} on, and "
            f"run.iterations is {iterations}; raise decay to as many updates, or leave it out."
        )


def _check_extractor(config: TrainConfig) -> None:
    """Check that some arm shows the items of the extractor."""
    if "extractor" not in config.roles:
        return
    shows = [arm for arm in config.arms if config.get_guidance(arm) in TRIES]
    if not shows:
        raise CannotLearn(
            "roles.extractor reads episodes, and no arm shows its items; add an arm whose guidance is library, such as "
            "arms.advice=4 guidance.advice=library."
        )
    if not config.library.learn:
        raise CannotLearn(
            "roles.extractor reads episodes, which are not recorded with library.learn=false; set it to true."
        )


def _check_memory(config: TrainConfig) -> None:
    """Check that the library can ever hold something to recall, and that each divergence has a reference."""
    library = config.library
    recalling = [f"arms.{arm}" for arm in config.arms if config.get_guidance(arm) in RECALLS]
    if "guide" in config.roles and not config.model.is_compact:
        recalling.append("roles.guide")
    if recalling and not (library.learn or library.path or library.explored):
        raise CannotLearn(
            f"{recalling[0]} recalls from a library that stays empty: library.learn is false, and it starts with "
            "nothing. Set library.learn=true, library.path, or library.explored."
        )
    for name in ("extractor", "admission"):
        if name in config.roles and config.roles[name].loss.kl and config.model.adapter is None:
            raise ConfigError(
                f"roles.{name}.loss.kl is {config.roles[name].loss.kl}, whose reference is the base without the "
                "adapter, and model.adapter is null; set a rank, such as model.adapter=16, or leave out kl."
            )


def _check_signal(config: TrainConfig) -> None:
    """Check that every role gets a signal, and that every setting of the run is used."""
    kinds = {config.get_guidance(arm) for arm in config.arms}
    if TELLS & kinds and "guide" not in config.roles and not _writes_for_episodes(config):
        arm = next(arm for arm in config.arms if config.get_guidance(arm) in TELLS)
        raise CannotLearn(f"arms.{arm} shows the text of a role, and no role writes one; add roles.guide.")
    if "guide" in config.roles:
        _check_guide(config)
    elif ASKS & kinds:
        arm = next(arm for arm in config.arms if config.get_guidance(arm) in ASKS)
        raise CannotLearn(f"arms.{arm} asks the guide, and there is none; add roles.guide.settings.says=recalled.")
    for name in ("guide", "extractor", "admission"):
        if name in config.roles and config.roles[name].credit != type(config.roles[name].credit)():
            raise ConfigError(f"roles.{name}.credit has no use: only the policy is credited by turns. Remove it.")
    if config.library.path and not config.uses_library:
        raise ConfigError("library.path is set, and no arm shows the library; add one, such as arms.retrieved=4.")


def _check_guide(config: TrainConfig) -> None:
    """Check that a group has two episodes or more in which the guide speaks."""
    decides = config.roles["guide"].settings.get("says") == "recalled"
    kinds, kind = (ASKS, "guide") if decides else (TELLS, "role")
    if sum(copies for arm, copies in config.arms.items() if config.get_guidance(arm) in kinds) < 2:
        what = "two episodes that show what is recalled" if decides else "two of its texts"
        raise CannotLearn(
            f"roles.guide compares at least {what} in a group; add an arm that shows them, such as arms.guided=4 "
            f"guidance.guided={kind}."
        )
    for arm in config.arms:
        if not decides and config.get_guidance(arm) in ASKS:
            raise ConfigError(
                f"guidance.{arm} is guide, and roles.guide says texts of its own; set "
                f"roles.guide.settings.says=recalled, or guidance.{arm}=role."
            )


def _check_sources(config: TrainConfig) -> None:
    """Check that every signal has a source, and that roles other than the policy name none."""
    policy = config.roles["policy"]
    credit, learner = PARTS.find("estimator", policy.credit.name), policy.learner
    if credit.exact:
        settings = {path.removeprefix("roles.policy."): value for path, value in credit.settings.items()}
        is_set = all(attrgetter(path)(policy) == value for path, value in settings.items())
        if not is_set or learner.epochs * learner.minibatches != 1:
            raise ConfigError(
                f"roles.policy.credit.name is {credit.name}, whose advantages are the gradient of its own loss; set "
                f"{', '.join(f'{path}={value}' for path, value in settings.items())}, with one update a step."
            )
    for name, role in config.roles.items():
        if name == "policy":
            needs = {f"roles.policy.{user}": signals for user, signals in role.needs.items()}
            needs |= {f"tasks.compose.{composer}": config.tasks.needs for composer in config.tasks.compose}
            needs |= {
                f"tasks.sampler.{sampler}": PARTS.find("sampler", sampler).needs for sampler in config.tasks.sampler
            }
            check_fed(needs, [*role.sources], "roles.policy.sources")
        elif role.sources or role.shape or role.extra or role.loss.terms:
            raise ConfigError(
                f"roles.{name} has sources, shapers, extra or loss terms; only the policy is credited by turns."
            )


def _check_demonstrations(config: TrainConfig) -> None:
    """Check that whatever needs successes of the training instances has an origin of them."""
    users = [f"tasks.compose.{name}" for name in config.tasks.compose if PARTS.find("composer", name).demonstrations]
    extras = config.roles["policy"].extra
    users += [f"roles.policy.extra.{name}" for name in extras if PARTS.find("extra", name).demonstrations]
    if users and not config.tasks.demonstrations:
        raise CannotLearn(
            f"{users[0]} needs successes of the training instances, which nothing feeds: tasks.demonstrations is "
            "empty. Add explored, gold, or a JSON file."
        )


def _check_trees(config: TrainConfig) -> None:
    """Check that episodes that share their first turns are played exactly if the estimator compares them."""
    policy = config.roles["policy"]
    composers = [PARTS.find("composer", name) for name in config.tasks.compose]
    trees = [card.name for card in composers if card.tree]
    estimator, credit = policy.credit.name, PARTS.find("estimator", policy.credit.name)
    if trees and not credit.tree:
        credits = sorted(name for name, card in PARTS.list_cards("estimator").items() if card.tree)
        raise ConfigError(
            f"tasks.compose.{trees[0]} plays episodes that share their first turns, and roles.policy.credit.name is "
            f"{estimator}, which compares whole episodes; use one of {', '.join(credits)}."
        )
    if credit.tree and not trees:
        players = sorted(name for name, card in PARTS.list_cards("composer").items() if card.tree)
        raise CannotLearn(
            f"roles.policy.credit.name is {estimator}, which credits episodes that share their first turns, and "
            f"nothing feeds it; set tasks.compose to one of {', '.join(players)}."
        )
    if credit.composer and credit.composer not in config.tasks.compose:
        raise CannotLearn(
            f"roles.policy.credit.name is {estimator}, which reads how the composer {credit.composer} began an "
            f"episode, and nothing feeds it; set tasks.compose.{credit.composer}={{}}."
        )
    partial = [card.name for card in composers if card.partial]
    if partial and credit.whole:
        raise ConfigError(
            f"tasks.compose.{partial[0]} begins some episodes of a group after a part of a solution, and "
            f"roles.policy.credit.name is {estimator}, which compares all episodes of a group or batch as played from "
            "their beginning; choose another estimator, such as dr-grpo."
        )
    if trees and (policy.extra or config.run.rerolls):
        raise ConfigError(f"tasks.compose.{trees[0]} cannot be combined with roles.policy.extra or run.rerolls.")


def _check_schedule(config: TrainConfig) -> None:
    """Check the schedules, and that an evaluation plays as long as the last iterations."""
    check_schedule(config.schedule)
    horizon, entries = config.environment.max_steps, config.schedule.get("environment.max_steps", ())
    if entries and (entries[-1][1] != horizon or any(int(n) != n or n < 1 for _, n in entries)):
        raise ConfigError(
            f"schedule.environment.max_steps ends with {entries[-1][1]}, and environment.max_steps, with which "
            f"evaluations play, is {horizon}; make them equal, in whole steps from 1 on."
        )
    if config.run.balance:
        dependents = {
            "schedule.run.temperature": "run.temperature" in config.schedule,
            "roles.policy.sources": bool(config.roles["policy"].sources),
            "rollouts.max_lag": bool(config.rollouts.max_lag),
        }
        for name, is_set in dependents.items():
            if is_set:
                raise ConfigError(f"run.balance changes the temperature, and {name} depends on it; remove one of them.")
    if "run.temperature" in config.schedule and config.roles["policy"].sources:
        raise ConfigError("schedule.run.temperature changes what the sources of signals measure; remove one of them.")


def _writes_for_episodes(config: TrainConfig) -> bool:
    """Return whether a role of your own writes texts for the start of episodes."""
    return bool({*config.roles} - {"policy", "guide", "extractor", "admission"})


def _check_arms(config: TrainConfig) -> None:
    """Check the arms and their guidance."""
    if CONTROL not in config.arms:
        raise ConfigError(f"arms has no {CONTROL}, the baseline of every group; add arms.{CONTROL}.")
    for arm in config.arms:
        if config.get_guidance(arm) not in GUIDANCE:
            hint = nearest(config.get_guidance(arm), [*GUIDANCE])
            raise ConfigError(f"guidance.{arm} is {config.get_guidance(arm)!r}: {hint}")
    for arm in config.guidance:
        if arm not in config.arms:
            raise ConfigError(f"guidance.{arm} is no arm: {nearest(arm, [*config.arms])} It must be one of the arms.")
    if config.get_guidance(CONTROL) != NO_MEMORY:
        raise ConfigError(f"guidance.{CONTROL} is {config.get_guidance(CONTROL)!r}; {CONTROL} is shown nothing.")
    for evaluated in config.list_evaluated_arms():
        if evaluated.frozen and evaluated.name in config.arms:
            raise ConfigError(
                f"arms.{evaluated.name} has the name of the frozen copy of another arm; choose another name."
            )


def _check_worlds(config: TrainConfig) -> None:
    """Check that training and exploration share no task instance with evaluation."""
    held_out = set(config.tasks.eval.all)
    seen = {"tasks.train": config.tasks.train}
    if config.environment.name != PROGRAM:  # a program explores nothing
        seen["explore.worlds"] = config.explore.worlds
    seen |= {f"library.explored.{name}": worlds for name, worlds in config.library.explored.items()}
    for path, worlds in seen.items():
        if both := sorted(held_out & set(worlds.all)):
            raise ConfigError(
                f"{path} and tasks.eval share {len(both)} worlds, such as {both[0][0]}#{both[0][1]}; "
                "evaluation must use worlds that training never sees. Change the seeds or the fold."
            )
