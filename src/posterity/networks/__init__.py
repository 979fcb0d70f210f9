"""Feed-forward networks: their layers as data, the forward pass, training of local posteriors."""
