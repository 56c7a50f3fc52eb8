"""Files that more than one package reads a part of."""
