"""Reading beside the rollouts: nobody waits who need not, and a failure costs its own work alone."""

import asyncio
from typing import Any

import pytest

from hardwon.memory.errors import ConfigError
from hardwon.trainers.workers.background import Background


async def said(word):
    return word


async def broken(error):
    raise error


def test_what_is_not_done_is_left_for_the_next_time():
    async def go():
        slow = asyncio.Event()

        async def wait():
            await slow.wait()
            return "slow"

        background: Background[Any] = Background()
        background.submit("a", wait())
        background.submit("b", said("fast"))
        await asyncio.sleep(0)
        first, _ = await background.finished(wait=False)
        left = background.under_way()
        slow.set()
        return first, left, (await background.finished(wait=True))[0]

    assert asyncio.run(go()) == ([("b", "fast")], ["a"], [("a", "slow")])


def test_what_is_done_comes_in_the_order_of_asking():
    async def go():
        background: Background[Any] = Background()
        for n in range(20):
            background.submit(str(n), asyncio.sleep(0.001 * (n % 3), n))
        return (await background.finished(wait=True))[0]

    assert asyncio.run(go()) == [(str(n), n) for n in range(20)]


def test_a_failure_costs_its_own_work_alone():
    async def go():
        background: Background[Any] = Background()
        background.submit("a", broken(RuntimeError("no model")))
        background.submit("b", said("fine"))
        return await background.finished(wait=True)

    assert asyncio.run(go()) == ([("b", "fine")], ["a: RuntimeError: no model"])


def test_settings_that_cannot_work_are_told():
    async def go():
        background: Background[Any] = Background()
        background.submit("a", broken(ConfigError("no such role")))
        await background.finished(wait=True)

    with pytest.raises(ConfigError, match="no such role"):
        asyncio.run(go())
