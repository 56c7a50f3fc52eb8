"""What the server says of its own interface: `/openapi.json`, and `/docs`, which shows it."""
