"""Which pool a client belongs to, as a spec says."""

import pytest

from fedfa.errors import InvalidSpec
from fedfa.pools import assign
from fedfa.spec import parse

CLIENTS = ["north-1", "north-2", "south-1", "lone"]


def test_patterns_put_clients_into_pools_and_the_rest_stays_in_the_default() -> None:
    pools = {"north": ("north-*",), "south": ("south-[0-9]",)}
    assert assign(pools, CLIENTS) == {
        "north-1": "north",
        "north-2": "north",
        "south-1": "south",
        "lone": "default",
    }


def test_without_pools_everybody_is_in_the_default_one() -> None:
    assert set(assign({}, CLIENTS).values()) == {"default"}


@pytest.mark.parametrize(
    ("pools", "complaint"),
    [
        ({"north": ["north-*"], "south": ["*-1"]}, "north-1 fits north and south"),
        ({"north": ["nroth-*"]}, "pools.north: 'nroth-\\*' fits none of the 4 clients"),
    ],
)
def test_a_client_of_two_pools_and_a_pattern_for_nobody_are_refused(
    pools: dict[str, list[str]], complaint: str
) -> None:
    with pytest.raises(InvalidSpec, match=complaint):
        assign(pools, CLIENTS)


@pytest.mark.parametrize("pools", [{"North": ["x"]}, {"north": []}, {"north": [""]}])
def test_a_pool_has_a_name_for_its_queue_and_some_pattern(pools: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidSpec, match="pools"):
        parse({"clients": 4, "pools": pools})
