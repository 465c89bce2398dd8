"""Types of responses, for type checks and for the schemas of the OpenAPI document."""
