"""Does it help to train both roles: an extractor by trials of its lessons, a policy by practice with what passed them?

    python -m examples.experiments.practice runs/lessons              # after, or without, examples.experiments.lessons
    python -m examples.experiments.practice runs/lessons --seeds 1 --villages 20 --iterations 3    # minutes, to look

The world, the base and the start `room` are those of `lessons`. Lessons that passed the paired test are stored, and the
policy plays groups of episodes with them in the instances in which they helped. It learns from these groups alone.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from examples.experiments.lessons import (
    Arm,
    build_base,
    build_settings,
    build_start,
    compare,
    measure_all,
    report,
    run,
)

from hardwon.memory import Item
from hardwon.memory.records import Admission
from hardwon.trainers.algorithms.samples import Rollout
from hardwon.trainers.roles.base import Parts, PolicyRole
from hardwon.trainers.roles.extractor import ExtractorRole, Play
from hardwon.trainers.roles.registry import ROLES
from hardwon.trainers.roles.trials import Trial, Trials
from hardwon.trainers.rollouts.rollout import Spec

LEARNS = {"extractor": ("extractor",), "policy": ("policy",), "both": ("policy", "extractor")}
"""The roles that learn, by arm."""
EXPLORES, TRIES, PRACTICES = 3.0, 0.5, 1.0
"""Temperatures of the policy in the episodes that are read, in trials and in practice."""
COPIES, LEAST, MOST = 8, 8, 16
"""Episodes of a group of practice, and the smallest and largest number of groups."""
SCREEN = 0.2
"""Mean gain so far below which a lesson is given up at a look."""


class ScreenedTrials(Trials):
    """Trials that give up early, and note in which instances a lesson helped."""

    def __init__(self, trials: Trials) -> None:
        super().__init__(trials._instances, trials._read, pairs=trials._pairs)
        self.gains: dict[tuple[str, str], float] = {}
        """Sum of the differences by lesson and task instance."""

    def plan(self, arm: str, salt: str) -> list[Spec]:
        """Return the next episodes, at a low temperature."""
        return [replace(spec, temperature=TRIES) for spec in super().plan(arm, salt)]

    def collect(self, rollouts: Iterable[Rollout]) -> int:
        """Add the differences, and give up the lessons whose gain is small."""
        ends = {rollout.trajectory.id: rollout for rollout in rollouts}
        for session, (trial, plain) in self._planned.items():
            with_it, other = ends[session], ends[plain]
            if with_it.tried in ("shown", "known") and with_it.outcome is not None and other.outcome is not None:
                key = trial.item.id, with_it.group
                self.gains[key] = self.gains.get(key, 0.0) + with_it.outcome - other.outcome
        count = super().collect(ends.values())
        for trial in self._trials:
            trial.is_over = trial.is_over or trial.test.gain < SCREEN
        return count


class PracticingPolicy(PolicyRole):
    """Learns from the groups with lessons that passed, and from no other episodes."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._temperature = PRACTICES

    def collect(self, rollouts: Sequence[Rollout]) -> None:
        """Take nothing from the arms."""

    def practice(self, rollouts: Sequence[Rollout]) -> None:
        """Keep these rollouts for an update."""
        super().collect(rollouts)


class PracticedExtractor(ExtractorRole):
    """Has the policy practice with the lessons that passed."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._trials: ScreenedTrials = ScreenedTrials(self._trials)
        self.policy: PracticingPolicy | None = None
        self._lessons: list[tuple[Item, str]] = []
        """The newest lessons that passed, each with a task instance in which it helped."""

    def state_dict(self) -> dict[str, Any]:
        """Return what an exact resume needs, with the lessons that passed."""
        return {**super().state_dict(), "passed": [(asdict(item), group) for item, group in self._lessons]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(state)
        self._lessons = [(Item(**fields), group) for fields, group in state["passed"]]

    def _store(self, trial: Trial) -> Admission:
        gains = self._trials.gains.items()
        self._lessons += [(trial.item, group) for (ref, group), gain in gains if ref == trial.item.id and gain > 0]
        return super()._store(trial)

    async def try_candidates(self, play: Play, arm: str, salt: str) -> dict[str, float]:
        """Try the lessons, and let the policy practice with those that passed."""
        metrics = await super().try_candidates(play, arm, salt)
        self._trials.gains, self._lessons = {}, self._lessons[-MOST:]
        specs = {
            Spec(*_read_group(group), arm, copy, salt=f"{salt}/practice/{at}", candidate=item, temperature=PRACTICES):
            f"{group}+{at}"
            for at, (item, group) in enumerate(self._lessons)
            for copy in range(COPIES)
        }  # fmt: skip
        if self.policy is None or len(self._lessons) < LEAST:
            return metrics
        names = {spec.session: name for spec, name in specs.items()}
        rollouts = [each for each in await play([*specs]) if each.tried in ("shown", "known")]
        self.policy.practice([replace(each, group=names[each.trajectory.id]) for each in rollouts])
        return {**metrics, "practice": len(rollouts), "practice_won": fmean(each.outcome or 0.0 for each in rollouts)}


def _read_group(group: str) -> tuple[str, int]:
    """Return the split and the seed of a task instance."""
    split, _, seed = group.rpartition("#")
    return split, int(seed)


def train_roles(folder: Path, arm: str, seed: int, iterations: int) -> Path:
    """Train the roles of an arm from the start with room; return the folder of the weights."""
    settings: dict[str, Any] = build_settings(folder, seed, iterations)
    settings["warmstart"] = {"run": str(folder / "room")}
    settings["arms"] = {"control": 1, "lessons": 2}
    learns = LEARNS[arm]
    rates = {role: 3e-4 if role in learns else 0.0 for role in ("policy", "extractor")}
    learner = {"lr": rates["policy"], "minibatches": 2, "budget": 16384}
    settings["roles"]["policy"] = {"learner": learner, "loss": {"kl": 0.1}}
    # where both learn, the extractor's turn comes every other iteration, with the lessons of two
    settings["roles"]["extractor"]["learner"] = {"lr": rates["extractor"], "minibatches": len(learns)}
    settings["roles"]["extractor"]["settings"]["pairs"] = 64
    settings["run"] |= {"temperature": EXPLORES, "save_every": 1}
    roles = dict(ROLES)

    def build_extractor(parts: Parts) -> PracticedExtractor:
        extractor = PracticedExtractor(parts)
        extractor.policy = policies[0] if "policy" in learns else None
        return extractor

    def build_policy(parts: Parts) -> PracticingPolicy:
        policies.append(PracticingPolicy(parts))
        return policies[0]

    policies: list[PracticingPolicy] = []
    ROLES.update(policy=build_policy, extractor=build_extractor)
    try:
        return run(settings, folder / f"{arm}-{seed}-{iterations}")
    finally:
        ROLES.update(roles)


def summarize(results: Mapping[str, Sequence[float]], arm: Sequence[str], both: Sequence[str]) -> str:
    """Return the mean of an arm's seeds and what both roles have over it, paired by village and by seed."""
    mean, of_both = ([fmean(each) for each in zip(*map(results.get, names), strict=True)] for names in (arm, both))
    text = f"{arm[0].split()[0]}: {fmean(mean):.3f}"
    if not both or arm == both:
        return text
    gains = [fmean(results[b]) - fmean(results[a]) for a, b in zip(arm, both, strict=True)]
    seeds = ", ".join(f"{gain:+.4f}" for gain in gains)
    error = stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return f"{text}; both minus it: {compare(of_both, mean)} by village; by seed {seeds}, standard error {error:.4f}"


def main() -> None:
    """Run what is not done yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where everything is kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--base-seed", type=int, default=0, help="of the base and the start; others than 0 are kept apart"
    )
    parser.add_argument("--arms", nargs="+", choices=LEARNS, default=[*LEARNS], help="who learns")
    parser.add_argument("--villages", type=int, default=100, help="held-out villages, four requests each")
    parser.add_argument("--iterations", type=int, default=9)
    given = parser.parse_args()
    base: int = given.base_seed
    folder: Path = given.folder / f"base-{base}" if base else given.folder
    folder.mkdir(parents=True, exist_ok=True)
    build_base(folder / "base", base)
    build_start(folder, base, ["room"])
    names = {arm: [f"{arm} {seed}" for seed in range(given.seeds)] for arm in given.arms}
    arms: dict[str, Arm] = {"frozen": ("frozen", lambda: folder / "room" / "export")}
    for seed in range(given.seeds):
        for arm in given.arms:
            arms[names[arm][seed]] = ("trained", partial(train_roles, folder, arm, seed, given.iterations))
    results = measure_all(folder, f"practice-{given.iterations}-{given.villages}.json", arms, given.villages)
    print(report(results, "frozen", []))
    for arm in given.arms if given.seeds else ():
        print(summarize(results, names[arm], names.get("both", [])))


if __name__ == "__main__":
    main()
