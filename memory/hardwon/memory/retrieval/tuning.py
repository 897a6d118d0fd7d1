"""Numbers of retrieval that somebody chose."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RetrievalTuning:
    """Numbers that no setting changes."""

    # candidates
    rank_constant: float = 60.0  # rank constant of the fusion; a larger value gives more weight to lower ranks
    meaning_weight: float = 0.5
    """Weight of the cosine relative to the normalized score of the words when matches are ordered."""
    depth: int = 24  # matches taken from each index before they are merged
    deeper: int = 8  # factor on the depth of a search if its results are from other worlds
    min_cosine: float = 0.2
    """Least similarity of a result that matches by words and meaning alone; an empty result is valid."""
    min_same_situation: float = 0.8
    """Least similarity of an item that is filed under the current situation. Its words decide the rest: a signature
    hides names, and one situation serves many tasks."""
    min_same_place: float = 0.5  # least similarity of an item that is filed under the current place
    min_next_place: float = 0.3  # least similarity of an item that is filed under a place reached from the current one
    min_tags: int = 2  # an item's tags that a state must contain for a match regardless of other words
    subject_words: int = 128
    """Numbers of words of a state that may name the subject of an item: those that no episode showed, and the
    rarest."""
    rare_words: int = 16
    """Words of a state that are looked up as tags and subjects of items, those of the fewest episodes."""
    bound_items: int = 64  # most items bound to a cluster

    # clusters
    summaries: int = 8  # recalled summaries of a cluster, the most tried ones
    more_kinds: int = 4  # factor on the number of kinds of action that are read if steps of other worlds do not count
    place_states: int = 64  # states of a place, the newest ones, whose steps show which places can be reached

    # ranking
    voting_states: int = 48  # states that vote, all that search by words and by meaning returns
    bandwidth: float = 0.1
    """Bandwidth of the kernel exp(cosine / `bandwidth`): a cosine larger by this much weighs e times as much."""
    same_before: float = 5.0
    """Factor on the weight of a state that was reached by the same kind of action as the current one."""
    fruitless_weight: float = 0.25
    """Factor on the weight of a state whose best step earned no return; it shows common actions, not good ones."""
    many_kinds: int = 12  # kinds of action up to which a situation is taken to tell the next action
    min_relative_return: float = 0.1  # lower bound on a step's return relative to the best step of the same situation
    min_support: float = 0.3  # kinds of action with less than this share of the best kind's support are left out

    # similar_tasks
    task_candidates: int = 64  # most tasks matched by words; their meaning is then compared
    compared_tasks: int = 1024
    """Tasks up to which the meaning of all tasks is compared, not only of those matched by words."""
    max_task_words: int = 1000
    """Most words of a task that are looked up. Tasks have fewer; FTS5 takes seconds for 100,000."""

    # task_recall
    task_episodes: int = 5  # episodes that recall by task reads

    # text_index
    query_terms: int = 4  # words of a text that are looked up regardless of their rows, the rarest ones
    more_terms: int = 24  # most words of a question, if all of them together have few rows
    counted_words: int = 64  # words of a text whose rows are counted, those of the fewest episodes first
    ranked_per_word: int = 500  # rows with the rarest word that are ranked, the newest ones
    ranked_rows: int = 2000  # approximate rows ranked in total
    few_rows: int = 600
    """Approximate rows up to which their lengths count, because reading these takes longer than ranking."""
    length_weight: float = 0.375
    """How much less a row counts because of its length, relative to the mean length. BM25 with k1 = 1.2 and b = 0.5
    does so if every word occurs once."""
    max_query_words: int = 64  # words of a query that are looked up
    max_word_length: int = 200
    """Characters of the longest word that is looked up. FTS5 compares the parts of `a-a-a-a` one by one."""

    # vector_index
    min_agreement: float = 0.99  # least share of the five nearest neighbors that the chosen probe must find
    spare_of_probes: int = 24  # extra candidates per search, because 8-bit codes distort a cosine by some thousandths
    scanned_vectors: int = 1024  # vectors up to which the full vectors are scanned
    spare_of_halves: int = 8
    """Extra candidates per search, because 16-bit numbers distort a cosine by some hundred-thousandths."""
    max_k_of_codes: int = 8
    """Largest k for 8-bit integers; for a larger k, the last neighbors are rarely distinct from the rest."""
    spare_of_codes: int = 12  # extra candidates of a search among 8-bit integers, in addition to 4 k
    code_error: float = 1.2
    """Four standard deviations of a cosine's rounding error, relative to the norm of the two quantization steps."""
    vectors_per_list: int = 64  # training vectors per list
    probing_queries: int = 128  # queries that choose the probe
    mixed_vectors: int = 4  # sample vectors whose mean is one query
    kmeans_rounds: int = 8  # iterations of k-means
    cosine_tolerance: float = 1e-5  # tolerance when two cosines are compared


TUNING = RetrievalTuning()
