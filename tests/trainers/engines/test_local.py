"""The local engine: exact log-probabilities, whatever is batched, cached, forced or padded."""

import asyncio
import random
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st

from hardwon.memory.errors import ConfigError
from hardwon.trainers.algorithms.samples import Sample, pack_samples
from hardwon.trainers.engines.base import Request
from hardwon.trainers.engines.local import LocalEngine
from hardwon.trainers.engines.trie import Trie
from hardwon.trainers.models.tiny import TinyConfig, build_model

SHAPE = TinyConfig(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=48, context=256)
MODEL = build_model(40, SHAPE)
TRIE = Trie([(10, 11, 2), (10, 12, 13, 2), (14, 2)])


def engine(**fields):
    return LocalEngine(MODEL, None, **fields)


def served(requests, made=None):
    """The completions of requests asked for at the same time."""
    made = made or engine()

    async def ask():
        return await asyncio.gather(*(made.generate(request) for request in requests))

    return asyncio.run(ask())


def plain(prompt, completion, allowed):
    """Log-probabilities by one forward pass without cache."""
    with torch.inference_mode():
        logits = MODEL(input_ids=torch.tensor([[*prompt, *completion]])).logits[0]
    values = []
    for at, (token, only) in enumerate(zip(completion, allowed, strict=True)):
        row = torch.log_softmax(logits[len(prompt) + at - 1][list(only)] if only else logits[len(prompt) + at - 1], -1)
        values.append(float(row[only.index(token) if only else token]))
    return values


prompts = st.lists(st.integers(3, 39), min_size=1, max_size=12).map(tuple)


@settings(max_examples=15)
@given(st.lists(prompts, min_size=1, max_size=6), st.integers(0, 99))
def test_logprobs_are_those_of_a_plain_forward_pass(asked, seed):
    """Ragged prompts in one batch, a trie that forces some tokens: the same to 1e-5."""
    chance = random.Random(seed)
    found = served([Request(prompt, allowed=TRIE, chance=chance) for prompt in asked])
    for prompt, completion in zip(asked, found, strict=True):
        assert TRIE.complete(completion.tokens)
        assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens, completion.allowed), abs=1e-5)


def test_forced_tokens_are_not_choices():
    """10 or 14 is a choice; after 14 only 2 may follow."""
    (one,) = served([Request((5,), allowed=Trie([(10, 2), (14, 2)]), chance=random.Random(0))])
    assert (one.mask, one.logprobs[1], one.allowed[1]) == ((True, False), 0.0, (2,))


def test_a_single_action_costs_no_forward_pass():
    made = engine()
    (one,) = served([Request((5, 6), allowed=Trie([(10, 11, 2)]))], made)
    assert (one.tokens, made.tokens_read) == ((10, 11, 2), 0)


def test_free_completions_end_at_a_stop_token_or_their_length():
    (one,) = served([Request((5,), max_tokens=7, chance=random.Random(1))])
    assert len(one.tokens) == 7
    (stopped,) = served([Request((5,), max_tokens=7, chance=random.Random(1), stop=(one.tokens[2],))])
    assert stopped.tokens == one.tokens[: one.tokens.index(one.tokens[2]) + 1]


def test_the_same_chance_gives_the_same_completion():
    asked = [Request((5, 6), max_tokens=9, chance=random.Random(3)) for _ in range(2)]
    one, other = served(asked)
    assert one == other


def test_temperature_zero_takes_the_most_probable():
    (one,) = served([Request((5,), max_tokens=3, temperature=0.0)])
    with torch.inference_mode():
        assert one.tokens[0] == int(MODEL(input_ids=torch.tensor([[5]])).logits[0, -1].argmax())


def test_temperature_is_in_the_logprobs():
    (one,) = served([Request((5,), allowed=Trie([(10, 2), (14, 2)]), temperature=2.0, chance=random.Random(0))])
    with torch.inference_mode():
        logits = MODEL(input_ids=torch.tensor([[5]])).logits[0, -1][[10, 14]]
    assert one.logprobs[0] == pytest.approx(
        float(torch.log_softmax(logits / 2.0, -1)[(10, 14).index(one.tokens[0])]), abs=1e-5
    )


def test_sampling_follows_the_probabilities():
    """600 draws between two actions are within 4 standard errors."""
    chance = random.Random(0)
    found = served([Request((5, 9), allowed=Trie([(10, 2), (14, 2)]), chance=chance) for _ in range(600)])
    share = sum(one.tokens[0] == 10 for one in found) / 600
    (p, _) = torch.softmax(MODEL(input_ids=torch.tensor([[5, 9]])).logits[0, -1][[10, 14]], -1).tolist()
    assert abs(share - p) < 4 * (p * (1 - p) / 600) ** 0.5


async def _episode(made, name, turns, chance):
    await made.begin(name)
    prompt, found = (5, 6), []
    for turn in range(turns):
        completion = await made.generate(Request(prompt, allowed=TRIE, session=name, chance=chance))
        found.append((prompt, completion))
        prompt = (*prompt, *completion.tokens, 20 + turn, 7)
    await made.end(name)
    return found


def test_what_was_read_is_not_read_again():
    """Turns of an episode extend each other: only the new tokens go through the model; the numbers are the same."""
    made = engine()
    found = asyncio.run(_episode(made, "e", 5, random.Random(4)))
    for prompt, completion in found:
        assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens, completion.allowed), abs=1e-5)
    whole = len(found[-1][0]) + len(found[-1][1].tokens)
    assert made.tokens_read <= whole


@pytest.mark.parametrize("allowed", [TRIE, None])
def test_siblings_read_their_first_prompt_once_and_go_on_alone(allowed):
    """Eight episodes with equal first prompts, and one with another, continue as on an engine of their own."""

    async def play(made, starts):
        async def one(name, prompt):
            chance, steps = random.Random(name), []
            for turn in range(3):
                completion = await made.generate(
                    Request(prompt, allowed=allowed, session=name, chance=chance, max_tokens=3)
                )
                steps.append(completion)
                prompt = (*prompt, *completion.tokens, 20 + turn, 7)
            await made.end(name)
            return steps

        for name in starts:
            await made.begin(name)
        return await asyncio.gather(*(one(name, prompt) for name, prompt in starts.items()))

    prompt = tuple(range(5, 30))
    starts = {f"e{number}": prompt for number in range(8)} | {"other": (6, *prompt[1:])}
    together, lone = engine(), [engine() for _ in starts]
    outcomes = asyncio.run(play(together, starts))
    for made, (name, start), steps in zip(lone, starts.items(), outcomes, strict=True):
        (expected,) = asyncio.run(play(made, {name: start}))
        assert [step.tokens for step in steps] == [step.tokens for step in expected]
        for step, other in zip(steps, expected, strict=True):
            assert step.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert len({step.tokens for steps in outcomes for step in steps[:1]}) > 1, "each draws for itself"
    assert sum(made.tokens_read for made in lone) - together.tokens_read >= 7 * len(prompt)


def test_equal_prompts_with_other_listed_answers_are_other_questions():
    """What is read once for all of them is the prompt with the answers."""
    listed = [TRIE, Trie([(10, 2), (14, 2)]), Trie([(11, 12, 2), (14, 15, 2)])] * 2
    requests = [Request((5, 9), allowed=trie, chance=random.Random(n)) for n, trie in enumerate(listed)]
    for completion in served(requests):
        assert completion.logprobs == pytest.approx(plain((5, 9), completion.tokens, completion.allowed), abs=1e-5)


def test_a_rewritten_prompt_is_read_from_where_it_differs():
    made = engine()

    async def ask():
        await made.begin("e")
        await made.generate(Request((5, 6, 7), allowed=TRIE, session="e", chance=random.Random(0)))
        return await made.generate(Request((5, 9, 7), allowed=TRIE, session="e", chance=random.Random(0)))

    completion = asyncio.run(ask())
    assert completion.logprobs == pytest.approx(plain((5, 9, 7), completion.tokens, completion.allowed), abs=1e-5)


def test_open_sessions_are_served_together_whoever_asks_first():
    """Episodes of different length in rounds: nobody starves, and each has its own numbers."""
    made = engine()

    async def run():
        return await asyncio.gather(*(_episode(made, f"e{n}", n + 1, random.Random(n)) for n in range(6)))

    for found in asyncio.run(run()):
        for prompt, completion in found:
            assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens, completion.allowed), abs=1e-5)
    assert not made._sessions


def test_caches_that_outgrow_their_room_are_as_if_there_were_none():
    """Ragged rows, 70 tokens a turn, two turns: more slots than are made at a time, some of them empty."""
    made = engine()

    async def episode(name, prompt):
        await made.begin(name)
        chance, found = random.Random(name), []
        for _ in range(2):
            completion = await made.generate(Request(prompt, max_tokens=70, session=name, chance=chance, stop=(2,)))
            found.append((prompt, completion))
            prompt = (*prompt, *completion.tokens, 7, 9)
        await made.end(name)
        return found

    async def run():
        return await asyncio.gather(*(episode(f"e{n}", tuple(range(5, 6 + 3 * n))) for n in range(3)))

    for found in asyncio.run(run()):
        for prompt, completion in found:
            assert completion.logprobs == pytest.approx(plain(prompt, completion.tokens, completion.allowed), abs=1e-5)


def test_free_and_bound_rows_of_any_temperature_share_a_batch():
    """Each row's numbers are those that it has alone."""
    heats = (0.0, 0.5, 1.0, 2.0)
    asked = [(allowed, heat) for allowed in (None, TRIE) for heat in heats]

    def requests():
        return [Request((5, 6), "policy", only, 4, heat, chance=random.Random(1)) for only, heat in asked]

    for together, request in zip(served(requests()), requests(), strict=True):
        (alone,) = served([request])
        assert together.tokens == alone.tokens
        assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_runs_with_the_same_seeds_are_the_same_bit_for_bit():
    def once():
        made = engine()

        async def run():
            return await asyncio.gather(*(_episode(made, f"e{n}", 3, random.Random(n)) for n in range(5)))

        return asyncio.run(run())

    assert once() == once()


def test_logprobs_of_streams_agree_with_what_was_sampled():
    made = engine()
    (one,) = served([Request((5, 6), allowed=TRIE, chance=random.Random(2))], made)
    row = Sample((5, 6), one.tokens, one.logprobs, one.mask, one.allowed, "policy", 0, "control", "", "", "t", 0)
    (values,) = asyncio.run(made.logprobs(pack_samples([row], {"t": [1.0]}), "policy"))
    assert values[2:] == pytest.approx(one.logprobs, abs=1e-5)


def test_other_weights_are_another_version():
    """Hot-swapped: what is asked from now on is by them, under their number, and reads everything anew."""
    made = LocalEngine(build_model(40, SHAPE), None)
    (before,) = served([Request((5,), max_tokens=4, temperature=0.0)], made)
    made.load_adapter("policy", 3, build_model(40, SHAPE, seed=9).state_dict())
    (after,) = served([Request((5,), max_tokens=4, temperature=0.0)], made)
    assert (before.version, after.version, made.versions()) == (0, 3, {"policy": 3})
    assert before.logprobs != after.logprobs


def test_each_role_has_its_own_weights():
    made = LocalEngine(build_model(40, SHAPE), None, roles=("policy", "extractor"))
    made.load_adapter("extractor", 1, build_model(40, SHAPE, seed=9).state_dict())
    policy, extractor = served(
        [Request((5,), role, max_tokens=4, temperature=0.0) for role in ("policy", "extractor")], made
    )
    assert policy.logprobs != extractor.logprobs
    assert policy.logprobs == served([Request((5,), max_tokens=4, temperature=0.0)])[0].logprobs


def test_adapters_on_one_base_are_served_in_one_batch():
    peft = pytest.importorskip("peft")
    base = build_model(40, SHAPE)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]), adapter_name="policy")
    model.add_adapter("extractor", peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B.extractor" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    made = LocalEngine(model, None, roles=("policy", "extractor"))
    policy, extractor = served(
        [Request((5,), role, max_tokens=4, temperature=0.0) for role in ("policy", "extractor")], made
    )
    assert policy.logprobs == pytest.approx(
        served([Request((5,), max_tokens=4, temperature=0.0)])[0].logprobs, abs=1e-5
    )
    assert policy.logprobs != extractor.logprobs


@pytest.mark.parametrize(
    ("request_", "says"), [(Request((5,), "guide"), "role 'guide'"), (Request(()), "at least one token")]
)
def test_what_cannot_be_served_is_refused(request_, says):
    with pytest.raises(ConfigError, match=says):
        served([request_])


@pytest.mark.parametrize("sequences", [[], [()], [(1,), (1, 2)]])
def test_a_trie_refuses_what_has_no_end(sequences):
    with pytest.raises(ValueError, match="sequence"):
        Trie(sequences)


def test_a_trie_says_what_may_and_what_must_follow():
    assert (TRIE.allowed(()), TRIE.allowed((10,)), TRIE.forced((14,)), TRIE.forced((10, 12))) == (
        (10, 14),
        (11, 12),
        (2,),
        (13, 2),
    )


# -- lists of answers, scored at once

LISTED = [(10, 11, 2), (10, 12, 13, 2), (10, 12, 14, 15, 2), (14, 2), (16, 17, 18, 2), (16, 17, 19, 2)]


def decoding(**fields):
    """An engine that decodes listed answers token by token, as it does where it cannot read trees."""
    made = engine(**fields)
    made._reads_trees = False
    return made


@settings(max_examples=15)
@given(st.lists(prompts, min_size=1, max_size=5), st.integers(0, 99), st.sampled_from([1.0, 0.7]))
def test_answers_scored_at_once_are_those_of_decoding(asked, seed, temperature):
    """The same draws, the same probabilities, whatever the lengths in the batch."""
    both = [
        served(
            [
                Request(prompt, allowed=Trie(LISTED), chance=random.Random(f"{seed}:{n}"), temperature=temperature)
                for n, prompt in enumerate(asked)
            ],
            made,
        )
        for made in (engine(), decoding())
    ]
    for one, other in zip(*both, strict=True):
        assert (one.tokens, one.mask, one.allowed) == (other.tokens, other.mask, other.allowed)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@settings(max_examples=20)
@given(prompts)
def test_greedy_takes_the_answer_with_the_highest_sum(prompt):
    """Not the one whose first token is most probable: the alternatives of a family of actions share their mass."""
    (one,) = served([Request(prompt, allowed=Trie(LISTED), temperature=0.0)])
    trie = Trie(LISTED)
    sums = {
        answer: sum(plain(prompt, answer, [trie.allowed(answer[:n]) for n in range(len(answer))])) for answer in LISTED
    }
    assert sums[one.tokens] == pytest.approx(max(sums.values()), abs=1e-5)


def test_a_list_costs_one_forward_pass():
    made, passes = engine(), list[str]()
    hook = made.model.base_model.register_forward_hook(lambda *_: passes.append("one"))
    served([Request((5, 6, 7), allowed=Trie(LISTED), chance=random.Random(0))], made)
    hook.remove()
    assert passes == ["one"]
    assert made.tokens_read == 3 + 4  # the prompt, and 10, 12, 16, 17: the tokens that a choice follows


def test_an_episode_of_lists_reads_its_past_once():
    made = engine()
    found = asyncio.run(_episode(made, "e", 5, random.Random(4)))
    cold = asyncio.run(_episode(decoding(), "e", 5, random.Random(4)))
    assert [one.tokens for _, one in found] == [one.tokens for _, one in cold]
    assert [x for _, one in found for x in one.logprobs] == pytest.approx(
        [x for _, one in cold for x in one.logprobs], abs=1e-5
    )


# -- caches belong to weights


@pytest.mark.parametrize("version", [1, 2])
def test_weights_changed_in_the_middle_of_an_episode_are_those_of_a_cold_engine(version):
    """Even if the caller gives the same version again."""
    other = build_model(40, SHAPE, seed=9).state_dict()

    async def play(made, prompt, **fields):
        return await made.generate(Request(prompt, max_tokens=3, temperature=0.0, **fields))

    async def change():
        made = LocalEngine(build_model(40, SHAPE), None)
        made.load_adapter("policy", 1, made.model.state_dict())
        await made.begin("e")
        first = await play(made, (5, 6, 7, 8), session="e")
        made.load_adapter("policy", version, other)
        prompt = (5, 6, 7, 8, *first.tokens, 9)
        return prompt, first, await play(made, prompt, session="e")

    prompt, first, later = asyncio.run(change())
    cold = LocalEngine(build_model(40, SHAPE, seed=9), None)
    assert later.logprobs == pytest.approx(asyncio.run(play(cold, prompt)).logprobs, abs=1e-6)
    assert later.version == first.version + 1 == 2


def test_a_request_that_waits_is_read_with_the_new_weights():
    other = build_model(40, SHAPE, seed=9).state_dict()

    async def change():
        made = LocalEngine(build_model(40, SHAPE), None)
        for name in ("e", "f"):
            await made.begin(name)
        ask = [Request((5, 6, 7, 8), max_tokens=1, temperature=0.0, session=name) for name in ("e", "f")]
        await asyncio.gather(*map(made.generate, ask))
        again = Request((5, 6, 7, 8, 9, 10), max_tokens=2, temperature=0.0, session="e")
        waiting = asyncio.create_task(made.generate(again))
        await asyncio.sleep(0.01)  # it waits for the other open session
        made.load_adapter("policy", 1, other)
        await made.end("f")
        return await waiting

    cold = LocalEngine(build_model(40, SHAPE, seed=9), None)
    (expected,) = served([Request((5, 6, 7, 8, 9, 10), max_tokens=2, temperature=0.0)], cold)
    assert asyncio.run(change()).logprobs == pytest.approx(expected.logprobs, abs=1e-6)


def test_a_question_between_turns_does_not_displace_the_episode():
    """As a gate's, which has a prompt of its own."""

    async def play():
        made = engine()
        await made.begin("e")
        prompt = tuple(range(5, 25))
        await made.generate(Request(prompt, max_tokens=1, temperature=0.0, session="e"))
        await made.generate(Request((30, 31, 32), max_tokens=1, temperature=0.0, session="e"))
        before = made.tokens_read
        await made.generate(Request((*prompt, 8, 9), max_tokens=1, temperature=0.0, session="e"))
        return made.tokens_read - before

    assert asyncio.run(play()) <= 3


def test_a_cache_has_the_name_that_the_model_takes():
    """An older name is deprecated first and then ignored, and all that was read before with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        served([Request((3, 4, 5), allowed=TRIE, chance=random.Random(0)), Request((3, 4), max_tokens=3)])
