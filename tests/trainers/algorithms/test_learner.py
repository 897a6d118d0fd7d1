"""The training step: exact scores, the same gradient however it is cut, each role alone, resumed bit for bit."""

import copy
import hashlib
import random
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms import logprobs as forward_module
from hardwon.trainers.algorithms.learner import (
    Learner,
    LearnerSettings,
    LossSettings,
    _compute_denominator,
    _list_turn_keys,
    freeze_copy,
)
from hardwon.trainers.algorithms.logprobs import collate, compute_logprobs, forward
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.models.adapters import activate, add_adapter, parameters_of
from hardwon.trainers.models.tiny import TinyConfig, build_model

WORDS = 40
SHAPE = TinyConfig(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=32)
EVERYTHING = LossSettings(old="trainer", kl=0.3, entropy=0.1)


@pytest.fixture
def model():
    """Two layers in float64, weights large enough that tokens differ."""
    made = build_model(WORDS, SHAPE).double()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return made


def stream(rng, trace="a", length=12, sets=True, role="policy", advantage=None):
    """Half of the tokens count; half of those were sampled among three to six."""
    tokens = tuple(rng.randrange(WORDS) for _ in range(length))
    mask = (False, False, *(rng.random() < 0.5 for _ in range(length - 3)), True)
    near = tuple(
        tuple(sorted({token, *rng.sample(range(WORDS), rng.randint(2, 5))})) if sets and rng.random() < 0.5 else None
        for token in tokens
    )
    value = rng.uniform(-1, 1) if advantage is None else advantage
    said = tuple(-rng.uniform(0.5, 3) for _ in tokens)
    return PackedSequence(tokens, mask, said, (value,) * length, near, role, trace, 0)


def streams(seed=0, number=7, **settings):
    rng = random.Random(seed)
    return [stream(rng, trace=f"t{n // 2}", length=rng.randint(4, 20), **settings) for n in range(number)]


def learner(model, role="", **settings):
    return Learner(model, parameters_of(model, role), LearnerSettings(**settings), role=role)


def gradient(model, given, loss, **settings):
    """What a step adds up before the optimiser acts, by keeping it from acting."""
    made = learner(copy.deepcopy(model), **settings)
    kept: list[torch.Tensor] = []
    made._apply_gradient = lambda *_, **__: kept.extend(parameter.grad.clone() for parameter in made.parameters)
    made.step(given, loss, reference=freeze_copy(model))
    return torch.cat([grad.flatten() for grad in kept])


def weights(model):
    return torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])


def digests(model, role):
    return {
        name: hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
        for name, parameter in model.named_parameters()
        if f".{role}." in name
    }


def by_hand(model, given, temperature=1.0):
    """Log-probabilities and entropies from the whole logits of each stream alone."""
    values, entropies = [], []
    for part in given:
        logits = model(input_ids=torch.tensor([part.tokens])).logits[0] / temperature
        for at, counts in enumerate(part.mask):
            if counts:
                ids = torch.tensor(part.allowed[at] or tuple(range(WORDS)))
                found = torch.distributions.Categorical(logits=logits[at - 1][ids])
                values.append(found.log_prob((ids == part.tokens[at]).nonzero().squeeze()))
                entropies.append(found.entropy())
    return torch.stack(values), torch.stack(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("narrow", [1, 100])
@pytest.mark.parametrize("pieces", [1, 10**9])
def test_scores_are_those_of_the_whole_logits(model, monkeypatch, temperature, narrow, pieces):
    """Padded, gathered, among allowed tokens, in pieces or not: the same as one stream at a time."""
    monkeypatch.setattr(forward_module, "MAX_NARROW", narrow)
    monkeypatch.setattr(forward_module, "MAX_LOGITS", pieces * WORDS)
    given = streams()
    found = forward(model, collate(given, dtype=torch.float64), temperature=temperature)
    for values, expected in zip(found, by_hand(model, given, temperature), strict=True):
        assert torch.allclose(values, expected, atol=1e-9)


def test_logprobs_come_in_the_order_of_the_streams(model):
    given = streams()
    found = compute_logprobs(model, given, budget=30)
    expected, _ = by_hand(model, given)
    assert torch.allclose(torch.cat(found), expected, atol=1e-9)


def test_a_token_that_was_not_possible_is_refused():
    """A row whose allowed set lacks the token sampled would have probability 0."""
    broken = PackedSequence((1, 2), (False, True), (0.0, 0.0), (0.0, 1.0), (None, (3, 4)), "policy", "a", 0)
    with pytest.raises(ValueError, match="token 2 of trace 'a'"):
        collate([broken])


def test_the_first_token_cannot_be_trained_on():
    broken = PackedSequence((1,), (True,), (0.0,), (1.0,), (None,), "policy", "a", 0)
    with pytest.raises(ValueError, match="first token"):
        collate([broken])


@pytest.mark.parametrize(
    ("kind", "denominator"),
    [
        *(("ppo", denominator) for denominator in ("tokens", "traces", "turns", "constant")),
        *(("gspo", "traces"), ("cispo", "turns"), ("imitation", "tokens")),
    ],
)
def test_micro_batches_and_padding_do_not_change_the_gradient(model, kind, denominator):
    """Any token budget, from one stream at a time to all in one padded batch, and any order: the same to 1e-6."""
    loss = replace(EVERYTHING, kind=kind)
    given = streams()
    whole = gradient(model, given, loss, budget=10_000, denominator=denominator)
    assert whole.abs().max() > 1e-3
    for budget in (1, 30, 60):
        assert torch.allclose(whole, gradient(model, given, loss, budget=budget, denominator=denominator), atol=1e-6)
    assert torch.allclose(whole, gradient(model, given[::-1], loss, budget=40, denominator=denominator), atol=1e-6)


def test_gradient_checkpointing_does_not_change_the_gradient(model):
    assert torch.allclose(
        gradient(model, streams(), EVERYTHING), gradient(model, streams(), EVERYTHING, recompute=True), atol=1e-12
    )


def test_a_head_with_a_bias_is_scored_with_it(model):
    model.lm_head.bias = torch.nn.Parameter(torch.randn(WORDS, dtype=torch.float64))
    found, _ = forward(model, collate(streams(), dtype=torch.float64))
    assert torch.allclose(found, by_hand(model, streams())[0], atol=1e-9)


def test_a_model_that_bends_its_logits_is_refused(model):
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        forward(model, collate(streams(), dtype=torch.float64))


@pytest.mark.parametrize("half", [False, True])
def test_bfloat16_is_near(monkeypatch, half):
    """Under autocast, as on a GPU, or with weights in half precision: float32 scores, within a few hundredths."""
    model, given = build_model(WORDS, SHAPE), streams()
    exact, _ = forward(model, collate(given))
    monkeypatch.setattr(forward_module, "autocast", lambda _: torch.autocast("cpu", torch.bfloat16, enabled=not half))
    found, entropies = forward(model.bfloat16() if half else model, collate(given))
    assert found.dtype == entropies.dtype == torch.float32
    assert torch.allclose(found, exact, atol=0.05)


def test_pieces_of_the_head_do_not_change_the_gradient(model, monkeypatch):
    """Logits made a few at a time, and again in the backward pass."""
    whole = gradient(model, streams(), EVERYTHING)
    monkeypatch.setattr(forward_module, "MAX_LOGITS", 3 * WORDS)
    assert torch.allclose(whole, gradient(model, streams(), EVERYTHING), atol=1e-9)


def test_each_trace_weighs_the_same_by_traces(model):
    """A trace cut into two streams counts as one: the mean over its tokens, then over traces."""
    rng = random.Random(1)
    first, second, other = (stream(rng, trace, advantage=1.0) for trace in ("a", "a", "b"))
    loss = LossSettings(kind="imitation")
    found = gradient(model, [first, second, other], loss, denominator="traces")
    alone = {part: gradient(model, [part], loss) for part in (first, second, other)}
    n, m = sum(first.mask), sum(second.mask)
    expected = ((n * alone[first] + m * alone[second]) / (n + m) + alone[other]) / 2
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_the_mean_over_turns_gives_a_short_turn_the_weight_of_a_long_one():
    """Turns with 1 and 3 tokens of loss 1 and 0: turns .5, tokens .25. One turn a trace is the mean over traces."""
    tokens, mask, nothing = (1, 2, 3, 4, 5), (False, True, True, True, True), (0.0,) * 5
    one = PackedSequence(tokens, mask, nothing, nothing, (None,) * 5, "policy", "a", 0, (0, 0, 1, 1, 1))
    divisor, weights = _compute_denominator([one], LearnerSettings(denominator="turns"))
    own = [weights[key] for key in _list_turn_keys(one)]
    assert sum(w * loss for w, loss in zip(own, (1, 0, 0, 0), strict=True)) / divisor == pytest.approx(0.5)
    divisor, weights = _compute_denominator([one], LearnerSettings())
    assert weights["policy", "a"] * 1 / divisor == pytest.approx(0.25)
    short = replace(one, turns=(0,) * 5)
    assert _compute_denominator([short], LearnerSettings(denominator="turns"))[0] == 1.0


def test_the_constant_denominator_is_by_trace(model):
    """Dr. GRPO: the sum over tokens, by traces x constant."""
    given = streams()
    n, traces = sum(sum(part.mask) for part in given), len({part.trace for part in given})
    mean = gradient(model, given, LossSettings(kind="cispo"))
    found = gradient(model, given, LossSettings(kind="cispo"), denominator="constant", constant=50)
    assert torch.allclose(found * traces * 50, mean * n, rtol=1e-4, atol=1e-6)


def test_streams_without_advantage_are_counted_and_not_read(model):
    """A group that all succeeded makes the others' tokens no heavier, and costs nothing."""
    rng = random.Random(2)
    loud, silent = stream(rng, "a", advantage=1.0), stream(rng, "b", advantage=0.0)
    alone = gradient(model, [loud], LossSettings())
    share = sum(loud.mask) / (sum(loud.mask) + sum(silent.mask))
    assert torch.allclose(gradient(model, [loud, silent], LossSettings()), alone * share, rtol=1e-4, atol=1e-6)
    assert learner(model).step([loud, silent], LossSettings())["tokens"] == len(loud)


def test_no_signal_moves_nothing(model):
    """Not even by the momentum of earlier updates; the schedule goes on."""
    made = learner(model)
    made.step(streams(), LossSettings())
    before = weights(model)
    metrics = made.step(streams(advantage=0.0), LossSettings())
    assert torch.equal(before, weights(model))
    assert (metrics["updates"], made.updates) == (0, 2)


def test_a_gradient_that_is_not_finite_is_dropped(model):
    made, before = learner(model), weights(model)
    broken = streams(advantage=float("inf"))
    metrics = made.step(broken, LossSettings(kind="imitation"))
    assert metrics["skipped"] == 1
    assert torch.equal(before, weights(model))


def test_the_first_update_has_the_ratio_one(model):
    """With the trainer's own old log-probabilities nothing is clipped, and there is no divergence from itself."""
    metrics = learner(model).step(streams(), EVERYTHING, reference=freeze_copy(model))
    assert metrics["clip_fraction"] == 0
    assert metrics["kl"] == pytest.approx(0, abs=1e-9)
    assert metrics["kl_old"] == pytest.approx(0, abs=1e-9)
    assert 0 < metrics["ess"] <= 1
    assert 0 < metrics["entropy"] < 4


def test_old_of_the_trainer_is_read_before_the_first_update(model):
    """Several epochs move away from one old policy, the same one."""
    metrics = learner(model, epochs=4, lr=1e-2).step(streams(), LossSettings(old="trainer"))
    assert metrics["kl_old"] > 1e-6
    assert metrics["updates"] == 4


def test_samples_of_the_same_policy_are_worth_themselves(model):
    """Log-probabilities as recorded equal those read again: ess is 1, the ratio 1."""
    given = streams()
    told = compute_logprobs(model, given, budget=100)
    exact = []
    for part, values in zip(given, told, strict=True):
        rest = iter(values.tolist())
        exact.append(replace(part, logprobs=tuple(next(rest) if counts else 0.0 for counts in part.mask)))
    metrics = learner(model).step(exact, LossSettings())
    assert metrics["ess"] == pytest.approx(1)
    assert metrics["kl_old"] == pytest.approx(0, abs=1e-12)


def test_minibatches_hold_whole_traces_and_all_of_them(model):
    made = learner(model, minibatches=2, epochs=2)
    given = streams()
    parts = made._split_into_updates(given)
    assert len(parts) == 4
    for half in (parts[:2], parts[2:]):
        traces = [{part.trace for part in one} for one in half]
        assert not traces[0] & traces[1]
        assert sorted(map(id, half[0] + half[1])) == sorted(map(id, given))


def test_imitation_lowers_the_loss(model):
    made, given = learner(model, lr=1e-2), streams(advantage=1.0)
    losses = [made.step(given, LossSettings(kind="imitation"))["loss"] for _ in range(30)]
    assert losses[-1] < losses[0] / 2


def test_an_action_that_paid_becomes_likelier(model):
    """And one that cost, less likely."""
    rng = random.Random(5)
    good, bad = stream(rng, "a", advantage=1.0), stream(rng, "b", advantage=-1.0)
    before = [float(values.sum()) for values in compute_logprobs(model, [good, bad], budget=100)]
    learner(model, lr=1e-3).step([good, bad], LossSettings(old="trainer"))
    after = [float(values.sum()) for values in compute_logprobs(model, [good, bad], budget=100)]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_the_divergence_pulls_back_to_the_reference(model):
    """A policy that was moved returns under a divergence alone."""
    near = freeze_copy(model)
    learner(model, lr=1e-2).step(streams(advantage=1.0), LossSettings(kind="imitation"))
    made, loss = learner(model, lr=1e-3), LossSettings(kl=1.0)
    found = [made.step(streams(advantage=0.0), loss, reference=near)["kl"] for _ in range(20)]
    assert found[-1] < found[0] / 2


def test_what_is_read_before_an_update_has_the_temperature_of_the_samples(model):
    """The policy is its own reference and its own old policy, so neither differs from it at the first update."""
    loss = LossSettings(kl=1.0, old="trainer")
    same = learner(model, lr=0.0, minibatches=2).step(streams(), loss, reference=model, temperature=0.7)
    assert (same["kl"], same["kl_old"]) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_a_frozen_copy_is_not_trained_and_the_model_still_is(model):
    copied = freeze_copy(model)
    assert not any(weights.requires_grad for weights in copied.parameters())
    assert all(weights.requires_grad for weights in model.parameters())
    assert not copied.training


def test_a_divergence_needs_a_reference(model):
    with pytest.raises(ConfigError, match="freeze_copy"):
        learner(model).step(streams(), LossSettings(kl=0.1))


def test_the_learning_rate_rises_and_falls(model):
    made = learner(model, lr=1.0, warmup=2, decay=4)
    found = []
    for _ in range(5):
        found.append(made.lr)
        made.updates += 1
    assert found == pytest.approx([0.5, 0.75, 0.5, 0.25, 0.0])


def test_resumed_is_bit_for_bit_the_straight_run():
    """Weights, optimiser and schedule saved after three steps, and gone on with in another learner."""
    settings = {"minibatches": 2, "epochs": 2, "warmup": 3, "decay": 40}
    model = build_model(WORDS, SHAPE)
    straight = learner(model, **settings)
    for seed in range(3):
        straight.step(streams(seed), LossSettings(entropy=0.01))
    other = build_model(WORDS, SHAPE, seed=9)
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = learner(other, **settings)
    resumed.load_state_dict(copy.deepcopy(straight.state_dict()))
    for seed in range(3, 6):
        for one in (straight, resumed):
            one.step(streams(seed), LossSettings(entropy=0.01))
    assert torch.equal(weights(model), weights(other))


def test_the_state_goes_through_a_file(tmp_path):
    """As plain tensors and numbers: it can be read without running what a file says."""
    model = build_model(WORDS, SHAPE)
    made = learner(model)
    made.step(streams(), LossSettings())
    torch.save(made.state_dict(), tmp_path / "state.pt")
    again = learner(model)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.updates == 1


@pytest.fixture
def adapted():
    """One base with an adapter for each of two roles."""
    pytest.importorskip("peft")
    return add_adapter(add_adapter(build_model(WORDS, SHAPE), "policy", rank=4), "extractor", rank=4)


def test_a_new_adapter_changes_nothing(adapted):
    activate(adapted, "policy")
    given = streams()
    assert torch.equal(
        torch.cat(compute_logprobs(adapted, given, budget=100)),
        torch.cat(compute_logprobs(build_model(WORDS, SHAPE), given, budget=100)),
    )


def test_a_role_changes_only_its_own_parameters(adapted):
    """Digests of every tensor: the other role's and the base's stay as they were."""
    policy, extractor = (learner(adapted, role=role, lr=1e-2) for role in ("policy", "extractor"))
    for made, own, other in ((policy, "policy", "extractor"), (extractor, "extractor", "policy")):
        before = {role: digests(adapted, role) for role in (own, other, "base_layer")}
        for seed in range(2):
            made.step(streams(seed), LossSettings())
        assert all(digests(adapted, own)[name] != value for name, value in before[own].items())
        assert digests(adapted, other) == before[other]
        assert digests(adapted, "base_layer") == before["base_layer"]


def test_with_adapters_the_base_is_the_reference(adapted):
    """The divergence is 0 for a fresh adapter, and that of the base once it moved."""
    made, loss = learner(adapted, role="policy", lr=1e-2), LossSettings(kl=0.1, old="trainer")
    found = [made.step(streams(), loss)["kl"] for _ in range(5)]
    assert found[0] == pytest.approx(0, abs=1e-6)
    assert all(later > earlier for earlier, later in pairwise(found[:3]))


def test_an_adapter_is_resumed_bit_for_bit():
    pytest.importorskip("peft")
    made = [add_adapter(build_model(WORDS, SHAPE), "policy", rank=4) for _ in range(2)]
    first, second = (learner(model, role="policy") for model in made)
    first.step(streams(0), LossSettings())
    made[1].load_state_dict(made[0].state_dict())
    second.load_state_dict(first.state_dict())
    for one in (first, second):
        one.step(streams(1), LossSettings(kl=0.1))
    assert torch.equal(weights(made[0]), weights(made[1]))


def test_an_adapter_learns_under_gradient_checkpointing(adapted):
    """Its layers' inputs need no gradient of their own."""
    activate(adapted, "policy")
    given = streams(advantage=1.0)
    before = torch.cat(compute_logprobs(adapted, given, budget=100)).mean()
    learner(adapted, "policy", lr=1e-2, recompute=True).step(given, LossSettings(kind="imitation"))
    learner(adapted, "policy", lr=1e-2, recompute=True).step(given, LossSettings(kind="imitation"))
    assert torch.cat(compute_logprobs(adapted, given, budget=100)).mean() > before


def test_a_step_that_broke_leaves_no_gradient(model):
    """Out of memory, say: the next step begins clean."""
    made, given = learner(model, budget=1), streams()
    broken = [
        *given,
        replace(
            given[0],
            tokens=(WORDS + 5,) * 3,
            mask=(False, False, True),
            logprobs=(0.0,) * 3,
            advantages=(1.0,) * 3,
            allowed=(None,) * 3,
        ),
    ]
    with pytest.raises(IndexError):
        made.step(broken, LossSettings())
    assert all(parameter.grad is None for parameter in made.parameters)


def test_a_role_without_an_adapter_is_refused(adapted):
    with pytest.raises(ConfigError, match="'guide'; there are: policy, extractor"):
        activate(adapted, "guide")


def test_two_adapters_of_one_name_are_refused(adapted):
    with pytest.raises(ConfigError, match="already"):
        add_adapter(adapted, "policy")


def test_a_turn_that_the_trainer_would_have_sampled_otherwise_is_left_out(model):
    """Its log-probabilities of sampling are far below the trainer's. With the bound, nothing moves; it is counted."""
    rng = random.Random(5)
    far = stream(rng, "a", advantage=1.0)
    far = replace(far, turns=(0,) * len(far), logprobs=(-40.0,) * len(far))
    for bound in (2.0, None):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        loss = LossSettings(kind="gspo", ratio="turn", old="trainer", max_mismatch=bound)
        metrics = learner(model, lr=1e-2).step([far], loss)
        has_moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert (has_moved, metrics.get("left_out")) == ((False, 1.0) if bound else (True, None))
