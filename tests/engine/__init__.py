"""One conformance suite for every engine: the rules of the queue, rule by rule."""
