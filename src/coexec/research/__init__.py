"""What reproduces the papers: networks, simulated phones, calibration. No other room needs it."""
