"""Fault injection for everything that embeds the engine: run a scenario, cancelled at each of its steps in turn."""
