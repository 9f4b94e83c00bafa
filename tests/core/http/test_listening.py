"""Who listens at an address that cannot be had: by the tables of Linux, of this machine and made up."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from gateway.core.http.server import listen_on, owner_of
from tests.rows import rows

HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTEN, ESTABLISHED = "0A", "01"


def line(local: str, inode: int, state: str = LISTEN) -> str:
    unread = "00000000:00000000 00:00000000 00000000  1000        0"
    return f"   0: {local} 00000000:0000 {state} {unread} {inode} 1 0 100 0 0 10 0\n"


def tables(folder: Path, tcp: str = "", tcp6: str = "") -> Path:
    """A `/proc` with these tables, and two processes: 7 holds the socket 100, 70 holds 200 and 300."""
    (folder / "net").mkdir(parents=True)
    (folder / "net/tcp").write_text(HEADING + tcp)
    (folder / "net/tcp6").write_text(HEADING + tcp6)
    for pid, program, sockets in ((7, "nginx", (100,)), (70, "gateway", (200, 300))):
        process = folder / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text(f"{program}\n")
        (process / "cwd").symlink_to(f"/srv/{program}")
        (process / "fd/0").symlink_to("/dev/null")
        for number, inode in enumerate(sockets, 3):
            (process / f"fd/{number}").symlink_to(f"socket:[{inode}]")
    return folder


NGINX, GATEWAY = "nginx (pid 7, in /srv/nginx)", "gateway (pid 70, in /srv/gateway)"
HERE, EVERYWHERE = "0100007F:1F90", "00000000:1F90"
HERE6, EVERYWHERE6 = "00000000000000000000000001000000:1F90", f"{'0' * 32}:1F90"


@rows(
    ("tcp", "tcp6", "host", "owner"),
    [
        (line(HERE, 100), "", "127.0.0.1", NGINX),
        (line(EVERYWHERE, 200), "", "127.0.0.1", GATEWAY),
        (line(HERE, 100), "", "0.0.0.0", NGINX),
        (line(HERE, 100), "", "localhost", NGINX),
        ("", line(EVERYWHERE6, 300), "127.0.0.1", GATEWAY),
        ("", line(HERE6, 300), "::1", GATEWAY),
        (line("0200007F:1F90", 100) + line(HERE, 200), "", "127.0.0.1", GATEWAY),
        (line("0100007F:1F91", 100), "", "127.0.0.1", ""),
        (line(HERE, 100, ESTABLISHED), "", "127.0.0.1", ""),
        (line(HERE, 400), "", "127.0.0.1", ""),
    ],
)
def test_the_owner_of_an_address_is_found(tmp_path: Path, tcp: str, tcp6: str, host: str, owner: str) -> None:
    """Of the same address or of every one; a connection keeps nothing taken, and a foreign user's process is not seen."""
    assert owner_of(host, 8080, tables(tmp_path / "proc", tcp, tcp6)) == owner


def test_elsewhere_nobody_is_known(tmp_path: Path) -> None:
    """Where there is no such table."""
    assert owner_of("127.0.0.1", 8080, tmp_path) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_gateway_whose_two_ports_are_one_is_told_so() -> None:
    """`admin.listen: 0.0.0.0:8080` beside `server.port: 8080`."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match=r"address already in use by this gateway itself; choose another port: --port"),
    ):
        listen_on("0.0.0.0", taken.getsockname()[1])
