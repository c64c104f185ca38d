"""The models of conf/model. Each is a function of a data source and options that returns a model."""
