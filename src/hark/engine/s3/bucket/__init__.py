"""The bucket: requests, what they cost, what time it is there."""
