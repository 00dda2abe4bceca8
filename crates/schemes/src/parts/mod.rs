//! The parts of which several schemes are made.

pub(crate) mod area;
pub(crate) mod byte_log;
pub(crate) mod fill;
pub(crate) mod home;
pub(crate) mod index;
pub(crate) mod look;
pub(crate) mod owner;
pub(crate) mod period;
pub(crate) mod reader;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod ring;
pub(crate) mod scan;
pub(crate) mod version;
