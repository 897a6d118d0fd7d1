"""Numbers of descriptions of situations and actions that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SituationsTuning:
    """Numbers that no setting changes."""

    # actions
    max_depth: int = 3  # maximum nesting of objects in an argument that are split into arguments of their own
    max_arguments: int = 12  # Most arguments of a call. Further ones are dropped.

    # commands
    max_parts: int = 6  # Most commands of a pipeline. Further ones are dropped.
    max_operands: int = 3  # Most operands of one command. If there are more, they are joined into one.

    # keys
    context_words: int = 4  # words on either side of an argument that belong to its context
    max_hidden_elements: int = 12  # most elements of a list that the text does not show
    max_refined: int = 16  # most words of a task or text that keys contain as a whole

    # refinements
    max_slots: int = 6  # most slots of a text that are keys; if there are more, none of them is
    max_slot_words: int = 3  # words of a slot; more are free text

    # lookahead_keys
    max_note_words: int = 4  # keys with one word of the notes

    # phrases
    max_label_words: int = 4  # Most words of an argument that is a label. A longer one is free text.
    max_choice_digits: int = 3  # Most digits of a number that is a choice. A longer one is an id or an amount.


TUNING = SituationsTuning()
