"""Heart disease in four hospitals: a federation of logistic regressions and small networks."""
