"""Loss terms: the worked examples of their papers, their degenerate cases, and what must not change the gradient."""

import copy
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.catalog import PARTS
from hardwon.trainers.algorithms.learner import Learner, LearnerSettings, LossSettings
from hardwon.trainers.algorithms.logprobs import _denoise, collate, forward, forward_denoised
from hardwon.trainers.algorithms.losses import policy_loss
from hardwon.trainers.algorithms.parallel import ProcessGroup
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.algorithms.terms import FrozenPolicy, Term, Terms, TokenFacts
from hardwon.trainers.config.loading import of
from hardwon.trainers.methods.dcpo import draw_advantage, find_share
from hardwon.trainers.methods.epo import find_phase, measure_deviation
from hardwon.trainers.methods.lp_reg import find_threshold
from hardwon.trainers.models.adapters import parameters_of
from hardwon.trainers.models.tiny import TinyConfig, build_model

WORDS = 30
SHAPE = TinyConfig(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=32)
SETTINGS = {
    "epo": {"horizon": 2, "low": 0.9, "high": 1.1},
    "lp-reg": {"share": 0.9, "keep": 0.6},
    "dcpo": {"most": 1.0},
    "hindsight": {},
}


@pytest.fixture
def model():
    made = build_model(WORDS, SHAPE).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return made


def sequence(seed, *, length=10, advantage=None, outcome=None, allowed=3):
    """A sequence of which every second token counts; each was sampled among `allowed` tokens."""
    rng = random.Random(seed)
    tokens = tuple(rng.randrange(WORDS) for _ in range(length))
    sets = tuple(
        tuple(sorted({token, *rng.sample(range(WORDS), allowed)})) if allowed else (token,) for token in tokens
    )
    value = rng.choice([-1.0, 1.0]) if advantage is None else advantage
    won = float(value > 0) if outcome is None else outcome
    mask = tuple(at > 0 and at % 2 == 0 for at in range(length))
    turns = tuple(at // 4 for at in range(length))
    said = tuple(-rng.uniform(0.1, 3) for _ in tokens)
    return PackedSequence(tokens, mask, said, (value,) * length, sets, "policy", f"t{seed}", 0, turns, won)


def batch(number=8, **settings):
    return [sequence(seed, length=8 + seed % 4, **settings) for seed in range(number)]


def batch_for(name):
    """A batch on which a term acts: every second trace of one for revisions is a revision."""
    given = batch()
    if name == "hindsight":
        given[::2] = [replace(one, trace=f"{one.trace}+revised") for one in given[::2]]
    return given


def learner(model, **settings):
    return Learner(model, parameters_of(model, ""), LearnerSettings(lr=1e-3, **settings))


def train(model, given, terms, steps=2, **settings):
    """The weights after some steps, with their metrics."""
    made = learner(copy.deepcopy(model), **settings)
    logged = [made.step(given, LossSettings(terms=terms)) for _ in range(steps)]
    flat = torch.cat([parameter.detach().flatten() for parameter in made.parameters])
    return flat, logged, made


# -- what every term has in common ----------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS.list_cards("term"))
def test_a_term_moves_the_policy_and_says_how_often_it_acted(name, model):
    plain, _, _ = train(model, batch_for(name), {})
    moved, logged, _ = train(model, batch_for(name), {name: SETTINGS[name]})
    assert not torch.equal(plain, moved)
    assert logged[-1][f"term/{name}/active"] > 0


def test_without_terms_nothing_is_logged_or_saved(model):
    _, logged, made = train(model, batch(), {})
    assert not [name for name in logged[-1] if "term" in name]
    assert set(made.state_dict()) == {"adam", "updates"}


@pytest.mark.parametrize("name", PARTS.list_cards("term"))
@pytest.mark.parametrize("change", ["micro", "order"])
def test_neither_micro_batches_nor_the_order_of_sequences_matter(name, change, model):
    given = batch_for(name)
    whole, _, _ = train(model, given, {name: SETTINGS[name]}, steps=1)
    other = given[::-1] if change == "order" else given
    cut, _, _ = train(model, other, {name: SETTINGS[name]}, steps=1, budget=12 if change == "micro" else 4096)
    assert torch.allclose(whole, cut, atol=1e-9)


@pytest.mark.parametrize("name", PARTS.list_cards("term"))
def test_a_restored_learner_continues_bit_for_bit(name, model):
    terms = {name: SETTINGS[name]}
    straight, _, _ = train(model, batch_for(name), terms, steps=4)
    _, _, first = train(model, batch_for(name), terms, steps=2)
    other = learner(first.model)
    other.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(2):
        other.step(batch_for(name), LossSettings(terms=terms))
    assert torch.equal(straight, torch.cat([parameter.detach().flatten() for parameter in other.parameters]))


@pytest.mark.parametrize("name", ["epo", "lp-reg"])
def test_a_token_that_could_be_no_other_adds_nothing(name, model):
    """One allowed token each: the entropy is 0, and neither the bonus nor the penalty has a gradient."""
    forced = batch(allowed=0, advantage=-1.0)
    plain, _, _ = train(model, forced, {})
    with_term, _, _ = train(model, forced, {name: SETTINGS[name]})
    assert torch.allclose(plain, with_term, atol=1e-12)


def test_a_forced_token_has_no_term_whatever_its_loss(model, monkeypatch):
    """X6: a token among one is no choice; one among several has the loss of the term."""
    monkeypatch.setattr(PARTS.get("term", "epo"), "penalize", lambda self, tokens: torch.full_like(tokens.new, 7.0))
    added = []
    for allowed in (0, 3):
        terms = Terms()
        terms.open({"epo": SETTINGS["epo"]})
        sequences = batch(2, allowed=allowed)
        collated = collate(sequences)
        new, entropies = forward(model, collated)
        loss, _ = terms.weigh(new, entropies, collated, sequences)
        assert loss is not None
        added.append(set(loss.flatten().tolist()))
    assert added == [{0.0}, {7.0}]


def test_several_processes_are_refused():
    team = ProcessGroup(0, 2, shards=False)
    team.active = True
    with pytest.raises(ConfigError, match="one process"):
        team.check_loss(LossSettings(terms={"epo": {}}))


def settings_of(**loss):
    return {
        "environment": {"name": "tests.trainers.corridor:Corridor"},
        "tasks": {"eval": {"seeds": "900-901"}},
        "roles": {"policy": {"loss": loss}},
    }


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"epoo": {}}, "epo"),
        ({"epo": {"weigth": 1}}, "weight"),
        ({"epo": {"low": 2.0}}, "low <= high"),
        ({"lp-reg": {"share": 0.0}}, "share is 0;"),
        ({"dcpo": {"hot": 0.5}}, "hot"),
    ],
)
def test_a_wrong_setting_is_refused(terms, message):
    with pytest.raises(ConfigError, match=message):
        of(settings_of(terms=terms))


def test_only_the_policy_has_terms():
    given = settings_of()
    given["roles"]["guide"] = {"loss": {"terms": {"epo": {}}}}
    given["arms"], given["guidance"] = {"control": 2, "guided": 2}, {"guided": "role"}
    with pytest.raises(ConfigError, match="only the policy"):
        of(given)


# -- EPO ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entropy", "value", "slope"), [(0.5, 0.0, 0.0), (0.7, 0.1, 1.0), (0.3, 0.1, -1.0)])
def test_epo_by_hand(entropy, value, slope):
    """Of a history of .5 with .8 and 1.2: nothing at .5, and .1 at .7 and at .3."""
    given = torch.tensor([entropy], dtype=torch.float64, requires_grad=True)
    found = measure_deviation(given, torch.tensor([0.5], dtype=torch.float64), 0.8, 1.2)
    (gradient,) = torch.autograd.grad(found.sum(), given)
    assert [float(found), float(gradient)] == pytest.approx([value, slope])


def test_the_schedule_of_epo():
    """.8271 at the end of the first phase, then .8 exp(-3 p) down to .0398."""
    assert find_phase(0, 150) == 1.0
    assert find_phase(75, 150) == pytest.approx(0.8271, abs=1e-4)
    assert find_phase(76, 150) < 0.8
    assert [find_phase(at, 150) for at in (150, 900)] == pytest.approx([0.0398, 0.0398], abs=1e-4)


def facts(entropies, steps):
    given = torch.tensor(entropies, dtype=torch.float64, requires_grad=True)
    count = torch.ones(len(entropies), dtype=torch.bool)
    return TokenFacts(torch.zeros_like(given), given, torch.tensor(steps), count, ())


def epo(history, **settings):
    """The term after one step with these entropies by step of the episode."""
    made: Any = PARTS.get("term", "epo")(weight=1.0, smooth=1.0, **settings)
    made.penalize(facts([*history.values()], [*history]))
    made.end()
    return made


def test_epo_without_a_history_is_an_entropy_bonus():
    made: Any = PARTS.get("term", "epo")(weight=0.5)
    assert made.penalize(facts([0.2, 0.9], [0, 1])).tolist() == pytest.approx([-0.1, -0.45])


def test_epo_compares_a_turn_with_the_same_turn_alone():
    """Step 1 had 2.0 and step 0 had .5: at .5, step 0 is as ever and step 1 has lost its entropy."""
    made = epo({0: 0.5, 1: 2.0})
    found = made.penalize(facts([0.5, 0.5], [0, 1]))
    penalty = (0.8 * 2.0 - 0.5) * find_phase(1, 150)
    assert found.tolist() == pytest.approx([-0.5, -0.5 + penalty])


def test_epo_smooths_the_later_half_of_an_episode_alone():
    made = epo({0: 2.0, 3: 2.0}, horizon=6)
    first, later = made.penalize(facts([0.5, 0.5], [0, 3])).tolist()
    assert first == pytest.approx(-0.5)
    assert later > first


def test_epo_reads_episodes_without_any_advantage(model):
    """Streams of advantage 0 are not read unless a term wants them."""
    silent = batch(advantage=0.0)
    assert torch.equal(train(model, silent, {}, steps=1)[0], train(model, silent, {}, steps=2)[0])
    assert not torch.equal(train(model, silent, {}, steps=1)[0], train(model, silent, {"epo": {}}, steps=1)[0])


# -- Lp-Reg ---------------------------------------------------------------------------------------


def test_lp_reg_by_hand():
    """p = .6, .3, .09, .01: the bound is .012, the proxy of .09 is .0909, k3 is 5.07e-5 with the gradient -.0101."""
    probabilities = torch.tensor([0.6, 0.3, 0.09, 0.01], dtype=torch.float64)
    new: Any = probabilities.log().requires_grad_()
    proxy = _denoise(probabilities.log().expand(4, 4), probabilities.log(), 0.02)
    assert proxy[:3].exp().tolist() == pytest.approx([0.6 / 0.99, 0.3 / 0.99, 0.0909], abs=1e-4)
    assert proxy[3] == -math.inf
    made: Any = PARTS.get("term", "lp-reg")()
    given = replace(sequence(0, length=9), mask=(False,) + (True,) * 4 + (False,) * 4)
    made._proxies = {id(given): proxy}
    tokens = TokenFacts(new, new, torch.zeros(4), torch.ones(4, dtype=torch.bool), [given])
    found = made.penalize(tokens)
    assert found[2].item() == pytest.approx(5.07e-5, abs=3e-7)
    found.sum().backward()
    assert new.grad[2].item() == pytest.approx(-0.0101, abs=1e-5)
    assert new.grad[3].item() == 0.0
    assert made.find_unclipped(tokens).tolist() == [True, True, True, False]


def test_lp_reg_needs_more_than_one_token_in_the_lowest_share():
    assert find_threshold([-float(n) for n in range(199)], 0.01) is None
    assert find_threshold([-float(n) for n in range(200)], 0.01) == -198.0


def test_lp_reg_leaves_positive_advantages_alone(model):
    good = batch(advantage=1.0)
    assert torch.equal(train(model, good, {})[0], train(model, good, {"lp-reg": SETTINGS["lp-reg"]})[0])


def test_lp_reg_spares_unlikely_tokens_of_a_negative_advantage_only(model):
    """Four trained tokens, of which the first and third are good and the last was likely."""
    signs, sampled = [0.0] * 9, [-1.0] * 9
    for at, sign, logprob in zip((2, 4, 6, 8), (1.0, -1.0, 1.0, -1.0), (-9.0, -9.0, -9.0, -0.1), strict=True):
        signs[at], sampled[at] = sign, logprob
    given = replace(sequence(0, length=9), advantages=tuple(signs), logprobs=tuple(sampled))
    more = replace(sequence(1, advantage=-1.0), logprobs=(-9.0,) * 10)
    made: Any = PARTS.get("term", "lp-reg")(share=0.8, keep=1e-9)
    made.prepare([given, more], FrozenPolicy(model, 4096, 1.0))
    assert made._proxies[id(given)].isfinite().tolist() == [False, True, False, False]
    assert made._proxies[id(more)].isfinite().all()
    assert made.end() == {"active": 0.0}
    assert not made._proxies


def test_the_share_of_tokens_on_which_a_term_acted_is_that_of_one_step():
    """1 of 4 tokens, and then none."""
    made = Term()
    made.acted, made.seen = 1.0, 4.0
    assert [made.end(), made.end()] == [{"active": 0.25}, {"active": 0.0}]


def test_an_unclipped_token_has_the_objective_r_a():
    """A < 0 and r = .5 below the clip: PPO has no gradient there, and r A has one."""
    old = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    new: Any = (old + math.log(0.5)).requires_grad_()
    one = torch.ones(2, dtype=torch.float64)
    policy_loss(new, old, -one, one, denominator=1.0, unclipped=torch.tensor([True, False])).value.backward()
    assert new.grad.tolist() == pytest.approx([0.5, 0.0])


def test_the_denoised_pass_gives_the_same_log_probabilities(model):
    given = collate(batch(4), dtype=torch.float64)
    plain, denoised = forward(model, given), forward_denoised(model, given, keep=0.02)
    assert all(torch.equal(a, b) for a, b in zip(plain, denoised, strict=False))
    kept = denoised[2].isfinite()
    assert bool((denoised[2][kept] >= denoised[0][kept] - 1e-9).all())


# -- DCPO -----------------------------------------------------------------------------------------


def test_dcpo_by_hand():
    """H .3, target .5, a quarter right: alpha .2857; p = .8, .2 at 1.2 gives .9506 and 1.1977."""
    alpha = find_share(0.3, 0.5, 0.25, 0.1)
    assert alpha == pytest.approx(0.2857, abs=1e-4)
    log_p = torch.tensor([0.8, 0.2], dtype=torch.float64).log()
    for temperature, factors in ((1.2, (0.9506, 1.1977)), (0.8, (1.0622, 0.7511))):
        difference = torch.log_softmax(log_p / temperature, 0) - log_p
        assert difference.exp().tolist() == pytest.approx(factors, abs=1e-4)
    hot = torch.log_softmax(log_p / 1.2, 0) - log_p
    drawn = [draw_advantage(1.0, alpha, True, float(value)) for value in hot]
    assert drawn == pytest.approx([0.9859, 1.0565], abs=1e-4)


def test_dcpo_at_its_target_or_without_a_success_changes_nothing():
    assert find_share(0.5, 0.5, 0.25, 0.1) == 0.0
    assert find_share(0.3, 0.5, 0.0, 0.1) == 0.0


def test_dcpo_only_scales_wrong_episodes(model):
    given = [sequence(0, advantage=-1.0), sequence(1, advantage=1.0)]
    made = PARTS.get("term", "dcpo")(target=9.0)
    wrong, right = made.rewrite(given, FrozenPolicy(model, 4096, 1.0))
    alpha = find_share(0.0, 9.0, 0.5, 0.1)
    at = [n for n, counts in enumerate(wrong.mask) if counts]
    assert [wrong.advantages[n] for n in at] == pytest.approx([alpha - 1] * len(at))
    assert len({round(right.advantages[n], 6) for n in at}) > 1


def test_dcpo_moves_the_entropy_towards_its_target(model):
    """Several steps on equal successes: the entropy is higher with a high target than with a low one."""
    given = batch(advantage=0.0, outcome=1.0)
    given = [replace(s, advantages=s.advantages) for s in given]
    means = [
        train(model, given, {"dcpo": {"target": target, "most": 1.0}}, steps=12)[1][-1]["entropy"]
        for target in (5.0, 0.0)
    ]
    assert means[0] > means[1]


# -- HeRL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "gradient"), [(1.0, 0.25), (3.0, 3 / 16), (1 / 3, 3 / 16)])
def test_hindsight_by_hand(ratio, gradient):
    """-A r / (r + 1) with A = 1: at r = 1 the loss is -1/2, its gradient A / 4 towards the revision."""
    given = replace(sequence(0, length=4), mask=(False, False, True, False), trace="t0+revised", advantages=(1.0,) * 4)
    made: Any = PARTS.get("term", "hindsight")(weight=1.0)
    (silent,) = made.rewrite([given], None)
    assert {*silent.advantages} == {0.0}
    new: Any = torch.tensor([given.logprobs[2] + math.log(ratio)], dtype=torch.float64, requires_grad=True)
    loss = made.penalize(TokenFacts(new, new, torch.zeros(1), torch.ones(1, dtype=torch.bool), [silent]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(-ratio / (ratio + 1))
    assert new.grad.item() == pytest.approx(-gradient)
    half: Any = PARTS.get("term", "hindsight")()
    half.rewrite([given], None)
    assert half.penalize(TokenFacts(new, new, torch.zeros(1), torch.ones(1, dtype=torch.bool), [silent])).item() == (
        pytest.approx(-0.5 * ratio / (ratio + 1))
    )


def test_hindsight_without_a_revision_is_the_loss_of_the_run(model):
    assert torch.equal(train(model, batch(), {})[0], train(model, batch(), {"hindsight": {}})[0])


def test_hindsight_of_weight_0_trains_the_plain_episodes_alone(model):
    """The surrogate of a revision is gone: without the term's own loss it has none."""
    given = batch_for("hindsight")
    without = [replace(one, advantages=(0.0,) * len(one)) if "+" in one.trace else one for one in given]
    plain, silent = train(model, without, {})[0], train(model, given, {"hindsight": {"weight": 0.0}})[0]
    assert torch.allclose(plain, silent, atol=1e-9)
    assert not torch.allclose(plain, train(model, given, {})[0])
