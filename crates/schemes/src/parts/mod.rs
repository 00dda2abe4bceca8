//! What several schemes need.

pub(crate) mod area;
pub(crate) mod home;
pub(crate) mod index;
pub(crate) mod owner;
pub(crate) mod period;
pub(crate) mod ring;
pub(crate) mod scan;
