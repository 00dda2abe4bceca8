//! The devices from outside: each kind against the contract, and files and block devices against
//! the system.

mod conformance;
mod files;
mod loops;
mod pmem;
mod reflink;
