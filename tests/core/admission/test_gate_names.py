"""The names of gates that clients bring with them."""

from __future__ import annotations

from gateway.core.limits.idle_gates import GateNames

SALT = b"0123456789abcdef"


def callers(*credentials: bytes, bases: tuple[str, ...] = ("p0/m",)) -> tuple[GateNames, list[str]]:
    names = GateNames(SALT)
    made = [names.of_caller(base, credential) for credential in credentials for base in bases]
    for name in made:
        names.add_caller(name, name.partition("@")[0], "p0/m", 0.0)
    return names, made


def test_a_name_tells_no_credential() -> None:
    """Nor is it the same under another salt."""
    name = GateNames(SALT).of_caller("p0/m", b"sk-secret")

    assert "secret" not in name
    assert name != GateNames(SALT[::-1]).of_caller("p0/m", b"sk-secret")


def test_a_payer_is_known_at_all_of_its_gates_and_a_stranger_at_none() -> None:
    """What one account is out of, it is out of everywhere; what another's is, says nothing."""
    names, (first, second, other, _) = callers(b"one", b"two", bases=("p0/m", "p1/m"))

    assert [*names.of_same_payer(first)] == [first, second]
    assert other not in names.of_same_payer(first)
    assert [*names.of_same_payer("p0/m")] == []


def test_nothing_is_left_of_a_name_that_is_dropped() -> None:
    """Not of its caller, nor of the gate that it shared its health with."""
    names, made = callers(b"one", b"two")
    for name in made:
        names.drop(name)

    assert (len(names), names.callers, [*names.of_same_payer(made[0])]) == (0, {}, [])


def test_a_name_that_the_config_has_by_now_is_its_own_label() -> None:
    """For those of its callers, too: their gates were labelled with the wildcard."""
    names = GateNames(SALT)
    names.add_model("p0/a", "p0/*", 0.0)
    caller = names.of_caller("p0/a", b"one")
    names.add_caller(caller, "p0/a", "p0/*", 0.0)

    names.configure({"p0/a"})

    assert (names.is_named("p0/a"), names.label("p0/a"), names.label(caller)) == (False, "p0/a", "p0/a")
