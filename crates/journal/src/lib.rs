//! Transactions, buffers, and the journaling schemes.
#![forbid(unsafe_code)]
