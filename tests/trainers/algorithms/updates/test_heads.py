"""How the head is computed: for a few allowed tokens only their rows, unless it is more than its weights."""

import pytest
import torch
from tests.trainers.algorithms.test_learner import SHAPE, WORDS, by_hand, streams

from hardwon.trainers.algorithms import logprobs
from hardwon.trainers.algorithms.logprobs import collate, forward
from hardwon.trainers.algorithms.samples import PackedSequence
from hardwon.trainers.models.tiny import build_model


@pytest.fixture
def model():
    return build_model(WORDS, SHAPE).double()


@pytest.mark.parametrize(("narrow", "computed"), [(WORDS, True), (1, False)])
def test_few_allowed_tokens_are_scored_without_the_whole_head(model, monkeypatch, narrow, computed):
    """The logits of a large vocabulary are most of the work."""
    monkeypatch.setattr(logprobs, "MAX_NARROW", narrow)
    calls = []
    model.get_output_embeddings().register_forward_hook(lambda *_: calls.append(1))
    given = PackedSequence((1, 2), (False, True), (0.0, 0.0), (0.0, 1.0), (None, (2, 3)), "policy", "a", 0)
    forward(model, collate([given], dtype=torch.float64))
    assert bool(calls) is computed


def test_a_head_that_is_more_than_its_weights_is_computed_as_a_whole(model, monkeypatch):
    """As one with an adapter: the rows of its weights alone would leave the adapter out."""

    class Adapted(torch.nn.Linear):
        def forward(self, hidden):
            return super().forward(hidden) + hidden.roll(1, -1) @ self.weight.T

    monkeypatch.setattr(logprobs, "MAX_NARROW", 1)
    head = model.get_output_embeddings()
    adapted = Adapted(head.in_features, head.out_features, bias=False).double()
    adapted.load_state_dict(head.state_dict())
    model.set_output_embeddings(adapted)
    given = streams()
    for values, expected in zip(
        forward(model, collate(given, dtype=torch.float64)), by_hand(model, given), strict=True
    ):
        assert torch.allclose(values, expected, atol=1e-9)
