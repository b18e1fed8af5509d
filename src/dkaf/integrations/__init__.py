"""Other libraries, with a trained policy in them."""
