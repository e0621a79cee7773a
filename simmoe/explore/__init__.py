"""What follows from many simulations: reproductions of papers, sweeps, comparisons."""
