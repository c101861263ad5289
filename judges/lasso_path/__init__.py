"""The lasso-path judge: solve a whole regularisation path to high accuracy, as fast as possible."""
