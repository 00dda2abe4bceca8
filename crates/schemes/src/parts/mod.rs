//! What several schemes need.

pub(crate) mod area;
pub(crate) mod home;
pub(crate) mod owner;
pub(crate) mod period;
