"""Training f_p, the network that places rows."""
