"""What endpoints answer, as types: checked where the answers are made, and the schemas of the OpenAPI document."""
