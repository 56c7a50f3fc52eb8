"""Model families, one file each, over the shared layers."""
