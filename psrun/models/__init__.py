"""Models that conf/model names. Each is a function of a data source (and options) to a model."""
