"""Small models and data that several scenarios share."""
