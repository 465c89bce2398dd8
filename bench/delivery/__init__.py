"""The rows about delivery: how fast, how fairly and at what cost those are told who wait."""
