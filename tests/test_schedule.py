"""What is played next: families in turn, evaluations first, lost evaluation episodes again."""

from collections import Counter

from schedule import Schedule
from tasks import generate_tasks


def make(seed: int = 1) -> Schedule:
    return Schedule(generate_tasks("train", 360, seed=0), seed)


def test_nothing_to_play_before_training():
    assert make().next() is None


def test_every_family_is_drawn_as_often():
    schedule = make()
    schedule.training = True
    families = Counter(schedule.next().task.family for _ in range(180))
    assert set(families.values()) == {10}


def test_evaluations_go_first_and_in_order_greedy_and_sampled():
    schedule, tasks = make(), generate_tasks("test", 5, seed=0)
    schedule.training = True
    assert schedule.evaluate(tasks, "final", (True, False), seed=3) == 10
    episodes = [schedule.next() for _ in range(11)]
    assert [e.task for e in episodes[:5]] == tasks == [e.task for e in episodes[5:10]]
    assert [e.greedy for e in episodes[:10]] == [True] * 5 + [False] * 5
    assert {e.split for e in episodes[:10]} == {"final"} and episodes[10].split == "train"
    assert len({e.seed for e in episodes[:5]}) == 5


def test_a_mode_that_comes_again_has_the_same_tasks_and_other_seeds_whatever_is_trained():
    def episodes(schedule, seed: int) -> list:
        number = schedule.evaluate(tasks, "final", (True, False) * 3, seed)
        return [schedule.next() for _ in range(number)]

    tasks = generate_tasks("test", 5, seed=0)
    found = episodes(make(), 3)
    assert [e.task for e in found] == tasks * 6 and [e.number for e in found] == [0, 1, 2, 3, 4] * 6
    for greedy in (True, False):
        assert len({e.seed for e in found if e.greedy == greedy}) == 15
    assert [e.seed for e in found[:5]] == [e.seed for e in found[5:10]]  # greedy and sampled: the same phones
    assert episodes(make(seed=9), 3) == found and not {e.seed for e in episodes(make(), 4)} & {e.seed for e in found}


def test_a_lost_evaluation_episode_is_played_again_a_training_one_is_not():
    schedule = make()
    schedule.training = True
    schedule.lost(schedule.next())
    schedule.evaluate(generate_tasks("test", 2, seed=0), "final", (True,), seed=0)
    first = schedule.next()
    schedule.lost(first)
    assert schedule.next() == first
    assert schedule.next().number == 1 and schedule.next().split == "train"


def test_an_evaluation_episode_that_kills_three_workers_is_given_up():
    schedule = make()
    schedule.evaluate(generate_tasks("test", 2, seed=0), "final", (True,), seed=0)
    fatal = schedule.next()
    assert schedule.lost(fatal) and schedule.next() == fatal and schedule.lost(fatal) and schedule.next() == fatal
    assert not schedule.lost(fatal) and schedule.next() != fatal


def test_rest_drops_what_has_not_begun():
    schedule = make()
    schedule.training = True
    schedule.evaluate(generate_tasks("test", 2, seed=0), "after 5", (True,), seed=0)
    schedule.rest()
    assert schedule.next() is None


def test_resumes_where_it_stood():
    one, two = make(), make(seed=99)
    one.training = two.training = True
    for _ in range(7):
        one.next()
    two.load_state_dict(one.state_dict())
    assert [one.next() for _ in range(9)] == [two.next() for _ in range(9)]


def test_a_round_hands_out_so_many_and_ends_when_all_are_back_or_lost():
    schedule = make()
    schedule.training = True
    assert not schedule.in_round
    schedule.start_round(3)
    episodes = [schedule.next() for _ in range(5)]
    assert [e.number for e in episodes[:3]] == [1, 2, 3] and episodes[3:] == [None, None] and schedule.in_round
    schedule.evaluate(generate_tasks("test", 2, seed=0), "after 3", (True,), seed=0)  # belongs to no round
    schedule.lost(schedule.next())
    schedule.back()
    schedule.lost(episodes[1])
    assert schedule.in_round and schedule.next().split == schedule.next().split == "after 3"
    schedule.back()
    assert not schedule.in_round and schedule.next() is None
    schedule.start_round(1)
    assert schedule.next().number == 4 and schedule.in_round


def test_what_was_played_after_the_checkpoint_is_not_handed_out_again():
    one, two = make(), make()
    one.training = two.training = True
    for _ in range(7):
        one.next()
    two.skip(5), two.skip(7), two.skip(6)
    assert [one.next() for _ in range(9)] == [two.next() for _ in range(9)]


def test_a_round_of_none_hands_out_nothing_until_the_next():
    """As --sync begins: the collector asks at any moment."""
    schedule = make()
    schedule.start_round(0)
    schedule.training = True
    assert schedule.next() is None and not schedule.in_round
    schedule.start_round(2)
    assert [schedule.next() is None for _ in range(3)] == [False, False, True]
