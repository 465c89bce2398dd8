"""Who asks: roles, and which queues the patterns allow."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hark.access.tokens import UNRESTRICTED, Identity
from hark.api.operations import Role
from hark.errors import Forbidden

PATTERNS = st.lists(st.text(alphabet="ab.*?[]!-", max_size=8), max_size=4)
NAMES = st.text(alphabet="ab.[]\n", max_size=8)


def identity(*queues: str) -> Identity:
    """Somebody who may use these queues."""
    return Identity("somebody", Role.READ_WRITE, queues)


@given(patterns=PATTERNS, name=NAMES)
def test_a_queue_may_be_used_when_a_pattern_matches_it_as_a_shell_would(patterns: list[str], name: str) -> None:
    who = identity(*patterns)
    assert who.may_use(name) == any(fnmatchcase(name, pattern) for pattern in patterns)


@pytest.mark.parametrize(
    ("pattern", "name", "allowed"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "Orders", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "my.orders.eu", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
    ],
    ids=str,
)
def test_patterns_match_whole_names(pattern: str, name: str, allowed: bool) -> None:
    assert identity(pattern).may_use(name) is allowed


@pytest.mark.parametrize(
    ("patterns", "restricted", "allowed"),
    [
        (["orders.*", "mail"], True, ["orders.eu", "mail"]),
        (["mail", "*"], False, ["", "orders.eu", "mail"]),
        ([], True, []),
    ],
    ids=["several", "star", "none"],
)
def test_one_of_several_patterns_is_enough(patterns: list[str], restricted: bool, allowed: list[str]) -> None:
    who = identity(*patterns)
    assert who.restricted is restricted
    assert [name for name in ("", "orders.eu", "mail") if who.may_use(name)] == allowed


def test_a_queue_that_is_not_allowed_is_refused_by_a_code_of_its_own() -> None:
    identity("mail").check_queue("mail")
    with pytest.raises(Forbidden) as refused:
        identity("mail").check_queue("orders")
    assert refused.value.code == "queue_not_allowed"
    assert "'orders'" in refused.value.text


def test_roles_are_ordered_and_have_names_and_anyone_is_an_administrator() -> None:
    assert Role.READ_ONLY < Role.READ_WRITE < Role.ADMIN
    assert [role.text for role in Role] == ["read-only", "read-write", "admin"]
    assert [Role.of(role.text) for role in Role] == list(Role)
    assert Role.of("ADMIN") is None
    assert (UNRESTRICTED.subject, UNRESTRICTED.role, UNRESTRICTED.restricted) == ("", Role.ADMIN, False)


@pytest.mark.parametrize(
    ("patterns", "namespace", "allowed"),
    [
        (["*"], "billing", True),
        (["billing.*"], "billing", True),
        (["billing.*"], "billing2", False),
        (["billing*"], "billing", True),
        (["b*"], "billing", True),
        (["bill?ng.*"], "billing", True),
        (["*ling.*"], "billing", True),
        (["billing"], "billing", False),
        (["billing.inbox.*"], "billing", False),
        (["*.eu"], "billing", False),
        (["mine", "billing.*"], "billing", True),
        (["billing.*"], "", False),
        ([], "billing", False),
    ],
)
def test_rule_27_a_namespace_is_covered_by_a_pattern_that_matches_all_that_it_can_have(
    patterns: list[str], namespace: str, allowed: bool
) -> None:
    assert identity(*patterns).may_label(namespace) is allowed
