"""An object store for tests: exact S3 semantics in memory, with faults on demand, in process or over HTTP."""
