"""The extractor: paid by the paired difference, credited by sequence, never waited for."""

import asyncio
import io
import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from hardwon.memory import Diagnosis, ExperienceLibrary, State, Step, Trajectory
from hardwon.memory.errors import ConfigError
from hardwon.memory.reasons import Reasons
from hardwon.memory.records import Add, Admission, Return, Update
from hardwon.trainers.algorithms.imitation import WarmStart, warm_start
from hardwon.trainers.algorithms.learner import LearnerSettings, LossSettings
from hardwon.trainers.algorithms.samples import Rollout, Sample, pack_samples
from hardwon.trainers.config.schema import RoleConfig
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.gating.gate import Gated, Judgement
from hardwon.trainers.models.tiny import TinyConfig, build_model, build_tokenizer
from hardwon.trainers.prompting.compact import CompactFormat
from hardwon.trainers.roles.base import Parts
from hardwon.trainers.roles.extractor import ExtractorRole
from hardwon.trainers.roles.item_reward import Buffer, Use, of_group, to_streams, worth
from hardwon.trainers.roles.note_generators import WORDS, KeepOrSkip, Writes, parse_operations, ways
from hardwon.trainers.rollouts.rollout import Spec

TEXTS = ["find the coin . red blue green hall : go east west . take coin . you are in the room", WORDS]
TOKENIZER = build_tokenizer(TEXTS)
TRANSCRIPT = CompactFormat(TOKENIZER)
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16, context=256)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def row(name, said=5):
    return Sample((1, 2, 3), (said,), (-0.7,), (True,), ((5, 6),), "extractor", 0, "", "", "", name, 0)


def known(uses, **settings) -> float:
    value = worth(uses, **settings)
    assert value is not None
    return value


def flips(chance, p, n):
    return tuple(float(chance.random() < p) for _ in range(n))


# -- what an item is worth


@pytest.mark.parametrize("base", [0.1, 0.5, 0.85])
def test_an_item_without_effect_is_worth_nothing_whatever_the_base(base):
    """systems.md §5: an item with no effect has mean reward 0 +- 0.05 over 1,000 pairs at any base success rate."""
    chance = random.Random(f"{base}")
    pairs = [Use(flips(chance, base, 1), flips(chance, base, 1)) for _ in range(1000)]
    assert fmean(known([pair]) for pair in pairs) == pytest.approx(0.0, abs=0.05)
    assert worth(pairs) == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("base", [0.2, 0.5, 0.8])
def test_what_helps_is_worth_more_than_nothing_and_what_harms_less(base):
    """systems.md §5: a helpful one > 0; a harmful one < 0."""
    chance = random.Random(f"{base}")
    helpful, harmful = (
        [Use(flips(chance, base + by, 1), flips(chance, base, 1)) for _ in range(1000)] for by in (0.15, -0.15)
    )
    assert known(helpful) > 0.05
    assert known(harmful) < -0.05


def test_the_reward_by_hand():
    """Two groups: mean difference over three consumers, shrunk 3 / 5, less 10 of 100 tokens at 0.2."""
    uses = [Use((1.0, 0.0), (0.0, 0.5)), Use((1.0,), (0.0,))]
    assert worth(uses, tokens=10, cost=0.2, length=100) == pytest.approx((0.75 - 0.25 + 1.0) / 3 * 0.6 - 0.02)
    assert worth(uses, measure="sign") == pytest.approx(1.0 * 0.6)
    assert worth(uses, measure="outcome") == pytest.approx((0.0 * 2 + 1.0) / 3 * 0.6)


def test_without_a_control_sibling_nothing_can_be_said():
    assert worth([]) is None
    assert worth([Use((1.0,), ())]) is None
    assert worth([Use((1.0,), ())], measure="outcome") is not None


def test_the_outcome_pays_for_what_is_of_no_use():
    """systems.md §5: on an 85%-success task a vacuous item gets +0.7 from the outcome, 0 from the difference."""
    same = [Use((1.0,) * 17 + (0.0,) * 3, (1.0,) * 17 + (0.0,) * 3)] * 100
    assert worth(same, measure="outcome") == pytest.approx(0.7, abs=0.01)
    assert worth(same) == 0.0


def test_uses_of_a_group_are_by_item_beside_the_same_control():
    assert of_group({None: [0.0, 1.0], "a": [1.0], "b": [0.0]}) == {
        "a": Use((1.0,), (0.0, 1.0)),
        "b": Use((0.0,), (0.0, 1.0)),
    }


# -- the buffer


def test_credit_reaches_only_the_sequence_that_wrote_the_item():
    """systems.md §5: ids: reward of item e updates only the sequence that wrote e."""
    buffer = Buffer(ready=1, cost=0.0)
    for name in ("s1", "s2"):
        buffer.wrote(row(name), {f"{name}#0": 4})
    buffer.used("s2#0", Use((1.0,) * 2, (0.0,) * 2))
    batch = buffer.take()
    assert [(sample.row.trace, reward) for sample, reward, _ in batch] == [("s2", 0.5)]
    assert [stream.trace for stream in to_streams(batch)] == ["s2"]


def test_an_item_that_two_sequences_wrote_is_the_first_one_s():
    buffer = Buffer(ready=1)
    buffer.wrote(row("first"), {"item": 4})
    buffer.wrote(row("second"), {"item": 4})
    buffer.used("item", Use((1.0,), (0.0,)))
    assert [sample.row.trace for sample, _, _ in buffer.take()] == ["first"]


def test_to_return_is_worth_nothing_at_once():
    """systems.md §5: `return()` scores 0."""
    buffer = Buffer(ready=1)
    buffer.wrote(row("r"), {})
    ((sample, reward, advantage),) = buffer.take()
    assert (sample.row.trace, reward, advantage) == ("r", 0.0, 0.0)
    assert not len(buffer)


def test_it_is_ready_when_enough_different_sequences_are_rewarded():
    buffer = Buffer(ready=3)
    for n in range(3):
        assert not buffer.ready()
        buffer.wrote(row(f"s{n}"), {f"i{n}": 1})
        buffer.used(f"i{n}", Use((1.0,), (0.0,)))
        buffer.used(f"i{n}", Use((1.0,), (0.0,)))
    assert buffer.ready()


def test_the_baseline_is_the_batch_s_mean_and_what_was_trained_on_weighs_less():
    """(r - mean) (1 + train_count)^-1/2; it rests for `cooldown` updates and begins anew."""
    buffer = Buffer(ready=1, cooldown=1, cost=0.0)
    buffer.wrote(row("a"), {"a": 1})
    buffer.used("a", Use((1.0,) * 2, (0.0,)))
    buffer.wrote(row("b"), {})
    assert [advantage for _, _, advantage in buffer.take()] == [0.25, -0.25]
    buffer.used("a", Use((1.0,) * 2, (0.0,)))
    assert not buffer.ready()
    buffer.wrote(row("c"), {})
    buffer.take()
    assert [round(a, 6) for _, _, a in buffer.take()] == [0.0]
    buffer.used("a", Use((1.0,) * 2, (0.0,)))
    buffer.wrote(row("d"), {})
    buffer.take()
    buffer.wrote(row("e"), {})
    assert sorted(round(a, 6) for _, _, a in buffer.take()) == [-0.25, round(0.25 * 3**-0.5, 6)]


def test_a_buffer_goes_on_where_it_was():
    buffer = Buffer(ready=1)
    buffer.wrote(row("a"), {"a": 3})
    buffer.used("a", Use((1.0,), (0.0,)))
    other = Buffer(ready=1)
    other.load_state_dict(buffer.state_dict())
    assert other.state_dict() == buffer.state_dict()
    assert other.take() == buffer.take()


def test_a_buffer_is_bounded():
    buffer = Buffer(ready=1, capacity=2)
    for n in range(5):
        buffer.wrote(row(f"s{n}"), {f"i{n}": 1})
    buffer.used("i0", Use((1.0,), (0.0,)))
    assert len(buffer) == 2
    assert not buffer.ready()


# -- writers


def episode(success=True):
    fine = Diagnosis(True)
    names = ("red", "blue", "red", "green")
    states = [State(f"You are in the {name} room.", location=name, task="find the coin") for name in names]
    moves = ("go east", "go west", "go west")
    steps = tuple(Step(states[n], moves[n], states[n + 1], fine, t=n, id=n + 1) for n in range(3))
    return Trajectory("find the coin", steps, success, id="e")


def test_ways_lead_to_each_place_without_circles():
    found = ways(episode())
    assert [(one.text, one.seen.location, one.steps) for one in found] == [
        ("red : go east .", "blue", (1,)),
        ("red : go west .", "green", (3,)),
    ]


def engine(role="extractor", seed=0):
    return LocalEngine(build_model(len(TOKENIZER), replace(SHAPE, seed=seed)), TOKENIZER, roles=(role,))


def read(writer, trajectory, shown=(), **how):
    return asyncio.run(writer.read(trajectory, shown, **how))


def test_each_candidate_is_one_sampled_token_and_its_operation():
    writer = KeepOrSkip(engine(), TRANSCRIPT)
    for n in range(8):
        for written, candidate in zip(read(writer, episode(), salt=str(n)), ways(episode()), strict=True):
            word = TOKENIZER.convert_ids_to_tokens(written.row.completion[0])
            assert written.row.mask == (True, False)
            (operation,) = written.operations
            if word == "<skip>":
                assert isinstance(operation, Return)
            else:
                assert word == "<keep>"
                assert isinstance(operation, Add)
                assert (operation.item.title, operation.item.provenance) == (candidate.text, candidate.steps)


def test_sequences_have_names_of_their_own():
    writer = KeepOrSkip(engine(), TRANSCRIPT)
    names = [written.row.trace for n in range(2) for written in read(writer, episode(), salt=str(n))]
    assert len({*names}) == 4


def test_said_text_is_read_as_at_most_three_operations():
    said = "<item> add : red : go east . <item> update 1 2 : go west . <item> return <item> add : too many <end>"
    add, update, nothing = parse_operations(said, episode())
    assert isinstance(add, Add)
    assert isinstance(update, Update)
    assert isinstance(nothing, Return)
    assert (add.item.title, update.indices) == ("red : go east .", (0, 1))


def test_what_is_thought_aloud_is_not_asked_for():
    (one,) = parse_operations("add : no <item> add : red : go east . <end>", episode())
    assert isinstance(one, Add)
    assert one.item.title == "red : go east ."


@pytest.mark.parametrize(
    "said", ["", "go east", "<item> add :", "<item> update : red", "<item> add 1 : red", "<end>", "<item> <end>"]
)
def test_what_cannot_be_understood_adds_nothing(said):
    assert all(isinstance(one, Return) for one in parse_operations(said, episode()))


def recorded(library, success=True):
    return library.trajectory(library.record(episode(success)))


def test_an_update_of_what_was_not_shown_is_refused():
    """systems.md §5: add/update/return with index checks: update of a non-retrieved index refused."""
    with ExperienceLibrary.open(":memory:") as library:
        trajectory = recorded(library)
        (added,) = library.apply(parse_operations("<item> add : red : go east .", trajectory), trajectory, [])
        assert added.status == "added"
        assert added.item_id is not None
        (beyond,) = library.apply(
            parse_operations("<item> update 2 : go west .", trajectory), trajectory, [added.item_id]
        )
        assert (beyond.status, beyond.reason) == ("rejected", "it updates item 1 of 1 that were shown")
        (fine,) = library.apply(
            parse_operations("<item> update 1 : go west .", trajectory), trajectory, [added.item_id]
        )
        assert fine.status == "merged"
        assert library.get(added.item_id).title == "go west ."


def test_a_writer_says_only_what_its_grammar_allows():
    answers = ["<item> add : red : go east .", "<item> return"]
    writer = Writes(engine(), TRANSCRIPT, grammar=lambda _: answers)
    said = {type(read(writer, episode(), salt=str(n))[0].operations[0]) for n in range(12)}
    assert said == {Add, Return}


def test_a_writer_learns_to_say_what_it_is_taught():
    """Free words: after a supervised warm-up it writes the text itself, and it is read as the item."""
    served = engine()
    writer = Writes(served, TRANSCRIPT, reads=lambda _: "<see> red")
    lesson = writer.lesson(episode(), "<item> add : red : go east .", "lesson")
    warm_start(served.model, pack_samples([lesson], {"lesson": [1.0]}), WarmStart(updates=60, lr=2e-2))
    (written,) = read(writer, episode(), greedy=True)
    assert written.items[0].title == "red : go east ."


# -- the role


def role(source=lambda task, seed: episode(), ready=4, lr=5e-3, gate=None, **settings):
    model = build_model(len(TOKENIZER), SHAPE)
    config = RoleConfig(
        learner=LearnerSettings(lr=lr),
        loss=LossSettings(kind="cispo", low=0.1, high=0.1, entropy=0.01),
        settings={"ready": ready, "reads": "explored", **settings},
    )
    served = LocalEngine(model, TOKENIZER, roles=("extractor",))
    library = ExperienceLibrary.open(":memory:")
    return ExtractorRole(Parts(config, model, TRANSCRIPT, served, library), source, gate=gate)


def groups(salt, seeds=range(4)):
    return [Spec("find", seed, "memory", copy, salt=salt) for seed in seeds for copy in range(4)]


def ended(spec, success, arm="memory", name=None, meta=None):
    trajectory = Trajectory("find", (), success, arm=arm, id=name or spec.session, meta=meta or {})
    return Rollout(trajectory, (), spec.group)


def played(learner, specs, helps):
    """Episodes that succeed with the text that helps, and half of the time without."""
    chance = random.Random(specs[0].salt)
    with_memory = [ended(spec, spec.memory == helps or chance.random() < 0.5) for spec in specs]
    without = [ended(spec, chance.random() < 0.5, "control", f"control/{spec.session}") for spec in specs]
    learner.collect([*with_memory, *without])


def test_kept_items_are_dealt_in_turn_and_every_group_has_its_own():
    learner = role()
    specs = asyncio.run(learner.prepare(groups("1")))
    by_group: dict[str, list[str | None]] = {}
    for spec in specs:
        by_group.setdefault(spec.group, []).append(spec.memory)
    for texts in by_group.values():
        assert len(Counter(texts)) in (1, 2)
        assert max(Counter(texts).values()) - min(Counter(texts).values()) <= (0 if len({*texts}) == 2 else 4)


def test_the_figures_say_how_much_was_kept_and_how_many_instances_see_something():
    """Each of the ways of an episode is kept or skipped; an instance without a kept one shows nothing."""
    learner, rates = role(), set()
    for salt in "123456":
        dealt = asyncio.run(learner.prepare(groups(salt)))
        texts = {spec.group: {one.memory for one in dealt if one.group == spec.group} - {None} for spec in dealt}
        possible = len(texts) * len(ways(episode()))
        assert learner.stats["kept"] == sum(map(len, texts.values())) / possible
        assert learner.stats["shown"] == sum(map(bool, texts.values())) / len(texts)
        rates.add(learner.stats["shown"])
    assert len(rates) > 1


def test_what_was_shown_is_credited_beside_the_group_s_control():
    learner = role(ready=1)
    specs = asyncio.run(learner.prepare(groups("1")))
    played(learner, specs, "red : go east .")
    for sample, reward, _ in learner.buffer.take():
        assert reward == 0.0 or sample.items


def test_what_was_read_for_an_evaluation_is_not_trained_on():
    learner = role(ready=1)
    asyncio.run(learner.prepare(groups("eval", seeds=range(100, 110))))
    specs = asyncio.run(learner.prepare(groups("1")))
    played(learner, specs, "red : go east .")
    assert {sample.row.trace.split("/")[0] for sample, _, _ in learner.buffer.take()} == {"1"}


def test_it_learns_to_keep_what_helps_and_to_skip_what_does_not():
    learner = role(ready=4, cost=1.0, length=40)
    learner.begin()
    for n in range(50):
        specs = asyncio.run(learner.prepare(groups(str(n))))
        played(learner, specs, "red : go east .")
        if learner.ready():
            learner.update()
    chosen = asyncio.run(learner.choose(groups("eval")))
    assert {spec.memory for spec in chosen} == {"red : go east ."}
    judged = asyncio.run(learner._writer.read(episode(), greedy=True))
    assert [bool(written.items) for written in judged] == [True, False]


def test_frozen_is_as_it_was_when_training_began():
    learner = role()
    learner.begin()
    before = [spec.memory for spec in asyncio.run(learner.prepare(groups("e"), frozen=True))]
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.add_(torch.randn_like(parameter))
    weights = [parameter.clone() for parameter in learner.model.parameters()]
    assert [spec.memory for spec in asyncio.run(learner.prepare(groups("e"), frozen=True))] == before
    assert all(torch.equal(a, b) for a, b in zip(weights, learner.model.parameters(), strict=True))


def test_it_goes_on_where_it_was_saved():
    one = role(ready=2)
    one.begin()
    specs = asyncio.run(one.prepare(groups("1")))
    played(one, specs, "red : go east .")
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other = role(ready=2)
    other.load_state_dict(torch.load(file, weights_only=True))  # as checkpoints read it
    assert {k: v for k, v in one.update().items() if k not in ("tokens_per_second", "kept", "shown")} == {
        k: v for k, v in other.update().items() if k not in ("tokens_per_second",)
    }
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_it_writes_into_the_library_what_it_read_of_a_recorded_episode():
    """Credit follows the item that was recalled, by its id, to the sequence that wrote it."""
    learner = role(ready=1)
    library = learner._parts.library
    trajectory = recorded(library)
    admissions: list[Admission] = []
    while not admissions:
        trajectory = recorded(library)
        admissions = asyncio.run(learner.extract(trajectory))
    item = admissions[0].item_id
    state = trajectory.steps[0].pre
    step = Step(state, "go east", state, Diagnosis(True), why=Reasons.of({"recalled": [item]}))
    spec = Spec("find", 0)
    learner.buffer.take()
    learner.collect(
        [
            Rollout(Trajectory("find", (step,), True, id="x", arm="retrieved"), (), spec.group),
            ended(spec, False, "control"),
        ]
    )
    ((sample, reward, _),) = learner.buffer.take()
    assert item in sample.items
    assert reward > 0.3


def test_settings_are_checked():
    with pytest.raises(ConfigError, match="did you mean ready"):
        role(redy=3)


class Says:
    def __init__(self, *answers):
        self.answers = list(answers)

    def judge(self, task, text, record):
        return self.answers.pop(0)


def test_what_was_rejected_counts_as_control_not_as_consumer():
    """systems.md §5: reject: the run counts as control, not consumer."""
    gate = Gated(Says(*[Judgement("reject"), Judgement("accept")] * 8))
    learner = role(ready=1, gate=gate)
    specs = asyncio.run(learner.prepare(groups("1")))
    learner.collect([ended(spec, spec.memory is None) for spec in specs])
    for sample, reward, _ in learner.buffer.take():
        assert (reward < 0) == bool(sample.items)
