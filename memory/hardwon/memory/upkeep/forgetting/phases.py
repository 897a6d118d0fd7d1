"""The two phases of forgetting: delete the rows in one transaction, then erase their bytes."""

import logging
from dataclasses import replace
from pathlib import Path

from hardwon.memory.errors import LibraryUnwritable
from hardwon.memory.storage.checksums import mend_text, raw_text
from hardwon.memory.storage.database import Store

from .deletion import Deletion, ForgetReceipt
from .selection import SelectorKind

logger = logging.getLogger("hardwon.memory")
ANSWERS = "name BETWEEN 'answer ' AND 'answer!'"
"""Rows of `meta` with the answers to writes of clients, which may quote what is forgotten."""


def forget(store: Store, namespace: int, what: SelectorKind, value: str, *, dry_run: bool = False) -> ForgetReceipt:
    """Delete the selected experience and everything derived from it."""
    try:
        with store.transaction():
            receipt = delete(store, namespace, what, value, overwrite=not dry_run)
            if dry_run:  # an exception rolls the transaction back
                raise _DryRun(replace(receipt, dry_run=True))
    except _DryRun as dry:
        return dry.receipt
    return replace(receipt, erased=erase(store))


def delete(store: Store, namespace: int, what: SelectorKind, value: str, *, overwrite: bool = True) -> ForgetReceipt:
    """Run the first phase of `forget`: delete the rows and write the receipt. `finish` runs the second one later."""
    if overwrite:
        store.connection.execute("PRAGMA secure_delete = ON")
    with store.transaction() as connection, raw_text(connection, mend_text):  # damaged rows can be deleted, too
        connection.execute(f"DELETE FROM meta WHERE {ANSWERS}")
        return Deletion(store, connection, namespace).run(what, value)


class _DryRun(Exception):
    """Rolls back the transaction of a dry run and carries its receipt."""

    def __init__(self, receipt: ForgetReceipt) -> None:
        super().__init__()
        self.receipt = receipt


def finish(store: Store) -> None:
    """Erase the bytes of deletions that a killed process did not complete, if the file is writable."""
    if not store.read_only and store.rows("SELECT 1 FROM receipts WHERE NOT erased"):
        erase(store)


def erase(store: Store) -> bool:
    """Delete the cache files, rewrite the file without free space and truncate its log; return whether it succeeded."""
    try:
        if store.path != ":memory:":
            for path in Path(f"{store.path}.index").glob("*"):
                path.unlink(missing_ok=True)
        store.shrink()
        # Mark the receipts only after the rewrite, then truncate the log that the mark itself wrote.
        with store.transaction() as connection:
            connection.execute("UPDATE receipts SET erased = 1 WHERE NOT erased")
        store.shrink(rewrite=False)
    except (LibraryUnwritable, OSError) as error:
        logger.warning(
            "%s The rows are deleted, but their bytes are not erased yet. Reopen the library to erase them.", error
        )
        return False
    return True
