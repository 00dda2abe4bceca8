//! The schemes, one file each; `registry` lists them.

mod home;
pub(crate) mod null;
