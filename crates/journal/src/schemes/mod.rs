//! The schemes, one file each; `registry` lists them.

pub(crate) mod dj;
mod home;
pub(crate) mod jbd2;
pub(crate) mod jftl;
pub(crate) mod null;
mod nvm;
mod owner;
mod period;
#[cfg(feature = "testing")]
pub(crate) mod relocate_all;
pub(crate) mod shortcut;
pub(crate) mod spindle;
pub(crate) mod tinca;
pub(crate) mod ubj;
