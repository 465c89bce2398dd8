"""Settings of the S3 engine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from hark.settings.describing import Part, about

Bytes = Annotated[int, Meta(ge=1, le=1_099_511_627_776)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]


class S3(Part, frozen=True):
    """Requests to the bucket, and the data that is kept there."""

    endpoint_url: Annotated[
        str,
        Meta(pattern=r"^(https?://\S+)?\Z"),
        about(
            "URL of the S3 API. Empty: from the engine URL or AWS configuration.",
            expected="a URL that starts with http:// or https://",
        ),
    ] = ""
    region: Annotated[
        str,
        Meta(pattern=r"^[a-zA-Z0-9-]*\Z"),
        about(
            "Region of the bucket. Empty: from the engine URL or AWS configuration.",
            expected="the name of a region, such as eu-west-1",
        ),
    ] = ""
    request_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000),
        about("Time limit of an S3 request, in milliseconds, plus 1 second per megabyte."),
    ] = 10_000
    patience_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000),
        about("Time limit for the outcome of a commit before a 503, in milliseconds."),
    ] = 20_000
    linger_ms: Annotated[
        float,
        Meta(ge=0, le=10_000),
        about("Maximum wait of a commit for a shared request under load, in milliseconds."),
    ] = 50.0
    snapshot_records: Annotated[int, Meta(ge=1, le=1_000_000), about("Log records between snapshots.")] = 1000
    snapshot_bytes: Annotated[Bytes, about("Log bytes between snapshots.")] = 67_108_864
    grace_seconds: Annotated[
        int,
        Meta(ge=1, le=31_536_000),
        about("Retention of log records that snapshots replace, in seconds. Fixed when the store is created."),
    ] = 3600
    skew_margin_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000),
        about("Tolerated clock difference between processes, in milliseconds."),
    ] = 1000
    cache_bytes: Annotated[
        int, Meta(ge=0, le=1_099_511_627_776), about("Maximum size of the payload cache per process, in bytes.")
    ] = 268_435_456
    max_record_bytes: Annotated[
        int,
        Meta(ge=65_536, le=1_073_741_824),
        about("Size at which a log record is full, in bytes."),
    ] = 33_554_432
    put_dollars: Annotated[Dollars, about("Price of a million PUT requests, for cost estimates.")] = 5.0
    get_dollars: Annotated[Dollars, about("Price of a million GET requests, for cost estimates.")] = 0.4
