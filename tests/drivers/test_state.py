"""`state` and `fail_closed`: what they compile to, what is shown of them, and every mistake in them."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import unquote

import pytest

from gateway.admin.describe import describe
from gateway.core.limits.limit_table import Limits
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import SharedState
from gateway.drivers.config import SCHEMES, parse_redis_url
from tests.rows import rows
from tests.support.configs import ENVIRON, GOOD, load_text, problems_of, with_policies

NEEDS = ", ".join(SCHEMES)
FORM = (
    "must be memory, sqlite:///FILE (an absolute path has four slashes: sqlite:////var/lib/gateway.db), "
    f"or begin with {NEEDS}"
)
ODD_HOST = "has a host that is not HOST or HOST:PORT; an IPv6 address goes in brackets"
ODD_LOGIN = "has a user or password with such as / ? # @ in it: write %2F %3F %23 %40, or use `password`"
ODD_PATH = "must end after the host, or in the number of a database such as /0"


def load_state(folder: Path, state: str, **environ: str) -> PolicySnapshot:
    """The snapshot of a config with this state."""
    return load_text(folder, f"state: {state}\n{GOOD}", {**ENVIRON, **environ})


def shared_of(folder: Path, state: str, **environ: str) -> SharedState:
    """The Redis that this state compiles to."""
    snapshot = load_state(folder, state, **environ)
    assert snapshot.state == "redis"
    assert snapshot.shared is not None
    return snapshot.shared


def state_problems(folder: Path, state: str, **environ: str) -> list[str]:
    """What is wrong with this state, without file and line."""
    found = problems_of(folder, f"state: {state}\n{GOOD}", {**ENVIRON, **environ})
    return [line.removeprefix("config.yaml:1: ") for line in found]


# --- memory and a file ---


@pytest.mark.parametrize("state", ["memory", "${NONE:-}", "${NONE:-memory}", ""])
def test_state_is_memory_where_nothing_else_is_said(tmp_path: Path, state: str) -> None:
    """Nothing is shared then."""
    snapshot = load_state(tmp_path, state)

    assert (snapshot.state, snapshot.shared) == ("memory", None)


def test_state_in_a_file_is_found_beside_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes and a relative path, four and an absolute one; what is compiled is absolute."""
    (tmp_path / "data").mkdir()
    text = with_policies(tmp_path)
    expected = f"sqlite:///{tmp_path}/data/x.db"
    monkeypatch.chdir("/")

    assert load_text(tmp_path, f"state: sqlite:///data/x.db\n{text}").state == expected
    assert load_text(tmp_path, f"state: sqlite:///{tmp_path}/data/x.db\n{text}").state == expected
    assert load_text(tmp_path, f"state: 'sqlite:///${{OPENAI_API_KEY}}.db'\n{text}").state == (
        f"sqlite:///{tmp_path}/sk-test.db"
    )
    assert load_text(tmp_path, f"state: sqlite:///data/x.db\n{text}").shared is None


@rows(
    ("state", "problem"),
    [
        ("memmory", FORM),
        ("sqlite://x.db", FORM),
        ("sqlite:///", FORM),
        ("'sqlite:////'", FORM),
        ("x.db", FORM),
        ("valkey://h", FORM),
        ("redis:h", FORM),
        ("REDIS://h", FORM),
        ('"sqlite:///x\\0.db"', "holds characters that the name of a file should not have"),
        ("sqlite:///data/x.db", 'there is no folder "data": make it first'),
        ("sqlite:////nowhere/at/all.db", 'there is no folder "/nowhere/at": make it first'),
        ("'sqlite:///${FOLDER}/x.db'", "there is no folder the value of ${FOLDER}: make it first"),
        ("sqlite:///rules", '"rules" is a folder: name a file in it'),
        ("5", "expected text or a mapping, not a number"),
        ("[memory]", "expected text or a mapping, not a list"),
    ],
)
def test_mistake_in_state_is_said_once(tmp_path: Path, state: str, problem: str) -> None:
    """At start, not when the first answer is to be kept."""
    text = f"{with_policies(tmp_path)}state: {state}\n"

    problems = problems_of(tmp_path, text, {"OPENAI_API_KEY": "", "FOLDER": "nowhere"})

    assert problems == [f"config.yaml:6: state: {problem}"]


# --- redis ---


@rows(
    "url",
    [
        "redis://cache",
        "redis://127.0.0.1:6379/3",
        "redis://[::1]:6379",
        "rediss://user:p%40ss@cache.example:6380/0",
        "redis+sentinel://one:26379,two:26379,[::1]/main",
        "rediss+sentinel://:pw@one/main-1.x/15",
        "redis+cluster://one:7000,two:7000,three",
        "rediss+cluster://one",
    ],
)
def test_url_alone_is_a_redis_with_the_defaults(tmp_path: Path, url: str) -> None:
    """The same as a section that says nothing but its URL."""
    shared = shared_of(tmp_path, f"'{url}'")

    assert shared == SharedState(url)
    assert shared_of(tmp_path, f"{{redis: '{url}'}}") == shared
    assert shared_of(tmp_path, "'${URL}'", URL=url) == shared


def test_slash_at_the_end_of_a_url_says_nothing(tmp_path: Path) -> None:
    """For one server, for a cluster, behind the name of a service."""
    for url in ("redis://h", "redis+cluster://h", "redis+sentinel://h/main"):
        assert shared_of(tmp_path, f"{url}/").url == url


def test_section_says_how_the_redis_is_used(tmp_path: Path) -> None:
    """In units; the file with the certificates lies beside the config."""
    (tmp_path / "ca.pem").write_text("")

    shared = shared_of(
        tmp_path,
        "{redis: 'rediss://cache/1', namespace: team-a.1, timeout: 20ms, connections: 8, replicas: 3, ca_file: ca.pem}",
    )

    assert shared == SharedState("rediss://cache/1", "team-a.1", 0.02, 8, 3, f"{tmp_path}/ca.pem")


def test_variables_work_in_every_field(tmp_path: Path) -> None:
    """Numbers and durations, too."""
    shared = shared_of(
        tmp_path,
        "{redis: 'redis://${HOST}', namespace: '${NAME}', timeout: env.TIME, connections: '${N}', replicas: '${N}'}",
        HOST="cache",
        NAME="a",
        TIME="1s",
        N="2",
    )

    assert shared == SharedState("redis://cache", "a", 1.0, 2, 2)


def test_password_of_its_own_may_have_any_characters(tmp_path: Path) -> None:
    """Whoever gets it from a secret need not know how URLs are written."""
    password = "a/b?c#d@e[f]%:g h=é"

    shared = shared_of(tmp_path, "{redis: 'rediss://cache/1', username: me, password: '${PW}'}", PW=password)

    url = parse_redis_url(shared.url)
    assert url.hosts == "cache"
    assert url.path == "/1"
    assert url.login is not None
    assert unquote(url.login) == f"me:{password}"
    assert parse_redis_url(shared_of(tmp_path, "{redis: 'rediss://c', password: x}").url).login == ":x"


@rows(
    ("url", "problem"),
    [
        ("redis://", "has no host"),
        ("redis:///0", "has no host"),
        ("redis://:pw@", "has no host"),
        ("redis://:6379", "has no host"),
        ("redis+cluster://a,:6379", "has no host"),
        ("redis+cluster://a,", "has a comma too many between its hosts"),
        ("redis://h:port", ODD_HOST),
        ("redis://h:0", ODD_HOST),
        ("redis://h:65536", ODD_HOST),
        ("redis://h o", ODD_HOST),
        ("redis://[::1", ODD_HOST),
        ("redis://[:::]", ODD_HOST),
        ("redis://h\\b", ODD_HOST),
        ("redis://é", "holds characters that a URL cannot have"),
        ("redis://h?db=1", "must not have a query or fragment"),
        ("redis://h/0#x", "must not have a query or fragment"),
        ("redis://:a/b@h", ODD_LOGIN),
        ("redis://:a?b@h", ODD_LOGIN),
        ("redis://:a@b@h", ODD_LOGIN),
        ("redis://:a[b@h", ODD_LOGIN),
        ("redis://:a%b@h", ODD_LOGIN),
        ("redis://h/main", ODD_PATH),
        ("redis://h/0/1", ODD_PATH),
        (
            "redis://a,b",
            "has several hosts: that is redis+sentinel://HOST,HOST/SERVICE or redis+cluster://HOST,HOST",
        ),
        ("redis+sentinel://h", "names no service: end it in /SERVICE, the name by which the sentinels know it"),
        ("redis+sentinel://h/0", "names no service: end it in /SERVICE, the name by which the sentinels know it"),
        (
            "rediss+sentinel://h/main/x",
            "must end in /SERVICE or /SERVICE/NUMBER: the service's name, the number of a database",
        ),
        ("redis+cluster://h/0", "has a path, but a cluster has no databases by number: end it after the hosts"),
    ],
)
def test_mistake_in_a_url_is_said_without_the_url(tmp_path: Path, url: str, problem: str) -> None:
    """Alone or in a section."""
    assert state_problems(tmp_path, f"'{url}'") == [f"state: {problem}"]
    assert state_problems(tmp_path, f"{{redis: '{url}'}}") == [f"state.redis: {problem}"]
    assert state_problems(tmp_path, "{redis: '${URL}'}", URL=url) == [f"state.redis: {problem}"]


@rows(
    ("state", "problem"),
    [
        ("{}", "state.redis: is missing"),
        ("{namespace: a}", "state.redis: is missing"),
        ("{redis: memory}", f"state.redis: must begin with {NEEDS}"),
        ("{redis: 'redis://h', namspace: a}", 'state.namspace: unknown field; did you mean "namespace"?'),
        (
            "{redis: 'redis://h', namespace: 'a:b'}",
            "state.namespace: must be made of letters, digits, dots, - and _, 64 of them at most",
        ),
        (
            f"{{redis: 'redis://h', namespace: {'n' * 65}}}",
            "state.namespace: must be made of letters, digits, dots, - and _, 64 of them at most",
        ),
        ("{redis: 'redis://h', timeout: 4ms}", "state.timeout: must be between 5ms and 1s"),
        ("{redis: 'redis://h', timeout: 1001ms}", "state.timeout: must be between 5ms and 1s"),
        (
            "{redis: 'redis://h', timeout: 50}",
            "state.timeout: 50 has no unit: write for example 300ms, 30s, 5m, 6h or 1d",
        ),
        ("{redis: 'redis://h', connections: 0}", "state.connections: must be at least 1"),
        ("{redis: 'redis://h', connections: 65}", "state.connections: must be at most 64"),
        ("{redis: 'redis://h', replicas: 0}", "state.replicas: must be at least 1"),
        ("{redis: 'redis://h', replicas: 1001}", "state.replicas: must be at most 1000"),
        ("{redis: 'redis://h', ca_file: c}", "state.ca_file: needs an encrypted connection: rediss instead of redis"),
        ("{redis: 'rediss://h', ca_file: c}", 'state.ca_file: there is no file "c"'),
        ("{redis: 'rediss://h', username: me}", "state.username: needs a `password`"),
        ("{redis: 'rediss://u@h', password: x}", "state.password: and one in the URL exclude each other"),
        (
            '{redis: "rediss://h", password: "x\\n"}',
            "state.password: must be printable; is there a line break at its end?",
        ),
        (
            "{redis: 'rediss://h', password: '${NOT_SET}'}",
            "state.password: the environment variable NOT_SET is not set",
        ),
    ],
)
def test_mistake_in_the_section_is_said_with_its_field(tmp_path: Path, state: str, problem: str) -> None:
    """Each alone, on its line."""
    assert state_problems(tmp_path, state) == [problem]


def test_mistakes_in_the_section_are_all_said_at_once(tmp_path: Path) -> None:
    """A bad URL does not hide a bad timeout, nor the other way round."""
    state = "\n  redis: 'redis://'\n  timeout: 1h\n  replicas: 0"

    assert problems_of(tmp_path, f"state: {state}\n{GOOD}") == [
        "config.yaml:2: state.redis: has no host",
        "config.yaml:3: state.timeout: must be between 5ms and 1s",
        "config.yaml:4: state.replicas: must be at least 1",
    ]


def test_config_is_sound_whether_or_not_its_redis_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is connected or looked up while a config is read."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a config was read, and somebody wanted to connect")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)

    assert shared_of(tmp_path, "redis://nobody.invalid:1").url == "redis://nobody.invalid:1"


def test_any_change_of_the_redis_can_be_told(tmp_path: Path) -> None:
    """A reload compares what was compiled: all of it counts, the password too, and only what it says."""
    section = "{redis: 'rediss://h/1', username: me, password: one, timeout: 20ms, replicas: 2}"
    other = [
        ("h/1", "h/2"),
        ("one", "two"),
        ("username: me", "username: you"),
        ("20ms", "21ms"),
        ("replicas: 2", "namespace: x"),
    ]

    shared = shared_of(tmp_path, section)

    assert shared == shared_of(tmp_path, section.replace("20ms", "0.02s"))
    assert shared == shared_of(tmp_path, "{redis: 'rediss://me:one@h/1', timeout: 20ms, replicas: 2}")
    assert [old for old, new in other if shared_of(tmp_path, section.replace(old, new)) == shared] == []


# --- what is shown ---


def test_description_shows_the_redis_without_its_password(tmp_path: Path) -> None:
    """Hosts stay: they are what one looks for when it does not answer."""
    snapshot = load_state(
        tmp_path, "{redis: 'rediss+sentinel://me:canary@one:26379,two/main/2', timeout: 20ms, replicas: 4}"
    )

    shown = describe(snapshot)

    assert shown["state"] == "redis"
    assert shown["shared"] == {
        "url": "rediss+sentinel://***@one:26379,two/main/2",
        "namespace": "gateway",
        "timeout_s": 0.02,
        "connections": 4,
        "replicas": 4,
        "ca_file": None,
    }
    assert "canary" not in json.dumps(shown) + repr(snapshot)
    assert describe(load_state(tmp_path, "memory"))["shared"] is None


@pytest.mark.parametrize("scheme", ["redis", "redis+sentinel", "redis+cluster"])
def test_description_shows_any_sound_url(tmp_path: Path, scheme: str) -> None:
    """Also with addresses in brackets, and several of them where there may be."""
    hosts = "[::1]:1" if scheme == "redis" else "[::1]:1,h,[::2]"
    path = "/main" if scheme == "redis+sentinel" else ""

    snapshot = load_state(tmp_path, f"'{scheme}://:p@{hosts}{path}'")

    assert describe(snapshot)["shared"]["url"] == f"{scheme}://***@{hosts}{path}"


@rows(
    ("state", "notices"),
    [
        ("redis://:pw@cache", ("state: its password travels unencrypted to cache: use rediss",)),
        ("redis+cluster://:pw@127.0.0.1:1,a:2,b", ("state: its password travels unencrypted to a, b: use rediss",)),
        ("{redis: 'redis://cache', password: x}", ("state: its password travels unencrypted to cache: use rediss",)),
        ("rediss://:pw@cache", ()),
        ("redis://:pw@localhost", ()),
        ("'redis://:pw@[::1]:6379'", ()),
        (
            "redis://cache",
            (
                "state: cache is used without a password and unencrypted: "
                "whoever can reach it reads and changes what is kept there",
            ),
        ),
        (
            "rediss://cache",
            ("state: cache is used without a password: whoever can reach it reads and changes what is kept there",),
        ),
        ("redis://localhost", ()),
        ("'redis+sentinel://127.0.0.1:1,[::1]:2/main'", ()),
    ],
)
def test_a_redis_elsewhere_that_others_can_listen_to_or_use_is_announced(
    tmp_path: Path, state: str, notices: tuple[str, ...]
) -> None:
    """Unless it does not leave the machine."""
    (tmp_path / "config.yaml").touch(0o600)

    assert load_state(tmp_path, f"{state}\njobs: off").notices == notices


@rows(
    ("state", "named"),
    [
        ("rediss://:canary@h", "state"),
        ("{redis: 'rediss://:canary@h'}", "state.redis"),
        ("{redis: 'rediss://h', password: canary}", "state.password"),
        ("rediss://h", None),
        ("rediss://:${PW}@h", None),
        ("{redis: 'rediss://h', password: '${PW}'}", None),
    ],
)
def test_password_in_a_file_that_others_can_read_is_announced(tmp_path: Path, state: str, named: str | None) -> None:
    """As other secrets are, and without it."""
    tmp_path.chmod(0o755)
    notices = load_state(tmp_path, state, PW="x").notices

    assert (f"holds a secret ({named}): make it private" in "".join(notices)) == (named is not None)
    assert "canary" not in "".join(notices)


# --- fail_closed ---

KEY = "of-sixteen-characters"


def limits_of(folder: Path, target: str, key: str = "rpm: 1") -> tuple[Limits, Limits]:
    """Those of a target and a key that say this, with a Redis."""
    snapshot = load_text(folder, closing(target, key))
    return snapshot.models["m"].targets[0].limits, next(iter(snapshot.keys.values())).limits


def closing(target: str, key: str = "rpm: 1", state: str = "redis://h") -> str:
    """A config with this target and this key."""
    return f"""\
state: {state}
providers: {{openai: {{dialect: openai, base_url: "https://x"}}}}
models:
  m: {{targets: [{{provider: openai, {target}}}]}}
keys:
  - {{name: web, key: {KEY}, {key}}}
"""


def test_limits_fail_open_unless_told_otherwise(tmp_path: Path) -> None:
    """Calls are served while replicas cannot share."""
    assert [limits.fail_closed for limits in limits_of(tmp_path, "rpm: 1")] == [frozenset(), frozenset()]
    assert [limits.fail_closed for limits in limits_of(tmp_path, "fail_closed: false", "fail_closed: []")] == [
        frozenset(),
        frozenset(),
    ]


def test_true_is_all_limits_that_there_can_be(tmp_path: Path) -> None:
    """Of a target also those that are learned."""
    target, key = limits_of(tmp_path, "fail_closed: true", "tpm: 1, fail_closed: true")

    of_a_key = {"requests_per_min", "tokens_per_min", "requests_per_day", "concurrency"}
    assert target.fail_closed == of_a_key | {"input_tokens_per_min", "output_tokens_per_min"}
    assert key.fail_closed == of_a_key


def test_list_names_limits_in_the_words_of_the_config(tmp_path: Path) -> None:
    """And becomes the names that they have at run time."""
    target, key = limits_of(
        tmp_path,
        "rpm: 1, input_tpm: 1, output_tpm: 1, max_concurrency: 1, fail_closed: [input_tpm, output_tpm, max_concurrency]",
        "rpm: 1, tpm: 2, rpd: 3, fail_closed: [rpm, tpm, rpd]",
    )

    assert target.fail_closed == {"input_tokens_per_min", "output_tokens_per_min", "concurrency"}
    assert key.fail_closed == {"requests_per_min", "tokens_per_min", "requests_per_day"}


@rows(
    ("target", "key", "problem"),
    [
        ("rpm: 1, fail_closed: [tpm]", "rpm: 1", '4: models.m.targets[0].fail_closed[0]: "tpm" is not set here'),
        (
            "rpm: 1, fail_closed: [rpm, tmp]",
            "rpm: 1",
            '4: models.m.targets[0].fail_closed[1]: no limit "tmp"; did you mean "tpm"?',
        ),
        ("rpm: 1, fail_closed: [5]", "rpm: 1", "4: models.m.targets[0].fail_closed[0]: expected text, not a number"),
        (
            "rpm: 1, fail_closed: rpm",
            "rpm: 1",
            "4: models.m.targets[0].fail_closed: expected true, false or a list of limits, not text",
        ),
        (
            "rpm: 1",
            "tpm: 1, fail_closed: [input_tpm]",
            '6: keys[0].fail_closed[0]: no limit "input_tpm"; there are: rpm, tpm, rpd, max_concurrency',
        ),
        ("rpm: 1", "budget_usd_per_day: 1, fail_closed: [rpd]", '6: keys[0].fail_closed[0]: "rpd" is not set here'),
        (
            "rpm: 1",
            "budget_usd_per_day: 1, fail_closed: true",
            "6: keys[0].fail_closed: there is no limit here that it could be about",
        ),
    ],
)
def test_mistake_in_fail_closed_is_said_with_its_place(tmp_path: Path, target: str, key: str, problem: str) -> None:
    """A limit that is not there cannot be closed."""
    assert problems_of(tmp_path, closing(target, key)) == [f"config.yaml:{problem}"]


def test_fail_closed_without_a_redis_is_announced(tmp_path: Path) -> None:
    """It does nothing there; with one it is not worth a word."""
    (tmp_path / "config.yaml").touch(0o600)
    said = ("rpm: 1, fail_closed: [rpm]", "rpm: 1, fail_closed: true")

    assert load_text(tmp_path, closing(*said, state="memory")).notices == (
        "fail_closed does nothing without a redis state: target openai/m, key web",
    )
    assert not any("fail_closed" in notice for notice in load_text(tmp_path, closing(*said)).notices)


@pytest.mark.parametrize(("state", "says"), [("memory", True), ("sqlite:///state.db", True), (None, False)])
def test_budgets_that_a_start_forgets_are_announced(tmp_path: Path, state: str | None, says: bool) -> None:
    """Only a Redis keeps what was spent."""
    more = {} if state is None else {"state": state}
    notices = load_text(tmp_path, closing("rpm: 1", "budget_usd_per_day: 1", **more)).notices

    assert ("a start forgets what was spent of budgets without a redis state: key web" in notices) is says


def test_description_shows_what_fails_closed(tmp_path: Path) -> None:
    """With the limits, ready for JSON; nothing where nothing does."""
    shown = describe(load_text(tmp_path, closing("rpm: 1, tpm: 2, fail_closed: [tpm, rpm]")))

    limits = shown["models"]["m"]["targets"][0]["limits"]
    assert limits == {
        "requests_per_min": 1,
        "tokens_per_min": 2,
        "unstated_burst_s": 10,
        "fail_closed": ["requests_per_min", "tokens_per_min"],
    }
    assert shown["keys"][0]["limits"] == {"requests_per_min": 1}
    assert json.loads(json.dumps(shown)) == shown
