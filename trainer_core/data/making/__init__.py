"""Makes and grows a data line: pinning, calibration, `data init` and `data append`."""
