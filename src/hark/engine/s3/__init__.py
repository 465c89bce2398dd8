"""The S3 engine: a queue on nothing but a bucket."""

from hark.engine.s3.engine import S3Engine

__all__ = ["S3Engine"]
