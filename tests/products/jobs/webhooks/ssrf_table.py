"""Spellings of URLs by which servers were made to ask inside their own networks, and URLs that have to pass.

Collected from the advisories of gateways, chat fronts and inference servers, the WHATWG URL parser's tests, and
PayloadsAllTheThings' list of server-side request forgeries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PATH = "/hook?token=s3cret"

_PRIVATE_4 = [
    "0.0.0.0", "0.1.2.3", "0.255.255.255", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
    "100.127.255.255", "127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.255", "168.63.129.16", "169.254.0.1",
    "169.254.169.254", "169.254.170.2", "172.16.0.1", "172.17.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192",
    "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "192.168.1.254", "192.168.255.255", "198.18.0.1",
    "198.19.255.255", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.254",
    "255.255.255.255",
]  # fmt: skip
_PRIVATE_6 = [
    "::", "::1", "::2", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::ffff:10.0.0.1",
    "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::ffff:192.168.0.1", "::ffff:100.100.100.200",
    "::ffff:0:127.0.0.1", "0:0:0:0:0:ffff:a9fe:a9fe", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.0.0.1", "64:ff9b:1::1", "64:ff9b:1::127.0.0.1", "100::1", "100:0:0:1::1", "2001::1",
    "2001:0:7f00:1::1", "2001:0:808:808:0:0:80ff:fffe", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1",
    "2002:7f00:1::", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:c0a8:1::1", "2002:a00:1::1",
    "2606:2800::5efe:127.0.0.1", "2606:2800::200:5efe:10.0.0.1", "2620:4f:8000::1", "3fff::1", "4000::1", "5f00::1",
    "fc00::1", "fd00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::a9fe:a9fe", "febf::1", "fec0::1",
    "ff01::1", "ff02::1", "ff05::2", "ff0e::1",
]  # fmt: skip
PRIVATE: Sequence[str] = (
    *_PRIVATE_4,
    *_PRIVATE_6,
    "fe80::1%eth0",
    "2606:4700::1111%1",
    "",
    "localhost",
    "0x7f.1",
    "127.1",
    "1.2.3",
    "010.0.0.1",
    "93.184.215.14 ",
)
"""As a resolver may return them; the last ones are no addresses at all."""

_NUMBERS = [
    "2130706433", "02130706433", "017700000001", "0x7f000001", "0X7F000001", "0x7F.0x0.0x0.0x1", "0x7f.0.0.1",
    "0177.0.0.1", "0177.0.0.01", "00000177.0.0.1", "127.1", "127.0.1", "127.0.0.1.", "127.0.0.01", "127.0.0.001",
    "127.0.0.0x1", "127.0x1", "127.65535", "0", "0.0", "0x0", "00", "0x", "1", "010.0.0.1", "012.1", "10.1",
    "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "2852039166", "0251.0376.0251.0376", "0251.254.169.254", "169.254.43518",
    "169.16689662", "425.510.425.510", "4294967295", "4294967296", "18446744071562067969", "256.256.256.256",
    "127.0.0.256", "383.0.0.1", "127.0.0.1.5", "1.2.3.4.5", "3232235521", "0xc0a80001", "0300.0250.0.1",
    "192.168.257", "0xac.0x10.0.1", "2886729729", "127.0.0", "127..0.1", ".127.0.0.1", "0.0.0.0.", "93.184.215.14.",
    "1572395790", "0x5db8d70e", "093.184.215.14", "93.184.55054",
]  # fmt: skip
_NAMES = [
    "localhost", "LOCALHOST", "localhost.", "a.localhost", "localhost.localdomain", "ip6-localhost", "metadata",
    "kubernetes", "metadata.google.internal", "metadata.google.internal.", "instance-data.ec2.internal",
    "kubernetes.default.svc.cluster.local", "host.docker.internal", "gateway.docker.internal", "printer.local",
    "router.lan", "router.home", "router.home.arpa", "intra.corp", "db.internal", "wiki.intranet", "x.private",
    "x.test", "x.invalid", "x.example", "x.onion", "x.alt", "1.0.0.127.in-addr.arpa", "redis", "hooks.example.com.",
    "hooks..example.com", ".example.com", "-a.example.com", "a-.example.com", f"{'a' * 64}.example.com",
    ".".join(["a" * 60] * 5), ".", "..", "-", "a_b.example.com",
]  # fmt: skip
_TRICKS = [
    "", "https", "https:", "https:/", "https://", "https:///hook", "https:127.0.0.1", "https:/127.0.0.1",
    "https:\\\\127.0.0.1", "https:\\127.0.0.1", "https:////127.0.0.1/", "HTTPS://127.0.0.1",
    "http://example.com/s3cret", "http://127.0.0.1/", "ftp://example.com/", "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_INFO", "dict://127.0.0.1:11211/", "data:text/plain,s3cret", "javascript:alert(1)",
    "unix:///var/run/docker.sock", "//example.com/", "example.com", "example.com/hook", " https://example.com/",
    "https://example.com/ ", "\thttps://example.com/", "https://exa\tmple.com/", "https://example.com/\r\nhost: x",
    "https://example.com\n/", "https://127.0.0.1\r.example.com/", "https://example.com/\x00",
    "https://example.com\x00.evil.com/", "https://user@example.com/", "https://user:s3cret@example.com/",
    "https://:s3cret@example.com/", "https://@example.com/", "https://example.com@127.0.0.1/",
    "https://127.0.0.1@example.com/", "https://example.com:443@127.0.0.1/", "https://example.com%40127.0.0.1/",
    "https://example.com#@127.0.0.1/", "https://example.com?@127.0.0.1:80\\/", "https://example.com\\@127.0.0.1/",
    "https://127.0.0.1\\@example.com/", "https://127.0.0.1\\.example.com/", "https://example.com\\.127.0.0.1/",
    "https://127.0.0.1#.example.com/", "https://127.0.0.1?.example.com/", "https://127.0.0.1;example.com/",
    "https://example.com,127.0.0.1/", "https://127.0.0.1 .example.com/", "https://(127.0.0.1)/",
    "https://{127.0.0.1}/", "https://\"127.0.0.1\"/", "https://$example.com/", "https://*.example.com/",
    "https://%6c%6f%63alhost/", "https://127.0.0.1%2f.example.com/", "https://127.0.0.1%00.example.com/",
    "https://127%2e0%2e0%2e1/", "https://%31%32%37.0.0.1/", "https://example.com:80/", "https://example.com:22/",
    "https://example.com:6379/", "https://example.com:8080/", "https://example.com:0/",
    "https://example.com:00443/", "https://example.com:0443/", "https://example.com:65979/",
    "https://example.com:443:443/", "https://example.com:-443/", "https://example.com:+443/",
    "https://example.com:4_43/", "https://example.com:\u0664\u0664\u0663/", "https://example.com:/",
    "https://example.com:443x/", "https://example.com:99999999999/", "https://example.com/#s3cret",
    "https://example.com#", "https://example.com/?a#b", "https://example.com/a\\b",
    "https://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/", "https://127\u30020\u30020\u30021/",
    "https://127\uff0e0\uff0e0\uff0e1/", "https://127\uff610\uff610\uff611/", "https://\uff11\uff12\uff17.0.0.1/",
    "https://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3/", "https://localho\u017ft/",
    "https://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54/", "https://\uff4detadata.google.internal/",
    "https://b\xfccher.example.com/", "https://example.com\u2044@127.0.0.1/", "https://examp\u200ble.com/",
    "https://example\xadcom/", "https://example.com/\xfc", "https://[::1", "https://::1/", "https://::1]/",
    "https://[]/", "https://[:]/", "https://[::1]x/", "https://[::1].example.com/", "https://[::1%25lo]/",
    "https://[::1%lo]/", "https://[fe80::1%25eth0]/", "https://[2606:4700::1111%25eth0]/", "https://[v1.fe80::1]/",
    "https://[127.0.0.1]/", "https://[::ffff:127.0.0.1%25]/", "https://[[::1]]/", "https://[::1]:22/",
    "https://[2606:4700::1111]:80/", "https://[2606:4700:::1111]/", "https://[12345::1]/",
    "https://[::ffff:0x7f.1]/", "https://[::ffff:127.1]/", "https://[::ffff:0177.0.0.1]/",
    "https://[0:0:0:0:0:0:0:0:1]/", "https://[::256.0.0.1]/", "https://example.com/" + "a" * 3000,
]  # fmt: skip
SPELLINGS: Sequence[str] = (
    *(f"https://{one}{PATH}" for one in (*_PRIVATE_4, *_NUMBERS, *_NAMES)),
    *(f"https://[{one}]{PATH}" for one in _PRIVATE_6),
    *_TRICKS,
)
"""Refused without looking a name up."""

NAMES: Mapping[str, Sequence[str]] = {
    "localtest.me": ["127.0.0.1"],
    "lvh.me": ["::1"],
    "127.0.0.1.nip.io": ["127.0.0.1"],
    "169-254-169-254.sslip.io": ["169.254.169.254"],
    "a9fea9fe.nip.io": ["169.254.169.254"],
    "spoofed.burpcollaborator.net": ["127.0.0.1"],
    "metadata.nicob.net": ["169.254.169.254"],
    "0.0.0.0.nip.io": ["0.0.0.0"],
    "xn--bcher-kva.attacker.com": ["10.1.2.3"],
    "xn--1-zka.attacker.com": ["192.168.1.1"],
    "0x7f000001.attacker.com": ["127.0.0.1"],
    "rebind.attacker.com": ["93.184.215.14", "127.0.0.1"],
    "both.attacker.com": ["93.184.215.14", "fe80::1%2"],
    "v6.attacker.com": ["fd00:ec2::254"],
    "mapped.attacker.com": ["::ffff:169.254.169.254"],
    "six.attacker.com": ["2002:a9fe:a9fe::1"],
    "teredo.attacker.com": ["2001:0:808:808:0:0:80ff:fffe"],
    "nat64.attacker.com": ["64:ff9b::7f00:1"],
    "cgnat.attacker.com": ["100.64.1.1"],
    "azure.attacker.com": ["168.63.129.16"],
    "cast.attacker.com": ["224.0.0.251"],
    "all.attacker.com": ["255.255.255.255"],
}
"""Names that look like any other, and what they stand for."""

ALLOWED: Mapping[str, tuple[str, int, str, bool]] = {
    "https://example.com": ("example.com", 443, "/", False),
    "https://example.com/": ("example.com", 443, "/", False),
    "https://hooks.slack.com/services/T0/B0/x": ("hooks.slack.com", 443, "/services/T0/B0/x", False),
    "https://Hooks.Example.COM/A": ("hooks.example.com", 443, "/A", False),
    "https://example.com:443/a": ("example.com", 443, "/a", False),
    "https://example.com:8443/a?b=c&d=%2F": ("example.com", 8443, "/a?b=c&d=%2F", False),
    "https://example.com?a=b": ("example.com", 443, "/?a=b", False),
    "https://example.com/a?u=https://x@y/": ("example.com", 443, "/a?u=https://x@y/", False),
    "https://xn--bcher-kva.de/": ("xn--bcher-kva.de", 443, "/", False),
    "https://a.xn--p1ai/": ("a.xn--p1ai", 443, "/", False),
    "https://1e100.net/": ("1e100.net", 443, "/", False),
    "https://127.0.0.1.nip.io/": ("127.0.0.1.nip.io", 443, "/", False),
    "https://0x7f.de/": ("0x7f.de", 443, "/", False),
    "https://test.com/": ("test.com", 443, "/", False),
    "https://localhost.com/": ("localhost.com", 443, "/", False),
    "https://93.184.215.14/": ("93.184.215.14", 443, "/", True),
    "https://1.1.1.1:8443/": ("1.1.1.1", 8443, "/", True),
    "https://172.15.255.255/": ("172.15.255.255", 443, "/", True),
    "https://172.32.0.1/": ("172.32.0.1", 443, "/", True),
    "https://100.63.255.255/": ("100.63.255.255", 443, "/", True),
    "https://100.128.0.1/": ("100.128.0.1", 443, "/", True),
    "https://11.0.0.1/": ("11.0.0.1", 443, "/", True),
    "https://192.167.1.1/": ("192.167.1.1", 443, "/", True),
    "https://223.255.255.254/": ("223.255.255.254", 443, "/", True),
    "https://[2606:4700:4700::1111]/": ("2606:4700:4700::1111", 443, "/", True),
    "https://[2606:4700:4700:0:0:0:0:1111]:8443/x": ("2606:4700:4700::1111", 8443, "/x", True),
    "https://[2A00:1450::1]/": ("2a00:1450::1", 443, "/", True),
    "https://[64:ff9b::8.8.8.8]/": ("64:ff9b::808:808", 443, "/", True),
    "https://[2002:808:808::1]/": ("2002:808:808::1", 443, "/", True),
}
"""And what is read in them."""
