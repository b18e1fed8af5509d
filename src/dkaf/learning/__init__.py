"""Training: episodes, the marginal likelihood, the policy gradient, and the recipe that joins them."""
