"""A world of teams with known utility: facts to collect, much else to stumble on, little room to read.

Each task has twelve facts; a team that has all of them before the time is over succeeds. At every tick a
team finds a fact that it lacks, or something else: a document beside the point, a note of its own. It
sees the newest three different keys of the others and pulls one that it lacks; those that are no facts
cost it a tick in thirty each. So a step is worth sharing when it is a fact of the task that is not in
the bank, and that another team lacks.
"""

import random
from dataclasses import dataclass

from hardwon.runtime.teams.sharing_policy import LogisticAdmission, SharingInput
from hardwon.trainers.roles.admission_learning import AdmissionTrainer, Decided, Episode, Sparsity, run_reward

FACTS, TICKS, IN_SIGHT, DISTRACTION = 12, 20, 3, 1 / 30
TOPICS = ("granite", "cobalt", "saffron", "walnut", "indigo", "marble", "copper", "linen", "amber", "willow")


@dataclass
class Line:
    """A step as it may be shared."""

    team: int
    fact: int | None
    candidate: SharingInput
    worth: bool
    """Whether another team would use it: known, because the world is."""


def play(decide, seed, teams=3):
    """One run: its reward, and (line, admitted, used) of every step. `decide` says of a candidate whether to share."""
    chance = random.Random(f"world {seed}")
    topic = chance.choice(TOPICS)
    others = [word for word in TOPICS if word != topic]
    task = f"collect all figures of the {topic} survey"
    known: list[set[int]] = [set() for _ in range(teams)]
    bank: list[Line] = []
    log, used, first = [], set(), None
    for tick in range(TICKS):
        for team in chance.sample(range(teams), teams):
            distinct = {line.candidate.key: line for line in reversed(bank) if line.team != team}
            seen = list(distinct.values())[::-1][-IN_SIGHT:]
            wanted = next((line for line in seen if line.fact is not None and line.fact not in known[team]), None)
            if wanted is not None and wanted.fact is not None:
                known[team].add(wanted.fact)
                used.add(id(wanted))
            junk = sum(line.fact is None for line in seen)
            if chance.random() < DISTRACTION * junk:
                continue
            missing = [fact for fact in range(FACTS) if fact not in known[team]]
            luck, fact = chance.random(), None
            if missing and luck < 0.4:
                found = fact = chance.choice(missing)
                known[team].add(found)
                action, told = f"read page {fact}", f"{topic} survey figure {fact}"
            elif luck < 0.7:
                number = chance.randrange(500)
                action, told = f"read page {100 + number}", f"{chance.choice(others)} catalogue entry {number}"
            else:
                action, told = f"note {tick} {team}", f"thought number {chance.randrange(500)} of team {team}"
            keys = tuple(line.candidate.key for line in bank)
            candidate = SharingInput(task, keys, action, f"{action} -> {told}", told, True, 0.0, 1.0)
            lacking = any(fact not in known[other] for other in range(teams) if other != team)
            line = Line(team, fact, candidate, fact is not None and lacking and candidate.key not in keys)
            admitted = decide(candidate)
            if admitted:
                bank.append(line)
            log.append((line, admitted))
            if first is None and len(known[team]) == FACTS:
                first = tick
        if first is not None:
            break
    won = float(first is not None)
    reward = run_reward(won, won, earliness=1.0 - (first or 0) / TICKS)
    return reward, [(line, admitted, id(line) in used) for line, admitted in log]


def train(seed, *, price=0.0, rate=0.04, target=0.4, rounds=45, tasks=4, runs=5, teams=3):
    """An admission after so many rounds on training tasks, which are all but those above 10,000."""
    admission = LogisticAdmission(chance=random.Random(seed))
    trainer = AdmissionTrainer(admission, Sparsity(target, begin=price, rate=rate))
    chance = random.Random(f"tasks {seed}")
    for _ in range(rounds):
        groups = [
            [episode(admission, world, teams) for _ in range(runs)] for world in chance.sample(range(10_000), tasks)
        ]
        trainer.update(groups)
    return LogisticAdmission(admission.weights)


def episode(admission, world, teams):
    """One run as it is learnt from."""
    decided = []

    def decide(candidate):
        x = admission.features(candidate)
        choice = admission.choose(x)
        decided.append((x, choice))
        return choice.admit

    reward, log = play(decide, world, teams)
    return Episode(
        reward, tuple(Decided(x, c.admit, c.p, used) for (x, c), (_, _, used) in zip(decided, log, strict=True))
    )


def decides(admission):
    """An admission as `play` asks it, greedy."""
    return lambda candidate: admission.choose(admission.features(candidate)).admit
