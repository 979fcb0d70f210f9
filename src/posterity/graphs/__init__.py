"""Graphs of sites, and random walks of tokens over them."""

from posterity.graphs.constructors import complete as complete
from posterity.graphs.constructors import ring as ring
from posterity.graphs.constructors import star as star
from posterity.graphs.topology import Network as Network
from posterity.graphs.walks import MetropolisHastings as MetropolisHastings
from posterity.graphs.walks import NonBacktracking as NonBacktracking
from posterity.graphs.walks import Walk as Walk
