"""A late grade leaves the library as if the episode had ended so, and moves the scores of items by the difference."""

import random
from dataclasses import replace

import pytest
from tests.memory.upkeep.digest import compute_digest

from hardwon.memory import ExperienceLibrary, Failure, Item, State
from hardwon.memory.errors import ConfigError, LibraryReadOnly, UnknownName

DRAWER = State("You see a wooden drawer. It is closed.", task="find the spoon")
TASKS = ("find the spoon", "find the fork", "wash the red pan")
FIELDS = ("score", "uses")


def make_episodes(episode, library, items, *, seed, count=14, unknown=()):
    """Return episodes of several tasks and arms, some of which were shown items."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        success = chance.random() < 0.5
        one = episode(
            f"open drawer {chance.randrange(3)}", "take spoon", task=chance.choice(TASKS), reward=0.0,
            success=success, id=f"e{number}", meta={"environment": "kitchen"}, library=library,
        )  # fmt: skip
        arm = chance.choice(("control", "retrieved", "retrieved"))
        why = {}
        if arm == "retrieved":
            shown = chance.sample(items, 2)
            why = {"recalled": shown[:1]} if chance.random() < 0.2 else {"recalled": shown}
            if chance.random() < 0.2:
                why["withheld"] = why["masked"] = [chance.choice(items)]
        steps = tuple(replace(step, why=why, keys=()) for step in one.steps)
        made.append(end(replace(one, steps=steps, arm=arm), None if number in unknown else success))
    return made


def end(one, success, score=None):
    """Return an episode that ended so, as the runtime records it: the last reward is the score."""
    score = float(bool(success)) if score is None else score
    steps = (*one.steps[:-1], replace(one.steps[-1], reward=score))
    return replace(one, success=success, score=score, steps=steps, ending="success" if success else "failed")


def add_items(library):
    return [
        library.add(Item("insight", f"wash vegetable number {n} with care", f"rinse it {n} times")).item_id
        for n in range(4)
    ]


def fill(path, episode, *, seed, unknown=(), change=None):
    """Return a library with the episodes; `change` alters one of them before it is recorded."""
    library = ExperienceLibrary.open(path)
    items = add_items(library)
    for number, one in enumerate(make_episodes(episode, library, items, seed=seed, unknown=unknown)):
        library.record(one if change is None else change(number, one))
        if number == 9:  # a person moves a score in between
            item = library.items.get(items[0])
            library.items.update(items[0], score=min(1.0, item.score + 0.0625))
    return library, items


def observe(library, items):
    """Return everything that the outcomes of episodes decide, without scores and what follows from them."""
    rows = library._file.filed().rows
    number = library._file.number
    return {
        "uses": rows("SELECT id, uses FROM items ORDER BY number", ()),
        "worlds": rows("SELECT item_id, world, uses FROM item_worlds WHERE namespace = ? ORDER BY 1, 2", (number,)),
        "effects": [[replace(effect, masked=False) for effect in library.items.effects(item)] for item in items],
        "usages": [
            sorted((row["trajectory_id"], row["t"], row["mode"], row["outcome"]) for row in library.items.usages(item))
            for item in items
        ],
        "episodes": rows("SELECT id, success, score, total_reward, ending FROM trajectories ORDER BY id", ()),
        "steps": rows("SELECT trajectory_id, t, reward, return_to_go, keys != '[]' FROM steps ORDER BY 1, 2", ()),
        "attempts": rows(
            "SELECT signature, pattern, n, live, round(returns, 9), failures, best_return FROM attempts ORDER BY 1, 2",
            (),
        ),
        "world records": rows("SELECT id, record FROM worlds WHERE namespace = ? ORDER BY id", (number,)),
        "values": {
            key: (cell.n, round(cell.mean, 9), cell.bad)
            for key, cell in library._file.caught_up().statistics.values.cells.items()
        },
        "estimates": library.recall(DRAWER, actions={"open drawer 1": "", "take spoon": ""}).estimates,
    }


def read_scores(library, items):
    return [library.items.get(item).score for item in items]


@pytest.mark.parametrize(("seed", "graded"), [(1, 0), (4, 5), (5, 13)])
def test_a_late_grade_equals_an_outcome_that_was_recorded(tmp_path, episode, seed, graded):
    recorded, items = fill(
        tmp_path / "a.db", episode, seed=seed,
        change=lambda number, one: end(one, not one.success) if number == graded else one,
    )  # fmt: skip
    late, _ = fill(tmp_path / "b.db", episode, seed=seed)
    observe(late, items)  # fill every cache before the grade
    late.grade(f"e{graded}", success=not late.episodes.get(f"e{graded}").success)
    assert observe(late, items) == observe(recorded, items)
    assert late.admin.verify() == []
    with ExperienceLibrary.open(tmp_path / "b.db") as reopened:
        assert observe(reopened, items) == observe(recorded, items)
    recorded.close()
    late.close()


@pytest.mark.parametrize("graded", [0, 13])
def test_an_unknown_outcome_that_becomes_known_counts_from_its_place(tmp_path, episode, graded):
    recorded, items = fill(tmp_path / "a.db", episode, seed=3)
    success = recorded.episodes.get(f"e{graded}").success
    late, _ = fill(tmp_path / "b.db", episode, seed=3, unknown=(graded,))
    late.grade(f"e{graded}", success=success)
    one, other = observe(late, items), observe(recorded, items)
    for name in ("world records", "worlds", "effects"):  # the order in which worlds are found may differ
        one.pop(name), other.pop(name)
    assert one == other
    assert late.admin.verify() == []
    late.grade(f"e{graded}", unknown=True)
    excluded, _ = fill(tmp_path / "c.db", episode, seed=3, unknown=(graded,))
    assert observe(late, items)["uses"] == observe(excluded, items)["uses"]
    assert observe(late, items)["values"] == observe(excluded, items)["values"]
    assert late.admin.verify() == []


def test_the_only_episode_of_an_item_earns_and_loses_its_score_in_a_world(tmp_path, episode):
    """Where there was no score by world, the first grade writes one, and `unknown` takes the last one away."""
    shown = replace(end(episode("open drawer", id="e0", meta={"environment": "kitchen"}), None), arm="retrieved")

    def fill_one(name, success):
        library = ExperienceLibrary.open(tmp_path / name)
        items = add_items(library)[:1]
        steps = tuple(replace(step, why={"recalled": items}) for step in shown.steps)
        library.record(end(replace(shown, steps=steps), success))
        return library, items

    recorded, items = fill_one("a.db", True)
    late, _ = fill_one("b.db", None)
    expected = observe(recorded, items)["worlds"]
    assert len(expected) == 1
    assert observe(late, items)["worlds"] == []
    late.grade("e0", success=True)
    assert observe(late, items)["worlds"] == expected
    assert read_scores(late, items) == read_scores(recorded, items) > [0.5]
    late.grade("e0", unknown=True)
    assert observe(late, items)["worlds"] == []
    assert read_scores(late, items) == pytest.approx([0.5])
    recorded.close()
    late.close()


def test_a_late_grade_moves_the_scores_by_the_difference_that_it_makes_today(library, episode):
    """Worked example: after one use, the rate is 1/2, so a failure in place of a success moves the score by 1/4."""
    (item, *_) = add_items(library)
    library.record(replace(end(episode("wait", id="c"), False), arm="control"))

    def record(name, success):
        one = end(episode("open drawer", task="find the spoon", id=name, meta={"environment": "kitchen"}), success)
        library.record(replace(one, steps=tuple(replace(step, why={"recalled": [item]}) for step in one.steps)))
        return library.items.get(item).score

    first = record("e0", True)
    library.grade("e0", success=False)
    assert library.items.get(item).score == pytest.approx(first - 0.25)
    library.grade("e0", success=True)
    assert library.items.get(item).score == pytest.approx(first)
    for number in range(9):
        last = record(f"e{number + 1}", True)
    library.grade("e0", success=False)  # of ten uses, the first counts as one of ten
    assert library.items.get(item).score == pytest.approx(last - 0.05)


def test_a_second_grade_replaces_the_first_and_the_history_keeps_both(tmp_path, episode):
    late, items = fill(tmp_path / "b.db", episode, seed=1)
    before = observe(late, items)
    success = late.episodes.get("e5").success
    late.grade("e5", success=not success, grader="ann", why="the customer called")
    late.grade("e5", score=0.4, grader="bob")
    late.grade("e5", success=success, grader="ann")
    assert observe(late, items) == before
    assert [(grade.grader, grade.success, grade.score, grade.why) for grade in late.episodes.grades("e5")] == [
        ("ann", not success, float(not success), "the customer called"),
        ("bob", False, 0.4, ""),
        ("ann", success, float(success), ""),
    ]
    assert all(grade.at for grade in late.episodes.grades("e5"))
    late.close()


def test_the_same_grade_twice_changes_nothing(library, episode):
    library.record(episode("open drawer", id="one", success=False, reward=0.0))
    first = library.grade("one", success=True, why="it worked", instead="pull drawer")
    digest = library.admin.query(compute_digest)
    again = library.grade("one", success=True, why="it worked", instead="pull drawer")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.admission.item_id == first.admission.item_id
    assert library.admin.query(compute_digest) == digest


def test_other_handles_and_processes_see_the_grade(path, episode):
    with ExperienceLibrary.open(path) as writer, ExperienceLibrary.open(path) as reader:
        for number in range(4):
            writer.record(episode("open drawer", id=f"e{number}", reward=0.0, success=False, library=writer))
        before = reader.recall(DRAWER, actions={"open drawer": ""}).estimates["open drawer"].value
        writer.grade("e3", success=True)
        assert reader.episodes.get("e3").success is True
        assert reader.recall(DRAWER, actions={"open drawer": ""}).estimates["open drawer"].value > before


def test_a_grade_reaches_an_episode_that_still_waits_in_the_write_buffer(path, episode):
    with ExperienceLibrary.open(path) as library:
        ref = library.record(episode("open drawer", success=None, reward=0.0))
        assert library.grade(ref[:12], success=True).episode == ref
        assert library.episodes.count() == 1


def test_a_correction_is_recalled_in_its_situation(library, episode):
    library.record(
        episode("open drawer", "open drawer", id="one", success=False, reward=0.0, failure=Failure.NO_EFFECT)
    )
    step = library.episodes.get("one").steps[1]
    grade = library.grade("one", instead="pull the handle", step=1, why="the drawer jams")
    item = library.items.get(grade.admission.item_id)
    assert (item.source, item.trust, item.provenance, item.steps) == (
        "person", "trusted", (step.id,), ("pull the handle",),
    )  # fmt: skip
    assert item.title == "Use `pull the handle` instead of `open drawer`"
    assert grade.success is False  # the outcome stays
    assert item.id in [hit.what.id for hit in library.recall(DRAWER).items]


def test_words_of_an_untrusted_grader_wait_in_quarantine(library, episode):
    library.record(episode("open drawer", id="one", success=False, reward=0.0))
    grade = library.grade("one", lesson="pull the handle, do not push", grader="token:x", trust="untrusted")
    item = library.items.get(grade.admission.item_id)
    assert (item.status, item.trust, item.source) == ("quarantined", "untrusted", "client")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"score": 1.5}, {"score": float("nan")}, {"success": True, "unknown": True}, {"success": True, "score": 0.0},
        {"success": False, "score": 1.0},
        {"instead": "x", "step": 9}, {"step": 0}, {"why": "x" * 5000}, {"success": True, "grader": " "}, {"success": 3},
        {"success": True, "why": 5}, {"score": "high"},
    ],
)  # fmt: skip
def test_a_wrong_grade_is_refused_and_nothing_is_written(library, episode, wrong):
    library.record(episode("open drawer", id="one"))
    digest = library.admin.query(compute_digest)
    with pytest.raises(ConfigError):
        library.grade("one", **wrong)
    assert library.admin.query(compute_digest) == digest


def test_a_wrong_id_is_an_unknown_name(library, episode):
    library.record(episode("open drawer", id="one"))
    with pytest.raises(UnknownName, match="episode 'two'"):
        library.grade("two", success=True)
    with pytest.raises(UnknownName):
        library.episodes.grades("two")


def test_a_read_only_library_takes_no_grade(path, episode):
    with ExperienceLibrary.open(path) as library:
        library.record(episode("open drawer", id="one"))
    with ExperienceLibrary.open(path, read_only=True) as library, pytest.raises(LibraryReadOnly):
        library.grade("one", success=False)


def test_secrets_in_a_grade_are_redacted(library, episode):
    library.record(episode("open drawer", id="one"))
    library.grade("one", success=False, why="the key sk-proj-abcdefghijklmnopqrstuvwx1234567890ABCD leaked")
    assert "abcdefghijkl" not in library.episodes.grades("one")[0].why


def test_forgetting_takes_grades_with_it(library, episode):
    for name in ("one", "two"):
        library.record(episode(f"open {name}", id=name))
        library.grade(name, success=False, grader="ann", why=f"the zebra of {name}")
    library.admin.forget(text="zebra of one")
    assert [row["id"] for row in library.episodes.find()] == ["two"]
    library.admin.forget(writer="ann")
    assert library.episodes.grades("two") == []
    assert library.episodes.get("two").success is False
    assert library.admin.verify() == []


def test_an_export_keeps_grades(library, episode, tmp_path):
    library.record(episode("open drawer", id="one"))
    library.grade("one", success=False, grader="ann", why="wrong drawer")
    library.admin.export_jsonl(tmp_path / "all.jsonl")
    with ExperienceLibrary.open(tmp_path / "other.db") as other:
        other.admin.import_jsonl(tmp_path / "all.jsonl")
        assert other.episodes.grades("one") == library.episodes.grades("one")
        assert other.episodes.get("one").success is False


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_a_better_outcome_raises_the_scores_of_what_was_shown(tmp_path, episode, seed):
    """Also among many episodes with other items, and the first outcome again brings the first scores."""
    late, items = fill(tmp_path / "b.db", episode, seed=seed)
    graded = next(
        row["trajectory_id"] for item in items for row in late.items.usages(item) if row["mode"] == "recalled"
    )
    success = late.episodes.get(graded).success
    before = read_scores(late, items)
    late.grade(graded, success=not success)
    assert (sum(read_scores(late, items)) > sum(before)) == (not success)
    assert late.admin.verify() == []
    late.grade(graded, success=success)
    assert read_scores(late, items) == pytest.approx(before)
    late.close()


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_a_grader_who_goes_back_and_forth_moves_no_score_for_good(tmp_path, episode, seed):
    """Neither up nor towards that of another item.

    Only the first `unknown` may: where no other episode of the world showed an item, one that counts again begins from
    the item's score of today.
    """
    late, items = fill(tmp_path / "b.db", episode, seed=seed)
    graded = {row["trajectory_id"] for item in items for row in late.items.usages(item) if row["mode"] == "recalled"}
    for ref in sorted(graded)[:3]:
        success, scores = late.episodes.get(ref).success, [read_scores(late, items)]
        for changed in (*({"success": not success}, {"score": 0.4}) * 3, *({"unknown": True},) * 4):
            late.grade(ref, **changed)
            late.grade(ref, success=success)
            scores.append(read_scores(late, items))
        assert scores[1:7] == [pytest.approx(scores[0])] * 6
        assert scores[8:] == [pytest.approx(scores[7])] * 3
    assert late.admin.verify() == []
    late.close()


def test_a_grade_of_an_episode_whose_world_was_absorbed_counts_in_the_other_world(library, episode):
    """Tasks that differ only in names are one world, which the third of them shows."""
    items = add_items(library)
    for number, thing in enumerate(("spoon", "fork", "pan", "cup", "lid")):
        one = episode("open drawer", task=f"find the {thing}", id=f"e{number}", meta={"environment": "kitchen"})
        steps = tuple(replace(step, why={"recalled": items[:2]}) for step in one.steps)
        library.record(replace(one, steps=steps, arm="retrieved"))
    for number in range(5):
        library.grade(f"e{number}", success=False)
        assert library.admin.verify() == []
