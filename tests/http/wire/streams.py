"""Streams of HTTP requests, valid and broken, for the differential test of the wire."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any, cast

MAX_BODY_BYTES = 50_000
"""Size limit of the server that gets the streams."""

# fmt: off
METHODS = [b"GET", b"POST", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"PATCH"]
STRANGE_METHODS = [b"CONNECT", b"QUERY", b"M-SEARCH", b"SOURCE", b"PRI", b"SETUP", b"get", b"G ET", b"GET\0", b"X", b""]
TARGETS = [b"/", b"/a?b=c", b"/later", b"/task", b"/later?x", b"/refused", b"/%00?%ff", b"http://h/p?q", b"//h/p"]
STRANGE_TARGETS = [
    b"*", b"/a#f", b"/a?b#f", b"http://h", b"https://u@h:8/p?q#f", b"http://h?q", b"http:///p", b"h:80", b"x", b"/a b",
    b"", b"/\xff", b"/\0", b"/\x7f", b"/\x0b", b"?q", b"#f", b"http://", b"/" + b"x" * 5000, b"a://[::1]/", b"/a??b",
]
STRANGE_VERSIONS = [
    b"HTTP/1.0", b"HTTP/1.0", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/1.10", b"HTTP/1.1 ", b"",
    b"http/1.1", b"HTTP/1,1", b"RTSP/1.1", b"ICE/1.0", b"HTTP/11", b"HTTP/1.", b"HTTP/+1.1", b"HTTP/1.1\0", b"H",
]
STRANGE_ENDS = [
    b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n\r\n", b"\r\n ", b"\r\n\t", b"", b"\0\r\n", b" \r\n", b"\x0b\r\n",
]
HEADERS = [
    (b"Accept", b"*/*"), (b"X", b""), (b"X", b" y\t"), (b"x", b"a, b"), (b"Cookie", b"a=b"), (b"Cookie", b"c=d"),
    (b"Connection", b"close"), (b"Connection", b"keep-alive"), (b"Connection", b"upgrade"), (b"Upgrade", b"h2c"),
    (b"Expect", b"100-continue"), (b"Expect", b"100-Continue "), (b"Expect", b"x"), (b"Upgrade", b"websocket"),
    (b"Authorization", b"Bearer x"), (b"Origin", b"null"), (b"Host", b"y"), (b"Content-Length", b"0"),
    (b"Connection", b"close, upgrade"), (b"Connection", b"x, close"), (b"Connection", b"Close, Keep-Alive"),
]
STRANGE_HEADERS = [
    (b" X", b"y"), (b"X ", b"y"), (b"", b"y"), (b"X\0", b"y"), (b"X", b"\0"), (b"X", b"\x01"), (b"X", b"\xff"),
    (b"X", b"a\r\n b"), (b"X", b"\r\n b"), (b"X", b"a\rb"), (b"X", b"a\nb"), (b"X@", b"y"), (b"X\xff", b"y"),
    (b"Transfer_Encoding", b"chunked"), (b"Content-Length\t", b"5"), (b"Transfer-Encoding ", b"chunked"),
    (b"Content-Length", b"5\r\n 5"), (b"Host", b"a\r\nHost: b"), (b"Content Length", b"5"), (b"X\r\nY", b"z"),
]
LENGTHS = [
    b"+5", b"-5", b" 5", b"5 ", b"5,5", b"5, 6", b"0x5", b"5_0", b"", b"0", b"05", b"5.0", b"0" * 20 + b"5",
    b"18446744073709551615", b"18446744073709551616", b"99999999999999999999999", b"9" * 5000, b"\xb25", b"1e1", b"5\0",
    b"50001", b"9007199254740993", b"4294967301", b"\t5\t", b"5;", b'"5"', b"0" * 4400,
]
CODINGS = [
    b"chunked", b"Chunked", b"chunked ", b"\tchunked", b"xchunked", b"chunkedx", b"identity", b"gzip, chunked", b"",
    b"chunked, chunked", b"chunked, identity", b"chunked;q=1", b"chunked\x0b", b'"chunked"', b"chunked,", b",chunked",
    b"chunked\0", b"\x0bchunked", b"\xa0chunked", b"chunked\r\n ", b"x", b"gzip",
]
SIZES = [
    b"0x5", b"5 ", b" 5", b"+5", b"-5", b"", b"5h", b"05", b"00000000000000000000005", b"ffffffffffffffff", b"5\t",
    b"10000000000000005", b"fffffffffffffffff", b"7fffffffffffffff", b"100000005", b"5_0", b"5\0", b"\n5", b"5\r",
]
EXTENSIONS = [
    b";a", b";a=b", b';a="b"', b";a=b;c=d", b';a="\\""', b"; a", b";", b";;", b" ;a", b";a=", b';a="', b";\0", b";a\n",
    b";a=\xff", b';a="\r\n"', b";a\rb", b"\t;a", b",a", b";" + b"a" * 3000,
]
TRAILERS = [
    b"X: y\r\n", b"Authorization: Bearer z\r\n", b"Host: z\r\n", b"Origin: z\r\n", b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"X: y\n", b"X : y\r\n", b"X\r\n", b"Cookie: z\r\n", b"X: y\r\n z\r\n", b"X: \0\r\n", b"\n", b"X:\r\n",
    b" X: y\r\n",
]
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
BODIES = [
    b"", b"5", b"hello", b"0\r\n\r\n", b"\r\n", HIDDEN, b"0\r\n\r\n" + HIDDEN, b"5\r\nhello\r\n0\r\n\r\n", b"x" * 1999,
]
WEBSOCKET_REQUEST = b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
TOKENS = [
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n", HIDDEN,
    b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Host: x\r\n", b"Connection: close\r\n", b"5\r\n",
    b"Expect: 100-continue\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"Content-Length: 0\r\n", b"0", b"9",
    b"HTTP/1.1", b"RTSP/1.1",
]
BYTES = b"\r\n \t:;,\0\x0b\x7f\xff09afAF/?#-_\"="
# fmt: on


class Generator:
    """Generates streams from one random number generator."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.chance = random.random
        self.pick: Callable[..., Any] = random.choice

    def stream(self) -> bytes:
        """Return some requests, most of the time broken somewhere."""
        chance, number = self.chance(), self.random.randint(1, 4)
        if chance < 0.04:
            stream = b"".join(self.pick((b"", b"", b"\r\n", HIDDEN)) + self.small() for _ in range(10 * number))
        else:
            # Half of the streams are strange only where they are mutated.
            strange = 0.0 if self.chance() < 0.5 else 0.04
            stream = b"".join([self.request(strange) for _ in range(number)])
        if self.chance() < 0.6:
            for _ in range(self.random.randint(1, 3)):
                stream = self.mutated(stream)
        if self.chance() < 0.1:
            stream = stream[: self.random.randint(0, len(stream))]
        return stream

    def small(self) -> bytes:
        """Return a request that is small, so that many fit into a piece."""
        version = b"1.1" if self.chance() < 0.98 else b"1.0\r\nConnection: keep-alive"
        return b"GET %b HTTP/%b\r\nHost: h\r\n\r\n" % (self.pick(TARGETS), version)

    def chunks(self, stream: bytes) -> list[bytes]:
        """Cut a stream into pieces of random size."""
        size = min(max(self.pick((1, 10, 60, 400, 5000)), len(stream) // 100), len(stream))
        cuts = [] if not size else self.random.choices(range(len(stream)), k=len(stream) // size)
        cuts = sorted({0, *(range(len(stream)) if size == 1 else cuts), len(stream)})
        return [stream[start:end] for start, end in pairwise(cuts)]

    def one_of(self, usual: list[Any], strange: list[Any], share: float) -> Any:
        return self.pick(strange if self.chance() < share else usual)

    def request(self, strange: float) -> bytes:
        """Return a request. Each part of it is strange with the given probability."""
        if self.chance() < 0.03:
            return WEBSOCKET_REQUEST
        method = self.one_of(METHODS, STRANGE_METHODS, strange)
        target = self.one_of(TARGETS, STRANGE_TARGETS, strange)
        version = self.one_of([b"HTTP/1.1"], STRANGE_VERSIONS, max(0.02, strange))
        gap = self.one_of([b" "], [b"  ", b"\t", b"\x0b", b""], strange / 3)
        headers = [self.pick(HEADERS) for _ in range(self.pick((0, 0, 1, 1, 2, 3)))]
        if self.chance() < strange:
            headers.append(self.pick(STRANGE_HEADERS))
        if self.chance() < strange / 8:
            headers.extend([(b"X%d" % number, b"y" * self.pick((0, 700))) for number in range(self.pick((97, 101)))])
        if self.chance() > strange:
            headers = [header for header in headers if header[0] != b"Host"]
            headers.append((b"Host", b"h"))
        if self.chance() < 0.04:
            headers.extend([(b"Upgrade", self.pick((b"websocket", b"h2c"))), (b"Connection", b"Upgrade")])
        if self.chance() < 0.05:
            headers.append((b"Expect", b"100-continue"))
        body = self.framed(headers, strange, method)
        self.random.shuffle(headers)
        lines = [method + gap + target + gap + version]
        lines += [
            self.spelled(name, strange) + self.pick((b": ", b": ", b":", b":\t ")) + value for name, value in headers
        ]
        end = self.one_of([b"\r\n"], [b"\n", b"\r\n", b"\r\n"], strange)
        head = b"".join([line + self.one_of([end], STRANGE_ENDS, strange / 6) for line in lines])
        before = self.one_of([b""], [b"\r\n", b"\n", b"\r", b" "], strange)
        return b"".join([before, head, end, body])

    def spelled(self, name: bytes, strange: float) -> bytes:
        way = self.pick((bytes, bytes.lower, bytes.upper))
        spelled = cast(bytes, way(name))
        return spelled + self.pick((b" ", b"\t", b"\0")) if self.chance() < strange / 10 else spelled

    def framed(self, headers: list[tuple[bytes, bytes]], strange: float, method: bytes) -> bytes:
        """Return the bytes of a body, and add the headers that frame it."""
        kind = self.chance()
        if kind < (0.7 if method in (b"GET", b"HEAD") else 0.1):
            return b""
        body = self.one_of(BODIES, [b"x" * (MAX_BODY_BYTES + 1)], strange / 20)
        if kind < 0.85 and self.chance() < 0.5:
            headers.append((b"Content-Length", b"%d" % len(body)))
            if self.chance() < strange * 2:
                headers[-1] = (b"Content-Length", self.pick(LENGTHS))
            if self.chance() < strange:
                headers.append(self.pick(((b"Content-Length", b"0"), headers[-1])))
        else:
            headers.append((b"Transfer-Encoding", self.one_of([b"chunked"], CODINGS, strange * 2)))
            if self.chance() < strange:
                headers.append(self.pick(((b"Content-Length", b"%d" % len(body)), headers[-1])))
            body = self.chunked(body, strange)
        if self.chance() < strange:
            body = self.pick((body + b"x", body[:-1], body + b"\r\n"))
        return cast(bytes, body)

    def chunked(self, body: bytes, strange: float) -> bytes:
        parts, start = [], 0
        while start < len(body):
            end = start + self.random.randint(1, max(20, len(body) // 3))
            parts.append(body[start:end])
            start = end
        chunks = [
            self.size(len(part), strange) + part + self.one_of([b"\r\n"], [*STRANGE_ENDS, b"", b""], strange / 2)
            for part in parts
        ]
        trailers = [self.pick(TRAILERS[:4]) for _ in range(self.pick((0, 0, 0, 1, 2)))]
        if self.chance() < strange:
            trailers.append(self.pick(TRAILERS))
        last = self.one_of([b"0"], [b"00", b"0" * 30, b"0;a", b"0 ", b""], strange) + b"\r\n"
        return b"".join([*chunks, last, *trailers, b"\r\n"])

    def size(self, size: int, strange: float) -> bytes:
        text = self.one_of([b"%x" % size, b"%X" % size, b"0%x" % size], SIZES, strange / 3)
        extension = self.one_of([b"", b"", b"", b"", *EXTENSIONS[:5]], EXTENSIONS, strange)
        return cast(bytes, text + extension + self.one_of([b"\r\n"], STRANGE_ENDS, strange / 3))

    def mutated(self, stream: bytes) -> bytes:
        """Return a stream with a few bytes changed, removed, repeated, moved or inserted."""
        at = self.random.randint(0, len(stream))
        end = min(len(stream), at + self.pick((1, 1, 2, 4, 16, 64)))
        before, part, after = stream[:at], stream[at:end], stream[end:]
        match self.random.randrange(8):
            case 0:
                return before + bytes([byte ^ 1 << self.random.randrange(8) for byte in part[:1]]) + part[1:] + after
            case 1:
                return before + bytes([self.pick(BYTES)]) + part[1:] + after
            case 2:
                return before + after
            case 3:
                return before + part + part + after
            case 4:
                other = self.random.randint(0, len(after))
                return before + after[:other] + part + after[other:]
            case 5:
                other = self.random.randint(0, len(stream))
                return before + stream[other : other + len(part)] + after
            case _:
                return before + cast(bytes, self.pick(TOKENS)) + part + after
