//! Workloads, models and judges.
#![forbid(unsafe_code)]
