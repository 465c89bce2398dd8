"""Messages on their way to the server: made, shared in requests, buffered, in transactions."""
