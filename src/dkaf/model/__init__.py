"""The mathematics: features to representations, representations to a posterior, a posterior to scores."""
