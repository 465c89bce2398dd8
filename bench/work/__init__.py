"""The rows about work queues and keys: what sharing costs, how exact delays are, how fast keys are found."""
