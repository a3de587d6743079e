"""What runs inside the peers' own environments, never imported here."""
