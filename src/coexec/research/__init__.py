"""What reproduces the papers: networks, phones, memory strategies. No other room imports it."""
