"""The one package that knows OpenAI's JSON names: bodies in, domain values out, and back."""
