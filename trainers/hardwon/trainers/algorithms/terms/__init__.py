"""Terms of the policy's loss beside the surrogate; importing this package registers all of them."""

from . import entropies as entropies, hindsight as hindsight, tempered as tempered, unlikely as unlikely
from .base import (
    TERMS as TERMS,
    FrozenPolicy as FrozenPolicy,
    Term as Term,
    Terms as Terms,
    TokenFacts as TokenFacts,
    add_horizon as add_horizon,
)
