"""The cycle logic as a pure function."""

from dataclasses import replace

from trainer_core.line.cycles import Delete, Download, LineFacts, Tokenize, Train, next_actions

NEW = LineFacts(
    current=0, target=None, end_tokens=None, tokens=0, published=frozenset(), downloaded=frozenset()
)


def test_a_new_line_prepares_its_first_cycle():
    assert next_actions(NEW) == [Download(0)]
    assert next_actions(replace(NEW, downloaded=frozenset({0}))) == [Tokenize(0)]


def test_the_next_cycle_is_prepared_beside_training():
    facts = replace(NEW, published=frozenset({0}), downloaded=frozenset({0}), ends={0: 100})
    assert next_actions(facts) == [Train(0), Download(1)]
    assert next_actions(replace(facts, published=frozenset({0, 1}))) == [Train(0)]


def test_a_trained_cycle_is_deleted_first():
    facts = replace(NEW, current=1, tokens=100, published=frozenset({0, 1}))
    assert next_actions(facts)[0] == Delete(0)
    assert Delete(0) not in next_actions(replace(facts, keep_cycles=1))


def test_a_target_ends_the_line():
    facts = replace(NEW, current=2, target=2, tokens=200, published=frozenset({1}))
    assert next_actions(facts) == [Delete(1)]
    assert next_actions(replace(facts, published=frozenset())) == []
    # A cycle that an earlier start prepared beyond the target is kept for the next start.
    assert next_actions(replace(facts, published=frozenset({2}))) == []


def test_nothing_beyond_the_schedules_end_is_prepared():
    facts = replace(NEW, end_tokens=150, published=frozenset({0}), ends={0: 100})
    assert next_actions(facts) == [Train(0), Download(1)]
    assert next_actions(replace(facts, ends={0: 150})) == [Train(0)]
    # Before cycle 0 is planned nobody knows where it ends.
    assert next_actions(replace(facts, ends={})) == [Train(0)]


def test_a_finished_line_leaves_no_shards():
    facts = replace(NEW, current=1, end_tokens=150, tokens=150, published=frozenset({1}))
    assert next_actions(facts) == [Delete(1)]
    assert next_actions(replace(facts, published=frozenset())) == []


def test_a_line_without_its_cycle_prepares_it_even_with_nothing_ahead():
    facts = replace(NEW, current=3, tokens=300, ahead=0, published=frozenset({3}))
    assert next_actions(facts) == [Train(3)]
    assert next_actions(replace(facts, published=frozenset())) == [Download(3)]


def test_an_interrupted_deletion_is_finished():
    facts = replace(NEW, current=1, target=1, tokens=100, half_deleted=frozenset({0}))
    assert next_actions(facts) == [Delete(0)]
