"""Scoring of all listed answers in one forward pass: a prompt and the tree of its answers, read side by side.

    (before) You see ... Answer:   | go | take | open        the nodes that a choice follows
                                   |  east, west | coin, map  |  scored, but not read

Each node sees the prompt and its own ancestors only, so a choice among ten actions costs about one short forward pass
instead of one per token. At temperature 0 the answer with the highest sum of log-probabilities wins; above 0, tokens
are drawn one after another, as in decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hardwon.trainers.algorithms.logprobs import SCALED, unwrap_causal
from hardwon.trainers.algorithms.samples import Ids

from .cache import BatchCache
from .trie import Tree, Trie

AT_ONCE = 512
"""Number of choices whose allowed tokens are scored at once."""


@dataclass(slots=True)
class TreeQuery:
    """A row to score: its unread tokens, and the tree of its possible answers."""

    unread: list[int]
    tree: Tree


def find_tree(allowed: Any, prefix: Sequence[int]) -> Tree | None:
    """Return the tree of the answers that may follow, or None if they cannot be read at once."""
    if not isinstance(allowed, Trie):
        return None
    tree = allowed.tree(prefix)
    # Largest number of nodes that are read at once; longer lists of answers are decoded token by token.
    return tree if tree.choices and len(tree.tokens) <= 1024 else None


def can_read_trees(model: Any) -> bool:
    """Return whether the model takes a mask of our own, and its logits come straight from its head."""
    causal = unwrap_causal(model)
    config = causal.config
    plain = all(getattr(config, name, None) in (None, 1, 1.0) for name in SCALED)
    return plain and getattr(config, "_attn_implementation", "") == "sdpa" and type(_head(causal)) is nn.Linear


def read_trees(model: Any, questions: Sequence[TreeQuery], cache: BatchCache) -> list[dict[int, Tensor]]:
    """Read the rows and return the log-probabilities of the tokens that may follow, by row and node.

    The cache then has keys and values of all nodes; say with `cache.take` which ones stay.
    """
    device = next(model.parameters()).device
    lengths = [len(row.unread) + len(row.tree.tokens) for row in questions]
    longest = max(lengths)
    ids = [[*row.unread, *row.tree.tokens, *[0] * (longest - n)] for row, n in zip(questions, lengths, strict=True)]
    causal = unwrap_causal(model)
    output = causal.base_model(
        input_ids=torch.tensor(ids, device=device),
        attention_mask=_mask(questions, cache.slots, longest).to(device),
        position_ids=_positions(questions, cache.slots, longest).to(device),
        **cache.arguments,
    )
    return _score(_head(causal), output.last_hidden_state, questions)


def _head(causal: Any) -> Any:
    return causal.get_output_embeddings()


def _mask(questions: Sequence[TreeQuery], slots: Tensor, longest: int) -> Tensor:
    """Return which slots each new token sees, (rows, 1, new, slots before and new)."""
    before = slots[:, None, :].expand(-1, longest, -1)
    new = torch.zeros((len(questions), longest, longest), dtype=torch.bool)
    for block, row in zip(new, questions, strict=True):
        read = len(row.unread)
        block[:read, :read] = torch.ones((read, read), dtype=torch.bool).tril()
        for number, parent in enumerate(row.tree.parents, read):
            block[number] = block[read + parent]  # the parent -1 is the last token of the prompt
            block[number, number] = True
        # padding sees itself: a row of a softmax without any entry would be nan
        block.fill_diagonal_(True)
    return torch.cat([before, new], dim=2)[:, None]


def count_tokens(row: TreeQuery) -> int:
    """Return the number of tokens of a row, its tree included."""
    return len(row.unread) + len(row.tree.tokens)


def _positions(questions: Sequence[TreeQuery], slots: Tensor, longest: int) -> Tensor:
    """Return the position of each new token in its row: nodes of equal depth have equal positions."""
    positions = torch.zeros((len(questions), longest), dtype=torch.long)
    for line, row, begun in zip(positions, questions, slots.sum(1).tolist(), strict=True):
        read = len(row.unread)
        depths = [read - 1 + len(prefix) for prefix in row.tree.prefixes]
        line[: count_tokens(row)] = torch.tensor([*range(read), *depths]) + begun
    return positions


def _score(head: nn.Linear, hidden: Tensor, questions: Sequence[TreeQuery]) -> list[dict[int, Tensor]]:
    """Apply the head where a choice follows, and only for the tokens that may follow."""
    places = [(at, node) for at, row in enumerate(questions) for node, _ in row.tree.choices]
    allowed = [following for row in questions for _, following in row.tree.choices]
    scored: list[dict[int, Tensor]] = [{} for _ in questions]
    for start in range(0, len(places), AT_ONCE):
        part, sets = places[start : start + AT_ONCE], allowed[start : start + AT_ONCE]
        rows = torch.tensor([at for at, _ in part])
        columns = torch.tensor([len(questions[at].unread) + node for at, node in part])
        most = max(map(len, sets))
        index = torch.tensor([[*ids, *[ids[0]] * (most - len(ids))] for ids in sets]).to(hidden.device)
        states = hidden[rows.to(hidden.device), columns.to(hidden.device)]
        logits = torch.einsum("nkh,nh->nk", functional.embedding(index, head.weight).to(states.dtype), states).float()
        if head.bias is not None:
            logits = logits + head.bias[index]
        for line, (at, node), ids in zip(logits.cpu(), part, sets, strict=True):
            scored[at][node] = torch.log_softmax(line[: len(ids)], dim=-1)
    return scored


def number_nodes(tree: Tree) -> dict[Ids, int]:
    """Return the node of each sequence of tokens after the root; the root itself is -1."""
    return {(): -1, **{prefix: number for number, prefix in enumerate(tree.prefixes)}}


def find_best(answers: Sequence[Ids], tree: Tree, scored: dict[int, Tensor]) -> Ids:
    """Return the answer with the highest sum of log-probabilities; the first one if several have it."""
    nodes = number_nodes(tree)
    values = {node: dict(zip(following, scored[node].tolist(), strict=True)) for node, following in tree.choices}

    def total(answer: Ids) -> float:
        # a token without an alternative has probability 1
        reached = ((nodes.get(answer[:n]), token) for n, token in enumerate(answer))
        return float(sum(values[node][token] for node, token in reached if node is not None and node in values))

    return max(answers, key=total)
