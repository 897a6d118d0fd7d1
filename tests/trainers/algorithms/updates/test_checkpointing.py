"""When gradient checkpointing is used by itself, and the blocks of memory that it gives back."""

import resource
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from tests.trainers.algorithms.test_learner import EVERYTHING, SHAPE, WORDS, gradient, learner, streams

from hardwon.trainers.algorithms.settings import LossSettings
from hardwon.trainers.algorithms.updates import checkpointing
from hardwon.trainers.algorithms.updates.checkpointing import needs_checkpointing, recompute_activations
from hardwon.trainers.models.adapters import add_adapter
from hardwon.trainers.models.tiny import build_model

GIB = 2**30


@pytest.fixture
def model():
    return build_model(WORDS, SHAPE).double()


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """Return a function that sets the free memory of the machine, and the limit and use of its container."""

    class Memory:
        available = 0

    def set_memory(available, limit=None, current=0, cached=0, version=2):
        Memory.available = available
        if limit is not None:
            *files, name = checkpointing.ACCOUNTS[2 - version]
            for file, text in zip(files, (limit, current, f"anon 7\n{name} {cached}"), strict=True):
                (tmp_path / file).parent.mkdir(exist_ok=True)
                (tmp_path / file).write_text(f"{text}\n")

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    monkeypatch.setattr(checkpointing, "CONTAINER", tmp_path)
    return set_memory


@pytest.fixture
def chosen(monkeypatch):
    """Return the list of the micro-batches' choices."""
    choices = []

    def count_and_recompute(model):
        choices.append(True)
        return recompute_activations(model)

    monkeypatch.setattr("hardwon.trainers.algorithms.learner.recompute_activations", count_and_recompute)
    return choices


def count_bytes(model):
    """Return the bytes per token by hand: inputs and outputs of the linear layers of every block."""
    block = model.model.layers[0]
    linear = [module for module in block.modules() if isinstance(module, torch.nn.Linear)]
    return SHAPE.layers * sum(sum(layer.weight.shape) for layer in linear) * 8  # float64


def test_worked_example(model, memory):
    """100 tokens need 1.5 times their activations; half of the free memory is theirs."""
    need = 100 * count_bytes(model) * 1.5
    memory(int(2 * need) + 2)
    assert not needs_checkpointing(model, 100)
    assert needs_checkpointing(model, 101)
    memory(int(2 * need) - 2)
    assert needs_checkpointing(model, 100)


def test_degenerate_no_tokens_need_nothing(model, memory):
    memory(0)
    assert not needs_checkpointing(model, 0)


def test_an_adapter_adds_its_layers(model, memory):
    pytest.importorskip("peft")
    memory(int(2 * 100 * count_bytes(model) * 1.5) + 2)
    assert needs_checkpointing(add_adapter(model, "policy", rank=4), 100)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("limit", "current", "cached", "need"),
    [
        ("max", 5, 0, False),
        (8 * GIB, 8 * GIB - 1000, 0, True),
        (8 * GIB, 8 * GIB - 1000, 4 * GIB, False),  # files that the kernel drops when memory is needed
        (8 * GIB, 0, 0, False),
        ("words", 0, 0, False),
    ],
)
def test_the_limit_of_a_container_counts(model, memory, version, limit, current, cached, need):
    memory(64 * GIB, limit, current, cached, version)
    assert needs_checkpointing(model, 100) is need


@pytest.mark.parametrize(("recompute", "free", "used"), [(None, 0, True), (None, GIB, False), (False, 0, False)])
def test_the_default_follows_the_free_memory(model, memory, chosen, recompute, free, used):
    memory(free)
    learner(model, recompute=recompute).step(streams(), LossSettings(kind="imitation"))
    assert bool(chosen) is used


def test_each_micro_batch_chooses_for_itself(model, memory, chosen):
    """A long row is recomputed, and the short ones are not."""
    given = streams(advantage=1.0)
    longest = max(map(len, given))
    assert sum(len(stream) == longest for stream in given) < len(given)
    memory(int(2 * longest * count_bytes(model) * 1.5) - 2)
    learner(model, budget=1).step(given, LossSettings(kind="imitation"))
    assert len(chosen) == sum(len(stream) == longest for stream in given)


def test_padding_counts(model, memory, chosen):
    """Two rows of a micro-batch take as much memory as two of the longer one."""
    short, long = sorted(streams(advantage=1.0), key=len)[:: len(streams()) - 1]
    memory(int(2 * 2 * len(long) * count_bytes(model) * 1.5) - 2)
    learner(model).step([short, long], LossSettings(kind="imitation"))
    assert chosen


def test_invariance_the_choice_changes_no_bit(model, memory):
    """A run that is resumed with other free memory goes on bit for bit."""
    memory(0)
    frugal = gradient(model, streams(), EVERYTHING)
    memory(64 * GIB)
    assert torch.equal(frugal, gradient(model, streams(), EVERYTHING))


def test_several_processes_do_not_choose(model, memory, chosen):
    """One that recomputes would wait for layers that the others do not run."""
    memory(0)
    made = learner(model)
    methods = ("share_step", "check_loss", "count_idle_passes", "sum_update")
    made._processes = SimpleNamespace(**{name: getattr(made._processes, name) for name in methods})
    made.step(streams(), LossSettings(kind="imitation"))
    assert not chosen


def test_checkpointing_leaves_dropout_off_and_ends(model):
    """Layers that train without end would lose the engine's key-value cache."""
    with recompute_activations(model):
        assert sum(module.training for module in model.modules()) == SHAPE.layers
    assert not any(module.training for module in model.modules())
    ids = torch.tensor([[1, 2]])
    _, cache = model(input_ids=ids, use_cache=True).to_tuple()  # its name depends on the version of transformers
    assert cache.get_seq_length() == 2


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of this process from Linux")
def test_large_blocks_are_given_back_at_once(model):
    """Smaller blocks between large ones would keep these in the heap; they are too large for its holes."""

    def read_resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    with recompute_activations(model):
        pass  # from now on, glibc takes blocks of this size from its heap
    with recompute_activations(model):
        before = read_resident()
        small, large = zip(*((torch.ones(2**17), torch.ones(2**20)) for _ in range(32)), strict=True)
        assert read_resident() > before + 100 * 2**20
        del large
        assert read_resident() < before + 64 * 2**20  # the small ones, and a few in holes
    assert len(small) == 32
