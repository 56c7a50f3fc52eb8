"""Model families, over one description of layers."""
