//! Holds one test: whether the source is tidy. It is a package of its own so that it builds in a
//! second, whatever has changed.
#![forbid(unsafe_code)]
