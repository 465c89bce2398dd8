"""The shared log in the bucket: records, snapshots, and what may be removed."""
