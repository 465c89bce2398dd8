"""The settings of the S3 engine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hark.settings.describing import Part, about

Bytes = Annotated[int, Meta(ge=1, le=1_099_511_627_776)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]


class S3(Part, frozen=True):
    """How a process talks to its bucket, and what it keeps there."""

    endpoint_url: Annotated[
        str,
        Meta(pattern=r"^(https?://\S+)?\Z"),
        about(
            "Where the S3 API is, if the URL of the engine does not say; empty: as the AWS tools find it.",
            expected="a URL that starts with http:// or https://",
        ),
    ] = ""
    region: Annotated[
        str,
        Meta(pattern=r"^[a-zA-Z0-9-]*\Z"),
        about(
            "The region of the bucket, if the URL of the engine does not say; empty: as the AWS tools find it.",
            expected="the name of a region, such as eu-west-1",
        ),
    ] = ""
    request_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000),
        about(
            "Milliseconds without an answer after which a request to the bucket has failed; large ones get a second "
            "more for each megabyte."
        ),
    ] = 10_000
    patience_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000),
        about("Milliseconds that a commit tries to learn its outcome while the bucket does not answer, before a 503."),
    ] = 20_000
    linger_ms: Annotated[
        float,
        Meta(ge=0, le=10_000),
        about("Milliseconds that a commit waits at most for others to share its request; none while there is no load."),
    ] = 50.0
    snapshot_records: Annotated[
        int, Meta(ge=1, le=1_000_000), about("Records of the log after which a snapshot is made.")
    ] = 1000
    snapshot_bytes: Annotated[Bytes, about("Bytes of the log after which a snapshot is made.")] = 67_108_864
    grace_seconds: Annotated[
        int,
        Meta(ge=1, le=31_536_000),
        about(
            "Seconds that records are kept that no snapshot needs any more; a process that was stopped for longer "
            "starts again from a snapshot. It is a property of the store: who makes it decides."
        ),
    ] = 3600
    skew_margin_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000),
        about("Milliseconds by which the clocks of processes on one store may differ."),
    ] = 1000
    cache_bytes: Annotated[
        int, Meta(ge=0, le=1_099_511_627_776), about("Bytes of payloads that a process keeps in memory at most.")
    ] = 268_435_456
    max_record_bytes: Annotated[
        int,
        Meta(ge=65_536, le=1_073_741_824),
        about("Bytes in one record of the log at which it is full; what does not fit waits for the next."),
    ] = 33_554_432
    put_dollars: Annotated[Dollars, about("The price of a million PUT requests, for the estimate of costs.")] = 5.0
    get_dollars: Annotated[Dollars, about("The price of a million GET requests, for the estimate of costs.")] = 0.4
