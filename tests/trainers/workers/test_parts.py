"""The parts of rollouts in other processes, one by one: the bound on the lag, and answers that are kept."""

import asyncio
import random
from typing import cast

from hardwon.trainers.engines.base import Completion, Engine, Request
from hardwon.trainers.workers.inference_proxy import InferenceProxy
from hardwon.trainers.workers.messages import Inquiry
from hardwon.trainers.workers.prefetcher import Prefetcher


def test_no_more_iterations_are_begun_than_the_bound_allows():
    begun = []

    async def play(number):
        begun.append(number)
        return f"groups {number}"

    async def run():
        ahead = Prefetcher(play, 2, 4, lambda: len(begun))
        assert await ahead.take(0) == "groups 0"
        assert begun == [0, 1, 2]
        assert await ahead.take(1) == "groups 1"
        assert begun == [0, 1, 2, 3]
        assert await ahead.take(2) == "groups 2"
        assert await ahead.take(3) == "groups 3"
        assert begun == [0, 1, 2, 3, 4], "there is no iteration after the last one"
        await ahead.cancel()

    asyncio.run(run())


class CountingEngine:
    """An engine that numbers its answers."""

    def __init__(self):
        self.asked = 0

    async def generate(self, request):
        self.asked += 1
        if request.chance is not None:
            request.chance.random()
        return Completion((self.asked,), (0.0,), (True,), (None,), 0)


def ask(proxy, number, prompt=(1,)):
    request = Request(prompt, session="s", chance=random.Random(7))
    return asyncio.wait_for(proxy.answer(Inquiry("s", number, request)), 5)


def test_an_episode_that_is_played_again_gets_the_answers_of_the_first_time():
    async def run():
        engine = CountingEngine()
        proxy = InferenceProxy(cast(Engine, engine), None)
        first, second = await ask(proxy, 0), await ask(proxy, 1, (1, 2))
        again = await ask(proxy, 0), await ask(proxy, 1, (1, 2))
        assert again == (first, second)
        assert engine.asked == 2
        other = await ask(proxy, 1, (9,))  # the environment answered otherwise: the episode goes its own way
        assert other.completion.tokens == (3,)
        proxy.forget(["s"])
        assert (await ask(proxy, 0)).completion.tokens == (4,)

    asyncio.run(run())
