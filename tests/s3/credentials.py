"""What every test server takes for credentials."""

from __future__ import annotations

AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "hark-tests",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_REGION": "us-east-1",
    # Nothing of the developer's own account may reach a test, and nobody asks the network for credentials.
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
