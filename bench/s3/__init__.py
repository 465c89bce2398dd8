"""The rows about the S3 engine: how much goes through a bucket, how soon, and for how many requests."""
