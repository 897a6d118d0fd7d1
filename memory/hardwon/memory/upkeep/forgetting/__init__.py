"""Forgetting: delete experience from the file, with everything derived from it.

It takes two phases. First, one transaction deletes the rows: episodes with their steps and states, usages, summaries,
words, keys, items without other evidence, and their history. It also writes a receipt without content. Then the bytes
are erased: cache files are deleted, the file is rewritten (VACUUM) and its log is truncated. If the process is killed
before the commit, nothing is deleted. If it is killed later, the receipt is not marked `erased`, and the next writer
that opens the library completes the second phase.

Other processes notice the receipt at their next call (`Store.generation`) and drop their caches.
"""

from .deletion import ForgetReceipt as ForgetReceipt
from .phases import delete as delete, erase as erase, finish as finish, forget as forget
from .selection import SelectorKind as SelectorKind, parse_selector as parse_selector
from .texts import build_text_matcher as build_text_matcher, walk_strings as walk_strings
