"""Dividing tasks between devices: shares, what each costs, chains of them."""
