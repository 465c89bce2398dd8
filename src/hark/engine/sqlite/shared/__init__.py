"""Places of shared groups: every message by itself, in lanes by priority and delay, with exceptions beside them."""
