"""Messages on their way to a consumer: taken, held, handled, settled."""
