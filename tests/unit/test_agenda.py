"""What is looked at, and when."""

from fedfa_scheduler.agenda import Agenda


def test_what_is_touched_is_due_until_it_is_put_off() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.touch("b")
    agenda.touch("a")
    assert agenda.due(0.0) == agenda.due(0.0) == ["b", "a"]
    agenda.put_off("b", None)
    assert agenda.due(1e9) == ["a"]


def test_what_is_put_off_is_due_again_at_its_time() -> None:
    agenda: Agenda[str] = Agenda()
    agenda.touch("a")
    agenda.put_off("a", 5.0)
    assert agenda.due(4.9) == []
    assert agenda.due(5.0) == ["a"]


def test_the_earliest_of_several_times_counts_and_touching_needs_no_time() -> None:
    agenda: Agenda[str] = Agenda()
    for until in (9.0, 5.0, 7.0):
        agenda.put_off("a", until)
    assert agenda.due(5.0) == ["a"]
    agenda.put_off("a", None)
    assert agenda.due(100.0) == []
    agenda.touch("a")
    assert agenda.due(0.0) == ["a"]


def test_looking_often_does_not_make_it_grow() -> None:
    agenda: Agenda[str] = Agenda()
    for now in range(1000):
        agenda.touch("a")
        agenda.put_off("a", now + 1000.0)
    assert len(agenda._heap) == 1
