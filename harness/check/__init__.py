"""What is known of an environment: which bugs its releases have, from records or from runs."""
