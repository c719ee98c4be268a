"""Loss as a function of parameters, tokens and compute: the fit, its uncertainty, how far it reaches."""
