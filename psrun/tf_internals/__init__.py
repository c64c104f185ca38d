"""The private names and message texts of TensorFlow and tf-keras that psrun depends on, by subject.

Every function states why no public name does, and the version it was read in. A name that is gone raises an error, at
the import or at the call, and `tests/core/contract/test_tf_internals.py` pins each of them. No other
module of psrun uses one.
"""
